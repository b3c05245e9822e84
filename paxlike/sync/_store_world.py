"""A World of several processes that share a key-value store."""

import dataclasses
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from paxlike.core import clock as clock_lib
from paxlike.core import errors
from paxlike.sync import _mail, _meeting, _report, _stop
from paxlike.sync import _progress as progress_lib
from paxlike.sync import _store as store_lib
from paxlike.sync import _where as where_lib

DEFAULT_TIMEOUT_S = 900.0
_CULPRIT_WAIT_S = 2.0
_DUMP_WAIT_S = 5.0
_LENGTH = struct.Struct('<Q')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
  """The first failure in the job, as all processes know it.

  Attributes:
    process_index: The process that failed.
    what: What it did: 'failed at step 3, phase train: ValueError: ...'.
  """

  process_index: int
  what: str

  def __str__(self) -> str:
    return f'Process {self.process_index} {self.what}'

  def error(self) -> errors.PeerFailedError:
    """What the other processes raise."""
    return errors.PeerFailedError(str(self), process_index=self.process_index)


class StoreWorld:
  """See `World`; safe from any thread."""

  def __init__(
    self,
    store: store_lib.Store,
    *,
    process_index: int,
    process_count: int,
    default_timeout_s: float = DEFAULT_TIMEOUT_S,
    clock: clock_lib.Clock = clock_lib.SYSTEM,
    main_thread: threading.Thread | None = None,
    on_failure: Callable[[Failure], None] | None = None,
  ):
    """Joins the others.

    Args:
      store: What all processes share.
      process_index: This process.
      process_count: How many there are.
      default_timeout_s: For meetings that are given none.
      clock: For deadlines.
      main_thread: The thread whose meetings come in the same order on every
        process; the interpreter's main thread if None.
      on_failure: Called once, in another thread, when a process has failed.
    """
    self._store = store
    self._index = process_index
    self._count = process_count
    self._default_timeout_s = default_timeout_s
    self._on_failure = on_failure
    self._failure: Failure | None = None
    self._failed = threading.Event()
    self._has_waited = False
    self._lock = threading.Lock()
    self._scopes: Counter[str] = Counter()
    self.progress = progress_lib.Progress(clock=clock)
    main_thread = main_thread or threading.main_thread()
    self.reporter = _report.Reporter(
      store,
      process_index=process_index,
      process_count=process_count,
      main_thread=main_thread,
      clock=clock,
      progress=self.progress,
      open_names=lambda: self._meetings.open_names(),
      calls=lambda name: self._meetings.calls(name),
      ask=lambda question, who, about: self.mail.post(
        'ask', id=question, who=who, about=about
      ),
    )
    self._meetings = _meeting.Meetings(
      store,
      process_index=process_index,
      process_count=process_count,
      main_thread=main_thread,
      clock=clock,
      reporter=self.reporter,
      check_peers=self.check_peers,
      ticks=lambda: self.progress.mark().ticks,
    )
    self.mail = _mail.Mailbox(store)
    self.mail.subscribe('ask', self._answer)
    self.mail.subscribe('dump', self._dump)
    self.mail.subscribe('failed', self._hear_failure)
    self.stop = _stop.SharedStop(
      store,
      self.mail,
      process_index=process_index,
      process_count=process_count,
      failed=self._failed,
    )

  @property
  def process_index(self) -> int:
    """This process."""
    return self._index

  @property
  def process_count(self) -> int:
    """How many processes there are."""
    return self._count

  @property
  def root(self) -> 'StoreWorld':
    """The world without a scope: this one."""
    return self

  @property
  def failure(self) -> Failure | None:
    """The first failure in the job, this process's own included."""
    return self._failure

  def announce(self, name: str) -> None:
    """See World."""
    self._meetings.announce(name)

  def barrier(self, name: str, *, timeout_s: float | None = None) -> float:
    """See World."""
    return self._meetings.barrier(name, timeout_s=self._timeout_s(timeout_s))

  def broadcast(
    self, name: str, value: bytes | None, *, timeout_s: float | None = None
  ) -> bytes:
    """See World."""
    return self._meetings.broadcast(
      name, value, timeout_s=self._timeout_s(timeout_s)
    )

  def gather(
    self, name: str, value: bytes, *, timeout_s: float | None = None
  ) -> list[bytes]:
    """See World."""
    return _unpack(
      self.gather_combined(name, value, _pack, timeout_s=timeout_s)
    )

  def gather_combined(
    self,
    name: str,
    value: bytes,
    combine: Callable[[list[bytes]], bytes],
    *,
    timeout_s: float | None = None,
  ) -> bytes:
    """Like gather, but all get `combine(values)`, made by one process."""
    return self._meetings.gather(
      name, value, combine, timeout_s=self._timeout_s(timeout_s)
    )

  def scoped(self, prefix: str) -> 'ScopedWorld':
    """See World."""
    with self._lock:
      self._scopes[prefix] += 1
      count = self._scopes[prefix]
    return ScopedWorld(self, prefix if count == 1 else f'{prefix}.{count}')

  def explain(self, error: BaseException) -> BaseException:
    """See World."""
    causes = list(_causes(error))
    for cause in causes:  # of a save that was not made, say
      if isinstance(cause, errors.PeerFailedError):
        return cause
    # When a process dies, the others' collectives and the service that process
    # 0 runs fail at once: let the true cause be told first.
    if any(
      isinstance(cause, store_lib.StoreLostError)
      or type(cause).__name__ in ('JaxRuntimeError', 'XlaRuntimeError')
      for cause in causes
    ):
      self._failed.wait(0.0 if self._has_waited else _CULPRIT_WAIT_S)
      self._has_waited = True
    failure = self._failure
    is_echo = any(
      isinstance(cause, RuntimeError | store_lib.StoreLostError)
      for cause in causes
    )
    if is_echo and failure is not None and failure.process_index != self._index:
      return failure.error()
    return error

  def report_failure(self, error: BaseException) -> None:
    """See World."""
    if isinstance(
      self.explain(error), errors.PeerFailedError | store_lib.StoreLostError
    ):
      return
    if not self._failed.is_set():
      at = self.progress.place_of(error)
      self.post_failure(
        Failure(
          process_index=self._index,
          what=f'failed at {at}{where_lib.origin(error)}: '
          f'{type(error).__name__}: {error}',
        )
      )

  def post_failure(self, failure: Failure) -> None:
    """Tells every process of a failure, here too; never raises."""
    try:
      self.mail.post('failed', **dataclasses.asdict(failure))
    except errors.SyncError as error:
      logging.warning('Could not tell the other processes: %s', error)
    self.note_failure(failure)

  def wait_for_failure(self, timeout_s: float) -> bool:
    """Waits until a failure is known; whether one is."""
    return self._failed.wait(timeout_s)

  def note_failure(self, failure: Failure) -> None:
    """Learns of a failure; only the first counts."""
    with self._lock:
      if self._failure is not None:
        return
      self._failure = failure
    self._failed.set()
    if self._on_failure is not None:
      self._on_failure(failure)

  def check_peers(self) -> None:
    """See World."""
    failure = self._failure
    if failure is not None and failure.process_index != self._index:
      raise failure.error()

  def is_first(self, key: str) -> bool:
    """Whether no process has asked this of `key` before."""
    return self._store.increment(f'first/{key}') == 1

  def dump_all(self, directory: str) -> dict[int, where_lib.Where]:
    """Has every process write its stacks; returns where each is.

    Those that do not answer within five seconds are left out.
    """
    return self.reporter.collect(
      self._count,
      lambda question: self.mail.post('dump', id=question, directory=directory),
      timeout_s=_DUMP_WAIT_S,
    )

  def close(self) -> None:
    """Stops listening to the others."""
    self.mail.close()

  def join(self, timeout_s: float) -> None:
    """Waits, once the store is closed too, for the listening thread to end.

    An interpreter that ends while a thread is inside the store's C++ code
    aborts.
    """
    self.mail.join(timeout_s)

  def _timeout_s(self, timeout_s: float | None) -> float:
    return self._default_timeout_s if timeout_s is None else timeout_s

  def _dump(self, message: dict[str, Any]) -> None:
    where_lib.write(message['directory'], self.reporter.here(with_stack=True))
    self.reporter.answer(message['id'], with_stack=False)

  def _answer(self, message: dict[str, Any]) -> None:
    if self._index in message['who']:
      self.reporter.answer(
        message['id'], with_stack=True, about=message['about']
      )

  def _hear_failure(self, message: dict[str, Any]) -> None:
    self.note_failure(
      Failure(process_index=message['process_index'], what=message['what'])
    )


class ScopedWorld:
  """A StoreWorld whose names are kept apart by a prefix."""

  def __init__(self, world: StoreWorld, prefix: str):
    self._world = world
    self._prefix = prefix
    self.process_index = world.process_index
    self.process_count = world.process_count
    self.progress = world.progress
    self.stop = world.stop
    self.root = world

  def announce(self, name: str) -> None:
    """See World."""
    self._world.announce(f'{self._prefix}/{name}')

  def barrier(self, name: str, *, timeout_s: float | None = None) -> float:
    """See World."""
    return self._world.barrier(f'{self._prefix}/{name}', timeout_s=timeout_s)

  def broadcast(
    self, name: str, value: bytes | None, *, timeout_s: float | None = None
  ) -> bytes:
    """See World."""
    return self._world.broadcast(
      f'{self._prefix}/{name}', value, timeout_s=timeout_s
    )

  def gather(
    self, name: str, value: bytes, *, timeout_s: float | None = None
  ) -> list[bytes]:
    """See World."""
    return self._world.gather(
      f'{self._prefix}/{name}', value, timeout_s=timeout_s
    )

  def scoped(self, prefix: str) -> 'ScopedWorld':
    """See World."""
    return self._world.scoped(f'{self._prefix}/{prefix}')

  def explain(self, error: BaseException) -> BaseException:
    """See World."""
    return self._world.explain(error)

  def report_failure(self, error: BaseException) -> None:
    """See World."""
    self._world.report_failure(error)

  def check_peers(self) -> None:
    """See World."""
    self._world.check_peers()


def _causes(error: BaseException) -> Iterator[BaseException]:
  """An error and what it was raised from."""
  cause: BaseException | None = error
  while cause is not None:
    yield cause
    cause = cause.__cause__


def _pack(values: list[bytes]) -> bytes:
  return b''.join(_LENGTH.pack(len(value)) + value for value in values)


def _unpack(data: bytes) -> list[bytes]:
  values, at = [], 0
  while at < len(data):
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    values.append(data[at : at + length])
    at += length
  return values
