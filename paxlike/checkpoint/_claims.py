"""One writer a directory: a file of its own says who writes there.

Promises: of two managers that would save in one directory, on whatever hosts,
at most one goes on, and the other is told who is in its way. Nobody waits for
the dead: on its own machine a process is known to be gone, from elsewhere it
is gone once its file has not changed for a minute. One that was taken for dead
and was not finds its file missing, and writes no further step.

Each writer has a file under a name that nobody else has, and looks at those of
others only once its own is there; so of two that come at once, one sees the
other at least, and no lock or exclusive creation is asked of the disk.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

from absl import logging

from paxlike.checkpoint import _layout
from paxlike.core import clock as clocks
from paxlike.core import errors, fs, processes

_RENEW_S = 20.0
# As long without a word, and who wrote it is gone.
_SILENCE_S = 3 * _RENEW_S
# Clocks of two machines differ by less.
_CLOCKS_DIFFER_S = 300.0
# Two that come at once: by then the later in order has seen the other.
_SETTLE_S = 2.0
_LOOK_S = 0.1
# A disk that hangs does not keep a process from ending.
_JOIN_S = 5.0
_NAME = re.compile(
  _layout.WRITER_PREFIX + r'([0-9a-f]{8})_([0-9]+)_([0-9]*)_([0-9a-f]{8})',
  re.ASCII,
)

# What this process holds, by the names of the files.
_OWN: dict[str, 'Claim'] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
  """Which life of a job writes, where something else sees to its lives.

  A later life takes over from an earlier one without asking whether that one
  has ended: whoever began the later one has declared it dead.

  Attributes:
    job: Name of the job, the same in all its lives.
    number: Grows from life to life.
  """

  job: str
  number: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Holder:
  """A writer as its file tells it; no more than the name if that is torn."""

  name: str
  machine: str
  pid: int
  started: str
  text: bytes = b''
  host: str = ''
  since_s: float = 0.0
  until_s: float | None = None
  path: str = ''
  generation: Generation | None = None

  @property
  def is_near(self) -> bool:
    """Whether it is of this machine, so that its process can be looked at."""
    return self.machine == processes.machine()

  @property
  def is_own(self) -> bool:
    """Whether it is of this very process."""
    return self.is_near and (self.pid, self.started) == _here()

  def __str__(self) -> str:
    who = f'process {self.pid} on {self.host or "an unknown host"}'
    if self.is_own:
      who = f'another CheckpointManager of this process ({who})'
    if not self.since_s:
      return who
    since = datetime.datetime.fromtimestamp(self.since_s, datetime.UTC)
    return f'{who} since {since:%Y-%m-%d %H:%M:%S} UTC'


def _here() -> tuple[int, str]:
  return os.getpid(), processes.started(os.getpid())


class Claim:
  """The right to write in a directory, to be taken and given back."""

  def __init__(
    self,
    file_system: fs.FileSystem,
    directory: str,
    *,
    generation: Generation | None = None,
    clock: clocks.Clock = clocks.SYSTEM,
    stop_reason: Callable[[], str] = str,
  ):
    """Takes nothing yet.

    Args:
      file_system: That serves the directory.
      directory: Of all steps.
      generation: Which life of which job this is, if it has several.
      clock: Where the time comes from.
      stop_reason: Why not to wait any longer for who may be dead; '' so far.
    """
    self._fs = file_system
    self._directory = directory
    self._generation = generation
    self._clock = clock
    self._stop_reason = stop_reason
    self._host = socket.gethostname()
    self._pid = os.getpid()
    self._since_s = 0.0
    self._name = ''
    self._is_held = False
    self._has_written = False
    # Who has it now, once that is found out.
    self._successor = ''
    self._ended = threading.Event()
    self._renewer: threading.Thread | None = None

  @property
  def is_idle(self) -> bool:
    """Whether its owner has opened the directory and written nothing yet."""
    return self._is_held and not self._has_written

  def take(self) -> None:
    """Claims the directory, which is there.

    Waits for a writer on another machine that may be dead until that is known,
    a minute at most.

    Raises:
      CheckpointBusyError: Somebody else writes there.
      PreemptedError: While waiting, this job was asked to stop.
      OSError: Nothing can be written there.
    """
    self._since_s = self._clock.now_s()
    self._name = _new_name()
    self._ended.clear()
    try:
      _OWN[self._name] = self
      self._write()
      self._wait_until_alone()
      self._is_held = True
    except BaseException:
      self.release()
      raise
    self._renewer = threading.Thread(
      target=self._renew, name='checkpoint-claim', daemon=True
    )
    self._renewer.start()

  def check(self) -> None:
    """Says that its owner is about to write; to be called before each step.

    Raises:
      CheckpointBusyError: Somebody else has taken the directory over.
    """
    self._has_written = True
    if self._name and self._fs.exists(self._path()):
      return
    others = self._others()
    raise self._loss(
      str(others[0]) if others else 'somebody who has ended since'
    )

  def check_quickly(self) -> None:
    """Ends a loop that goes on beside its successor, long before it saves.

    By what was seen last, without a look at the disk.

    Raises:
      SaveError: Somebody else has taken the directory over.
    """
    if self._successor:
      loss = self._loss(self._successor)
      raise errors.SaveError(f'Nothing more can be saved: {loss}') from loss

  def _loss(self, by: str) -> errors.CheckpointBusyError:
    return errors.CheckpointBusyError(
      f'{self._directory} was taken over by {by}, while process '
      f'{self._pid} on {self._host} stood still or was taken for '
      'dead. Nothing more is written there by this one: end it.'
    )

  def release(self) -> None:
    """Gives the directory back; more than once is fine."""
    # A process that was forked has no share in it.
    if not self._name or os.getpid() != self._pid:
      return
    self._ended.set()
    # Nobody joins himself, where it is this thread that drops the last manager.
    if self._renewer not in (None, threading.current_thread()):
      self._renewer.join(_JOIN_S)
    name, self._name = self._name, ''
    _OWN.pop(name, None)
    # RuntimeError: a store's client at the end of the interpreter.
    with contextlib.suppress(OSError, RuntimeError):
      self._fs.remove(fs.join(self._directory, name))

  # --- one's own file

  def _path(self) -> str:
    return fs.join(self._directory, self._name)

  def _write(self) -> None:
    told: dict[str, Any] = {
      'host': self._host,
      'pid': self._pid,
      'since_s': self._since_s,
      'until_s': self._clock.now_s() + _SILENCE_S,
      'path': _real_path(self._directory),
    }
    if self._generation is not None:
      told['generation'] = dataclasses.asdict(self._generation)
    try:
      self._fs.write_new(self._path(), json.dumps(told).encode())
    except OSError:
      # A full disk may still take a name, which says most; what crashed saves
      # left on it can be cleared only by who has the claim.
      self._fs.write_new(self._path(), b'')

  def _renew(self) -> None:
    while not self._ended.wait(_RENEW_S):
      with contextlib.suppress(OSError):
        self._renew_once()

  def _renew_once(self) -> None:
    # Who was taken for dead does not come back.
    if self._name and self._fs.exists(self._path()):
      self._write()
    elif others := self._others():
      self._successor = str(others[0])

  # --- those of others

  def _others(self) -> list[_Holder]:
    names = [
      name
      for name in self._fs.list_dir(self._directory)
      if name != self._name and _NAME.fullmatch(name)
    ]
    read = (_read(self._fs, self._directory, name) for name in names)
    return [holder for holder in read if holder is not None]

  def _wait_until_alone(self) -> None:
    """Removes what the dead left, and waits for those who may be dead."""
    begin_s = self._clock.monotonic_s()
    has_told = False
    seen: dict[str, bytes] = {}
    while True:
      waited_s = self._clock.monotonic_s() - begin_s
      rivals = []
      for other in self._others():
        is_new = seen.setdefault(other.name, other.text) != other.text
        if self._may_remove(other, is_silent=waited_s >= _SILENCE_S):
          self._fs.remove(fs.join(self._directory, other.name))
        else:
          rivals.append(other)
          if is_new or self._is_in_the_way(other, waited_s):
            raise errors.CheckpointBusyError(self._refusal(other))
      if not rivals:
        return
      if self._stop_reason():
        raise errors.PreemptedError(
          f'Stopped on request, while waiting to hear of {rivals[0]}, who may '
          f'be writing {self._directory}. Nothing has been trained.'
        )
      if not has_told and not rivals[0].is_near:
        has_told = True
        logging.warning(
          '%s was being written by %s: waiting up to %d s for word of it.',
          self._directory,
          rivals[0],
          _SILENCE_S,
        )
      self._clock.sleep_s(_LOOK_S if waited_s < _SETTLE_S else 1.0)

  def _is_in_the_way(self, other: _Holder, waited_s: float) -> bool:
    """Whether it is at work for certain, and not about to withdraw."""
    if not other.is_near:
      return False  # will be known by its silence
    age_s = self._clock.now_s() - other.since_s
    return other.name < self._name or max(waited_s, age_s) >= _SETTLE_S

  def _may_remove(self, other: _Holder, *, is_silent: bool) -> bool:
    """Whether its owner is gone, or has nothing to say against it."""
    if self._is_later_than(other):
      return True
    if other.is_near:
      is_copied = other.path and other.path != _real_path(self._directory)
      return bool(is_copied) or not _is_alive(other)
    if is_silent:
      return True
    until_s = other.until_s
    return (
      until_s is not None and self._clock.now_s() > until_s + _CLOCKS_DIFFER_S
    )

  def _is_later_than(self, other: _Holder) -> bool:
    mine, its = self._generation, other.generation
    return (
      mine is not None
      and its is not None
      and mine.job == its.job
      and mine.number > its.number
    )

  def _refusal(self, other: _Holder) -> str:
    advice = (
      'close() that one'
      if other.is_own
      else f'end that one (kill {other.pid} on {other.host or "its host"})'
    )
    return (
      f'{self._directory} is being written by {other}. Two would damage each '
      f"other's steps: {advice}, or save in another directory. To read only, "
      'give read_only=True.'
    )


def _new_name() -> str:
  pid, started = _here()
  return (
    f'{_layout.WRITER_PREFIX}{processes.machine()}_{pid}_{started}_'
    f'{os.urandom(4).hex()}'
  )


def _real_path(directory: str) -> str:
  return directory if fs.is_remote(directory) else os.path.realpath(directory)


def _is_alive(holder: _Holder) -> bool:
  """Whether who holds it on this machine is there, and has written."""
  if holder.is_own:
    claim = _OWN.get(holder.name)
    return claim is not None and not claim.is_idle
  return (
    processes.is_alive(holder.pid)
    and processes.started(holder.pid) == holder.started
  )


def _read(
  file_system: fs.FileSystem, directory: str, name: str
) -> _Holder | None:
  """What a file of a writer says; None if it is gone by now."""
  match = _NAME.fullmatch(name)
  assert match is not None
  machine, pid, started, _ = match.groups()
  holder = _Holder(name=name, machine=machine, pid=int(pid), started=started)
  try:
    text = file_system.read_bytes(fs.join(directory, name))
  except FileNotFoundError:
    return None
  try:
    told = json.loads(text)
    its = told.get('generation')
    return dataclasses.replace(
      holder,
      text=text,
      host=str(told['host']),
      since_s=float(told['since_s']),
      until_s=float(told['until_s']),
      path=str(told['path']),
      generation=Generation(**its) if its else None,
    )
  except (ValueError, TypeError, KeyError, AttributeError):
    return dataclasses.replace(holder, text=text)  # torn
