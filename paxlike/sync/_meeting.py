"""Barriers, broadcasts and gathers over a key-value store.

Every process adds one to the meeting's counter; the last one writes the
verdict, the others wait for it: two messages a process, however many
processes there are. The verdict is written once, so a meeting succeeds for
all or fails for all with one and the same report. Only a process that has
waited for a second does more.
"""

import contextlib
import dataclasses
import json
import threading
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from absl import logging

from paxlike.core import clock as clock_lib
from paxlike.core import errors
from paxlike.sync import _doubt, _report
from paxlike.sync import _store as store_lib

_FIRST_LOOK_S = 1.0
_LONGEST_LOOK_S = 5.0
_LOG_EVERY_S = 30.0
_REPORT_WAIT_S = 10.0
_ANNOUNCED_REMEMBERED = 256

_OK = b'+'
_FAILED = b'!'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meeting:
  """One meeting that this process has entered.

  Attributes:
    name: Its full name.
    kind: 'barrier', 'broadcast' or 'gather'.
    needed: The processes without whom it cannot end.
    call: The call of the program that it belongs to: its own name, or the
      one that was announced.
    ordinal: Which call of the main thread this is; None in other threads,
      whose order may differ between processes.
    ticks: How many steps and programs the main thread had begun by then.
    since_s: Monotonic seconds at which it was entered.
    timeout_s: Longest wait from then on.
  """

  name: str
  kind: str
  needed: Sequence[int]
  call: str
  ordinal: int | None
  ticks: int
  since_s: float
  timeout_s: float

  @property
  def key(self) -> str:
    """Where it lives in the store; a name is one path component."""
    return _key(self.name)


def _key(name: str) -> str:
  return f'meet/{urllib.parse.quote(name, safe="")}'


class Meetings:
  """All meetings of one process, in any thread."""

  def __init__(
    self,
    store: store_lib.Store,
    *,
    process_index: int,
    process_count: int,
    main_thread: threading.Thread,
    clock: clock_lib.Clock,
    reporter: '_report.Reporter',
    check_peers: Callable[[], None],
    ticks: Callable[[], int],
  ):
    """No meeting yet.

    Args:
      store: What all processes share.
      process_index: This process.
      process_count: How many there are.
      main_thread: Whose calls come in one order on every process.
      clock: For deadlines.
      reporter: Says who is missing and where.
      check_peers: Raises if another process has failed.
      ticks: How many steps and programs the main thread has begun.
    """
    self._store = store
    self._index = process_index
    self._count = process_count
    self._main_thread = main_thread
    self._clock = clock
    self._reporter = reporter
    self._check_peers = check_peers
    self._lock = threading.Lock()
    self._names: set[str] = set()
    self._open: dict[str, Meeting] = {}
    self._ticks = ticks
    self._main_calls = 0
    self._announced: dict[str, tuple[int, int]] = {}
    self._proven: set[str] = set()
    self._expiring: deque[tuple[float, str]] = deque()

  def open_names(self) -> list[str]:
    """Names of the meetings that this process waits in now."""
    with self._lock:
      return list(self._open)

  def calls(self, name: str) -> tuple[bool, int]:
    """Whether a call was made, and how many the main thread has made."""
    with self._lock:
      called = name in self._names or name in self._announced
      return called, self._main_calls

  def announce(self, name: str) -> None:
    """Notes a call of the main thread whose meetings other threads have."""
    if threading.current_thread() is not self._main_thread:
      return
    with self._lock:
      self._announced[name] = self._main_calls, self._ticks()
      self._main_calls += 1
      if len(self._announced) > _ANNOUNCED_REMEMBERED:
        del self._announced[next(iter(self._announced))]

  def barrier(self, name: str, *, timeout_s: float) -> float:
    """Meets; returns the seconds waited."""
    with self._entered(name, 'barrier', timeout_s) as meeting:
      self._meet(meeting, lambda: b'')
      return self._clock.monotonic_s() - meeting.since_s

  def gather(
    self,
    name: str,
    value: bytes,
    combine: Callable[[list[bytes]], bytes],
    *,
    timeout_s: float,
  ) -> bytes:
    """Meets; returns `combine` of all values, made by the last to come."""
    with self._entered(name, 'gather', timeout_s) as meeting:
      values_key = f'{meeting.key}/value'
      self._store.set(f'{values_key}/{self._index}', value)

      def combine_all() -> bytes:
        found = self._store.list(values_key)
        self._store.delete(values_key)
        return combine([found[str(i)] for i in range(self._count)])

      return self._meet(meeting, combine_all)

  def broadcast(
    self, name: str, value: bytes | None, *, timeout_s: float
  ) -> bytes:
    """Sends from process 0, receives on the others."""
    if self._index == 0 and value is None:
      raise TypeError(f'broadcast({name!r}): process 0 must give a value.')
    with self._entered(name, 'broadcast', timeout_s) as meeting:
      if self._index == 0 and value is not None:
        if self._store.set(f'{meeting.key}/verdict', _OK + value):
          return value
        return self._await(meeting)  # somebody's patience ended before
      value = self._await(meeting)
      if self._store.increment(f'{meeting.key}/read') == self._count - 1:
        self._store.delete(meeting.key)
      return value

  @contextlib.contextmanager
  def _entered(
    self, name: str, kind: str, timeout_s: float
  ) -> Iterator[Meeting]:
    needed = (0,) if kind == 'broadcast' else range(self._count)
    with self._lock:
      if name in self._names:
        raise errors.SyncError(
          f'The {kind} {name!r} was entered a second time by process '
          f'{self._index}. A name serves once: put the step in it, or open a '
          'scope of its own with world.scoped().'
        )
      self._names.add(name)
      call, ordinal, ticks = self._call_of(name)
      meeting = Meeting(
        name=name,
        kind=kind,
        needed=needed,
        call=call,
        ordinal=ordinal,
        ticks=ticks,
        since_s=self._clock.monotonic_s(),
        timeout_s=timeout_s,
      )
      self._open[name] = meeting
    try:
      yield meeting
      self._proven.add(_doubt.kind_of(name))
    finally:
      with self._lock:
        del self._open[name]

  def _call_of(self, name: str) -> tuple[str, int | None, int]:
    """The call that a meeting belongs to, its ordinal and its ticks."""
    call = name
    while call := call.rpartition('/')[0]:
      if call in self._announced:
        return call, *self._announced[call]
    if threading.current_thread() is not self._main_thread:
      return name, None, 0
    ordinal = self._main_calls
    self._main_calls += 1
    return name, ordinal, self._ticks()

  def _meet(self, meeting: Meeting, result: Callable[[], bytes]) -> bytes:
    self._check_peers()
    self._forget_expired()
    if self._store.increment(f'{meeting.key}/count') == self._count:
      value = result()
      if self._store.set(f'{meeting.key}/verdict', _OK + value):
        # Whoever waits came before now, so nobody waits after this. (A name
        # kept for ever would fill the memory of process 0.)
        forget_s = self._clock.monotonic_s() + meeting.timeout_s
        self._expiring.append((forget_s, meeting.key))
        return value
    return self._await(meeting)

  def _forget_expired(self) -> None:
    now_s = self._clock.monotonic_s()
    while self._expiring and self._expiring[0][0] < now_s:
      self._store.delete(self._expiring.popleft()[1])

  def _await(self, meeting: Meeting) -> bytes:
    """Waits for the verdict, looking around ever more seldom."""
    look_s, logged_s, looked = _FIRST_LOOK_S, meeting.since_s, False
    deadline_s = meeting.since_s + meeting.timeout_s
    doubt: _doubt.Doubt | None = None
    while True:
      now_s = self._clock.monotonic_s()
      if now_s >= deadline_s:
        return self._expire(meeting)
      wait_s = min(look_s, deadline_s - now_s)
      if doubt is not None:
        wait_s = min(wait_s, max(0.1, doubt.next_s - now_s))
      try:
        return self._open_verdict(
          meeting,
          self._store.get(f'{meeting.key}/verdict', timeout_s=wait_s),
        )
      except store_lib.StoreTimeoutError:
        self._check_peers()
      if not looked:
        self._reporter.publish_here()
        self._compare_order(meeting)
        looked = True
      elif doubt is not None:
        self._look_for(doubt, meeting)
      else:
        doubt = self._begin_doubt(meeting)
      if self._clock.monotonic_s() - logged_s >= _LOG_EVERY_S:
        logged_s = self._clock.monotonic_s()
        self._log(meeting)
      look_s = min(2 * look_s, _LONGEST_LOOK_S)

  def _open_verdict(self, meeting: Meeting, verdict: bytes) -> bytes:
    if verdict.startswith(_OK):
      return verdict[len(_OK) :]
    fields = json.loads(verdict[len(_FAILED) :])
    if fields['kind'] == 'order':
      raise errors.BarrierMismatchError(fields['text'], names=fields['names'])
    raise errors.BarrierTimeoutError(
      fields['text'], name=meeting.name, missing=fields['missing']
    )

  def _begin_doubt(self, meeting: Meeting) -> _doubt.Doubt | None:
    """Makes one of those that wait ask for those that do not come."""
    if meeting.ordinal is None or not self._store.set(
      f'{meeting.key}/doubted', b''
    ):
      return None
    return _doubt.Doubt(
      meeting,
      self._reporter,
      self._clock.monotonic_s,
      is_proven=_doubt.kind_of(meeting.name) in self._proven,
    )

  def _look_for(self, doubt: _doubt.Doubt, meeting: Meeting) -> None:
    """Fails a meeting to which some process will never come."""
    found = doubt.look()
    if found is None:
      return
    text, missing = found
    fields = {'kind': 'timeout', 'missing': missing, 'text': text}
    self._store.set(
      f'{meeting.key}/verdict', _FAILED + json.dumps(fields).encode()
    )

  def _compare_order(self, meeting: Meeting) -> None:
    """Fails both meetings if a peer's main thread has made another call."""
    if meeting.ordinal is None:
      return
    order_key = f'order/{meeting.ordinal}'
    mine = json.dumps([meeting.call, meeting.name]).encode()
    if self._store.set(order_key, mine):
      return
    call, other = json.loads(self._store.try_get(order_key) or mine)
    if call == meeting.call:
      if other != meeting.name:  # a call may meet more than once
        self._store.set(order_key, mine, overwrite=True)
      return
    if self._store.try_get(f'{_key(other)}/verdict') is not None:
      return  # It failed before and some process went on: orders differ now.
    if self._store.increment(f'{order_key}-claimed') > 1:
      return  # Another process is writing the verdict.
    text = self._reporter.mismatch_text(meeting, other)
    fields = {'kind': 'order', 'names': [other, meeting.name], 'text': text}
    verdict = _FAILED + json.dumps(fields).encode()
    for key in (_key(other), meeting.key):
      self._store.set(f'{key}/verdict', verdict)

  def _expire(self, meeting: Meeting) -> bytes:
    """The deadline has passed: one process writes the verdict for all."""
    if self._store.increment(f'{meeting.key}/expired') == 1:
      text, missing = self._reporter.timeout_text(meeting)
      fields = {'kind': 'timeout', 'missing': missing, 'text': text}
      self._store.set(
        f'{meeting.key}/verdict', _FAILED + json.dumps(fields).encode()
      )
    try:
      verdict = self._store.get(
        f'{meeting.key}/verdict', timeout_s=_REPORT_WAIT_S
      )
    except store_lib.StoreTimeoutError:
      raise errors.BarrierTimeoutError(
        f'The {meeting.kind} {meeting.name!r} did not end within '
        f'{meeting.timeout_s:.0f} s, and the process that was to report who '
        'is missing did not.',
        name=meeting.name,
      ) from None
    return self._open_verdict(meeting, verdict)

  def _log(self, meeting: Meeting) -> None:
    waited_s = self._clock.monotonic_s() - meeting.since_s
    logging.info(
      'Process %d has waited %.0f s in the %s %r, %.0f s to its deadline.%s',
      self._index,
      waited_s,
      meeting.kind,
      meeting.name,
      meeting.timeout_s - waited_s,
      self._not_there(meeting, int(waited_s // _LOG_EVERY_S)),
    )

  def _not_there(self, meeting: Meeting, nth: int) -> str:
    """Who is waited for, told by one of those that wait."""
    if self._store.increment(f'{meeting.key}/told/{nth}') > 1:
      return ''
    missing = self._reporter.not_seen(meeting)
    return f' Not there yet: {_report.indices(missing)}.'
