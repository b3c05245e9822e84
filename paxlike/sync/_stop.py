"""Stopping on request, at the same point of the program on every process.

Every loop of the program asks `poll()` before each step. When any process has
been asked to stop, every process says how many polls it has passed and holds
at its next one; the poll after the most that any has passed is the first that
nobody has passed, and there all stop. That takes milliseconds, needs no
collective, no message in a step, and no bound on how far processes are apart.
"""

import threading
from typing import Any, Protocol, runtime_checkable

from absl import logging

from paxlike.core import errors
from paxlike.sync import _mail
from paxlike.sync import _store as store_lib

_HOLD_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 1.0


@runtime_checkable
class StopRequest(Protocol):
  """Whether this job is to stop; safe from any thread but for `poll`."""

  def ask(self, reason: str) -> None:
    """Asks all processes to stop; asking again changes nothing."""
    ...

  def requested(self) -> str:
    """Why somebody asked, '' if nobody did; may differ between processes.

    For logs and for work that one process does alone; never to decide
    whether to enter a step or a save together.
    """
    ...

  def poll(self) -> bool:
    """Whether to stop here: the same answer on every process.

    Called by the main thread before each step of a loop, training, evaluation
    and decoding alike, and equally often on every process. Once true it
    remains true.
    """
    ...


class SoloStop:
  """The request of a process that is alone."""

  def __init__(self) -> None:
    self._reason = ''

  def ask(self, reason: str) -> None:
    """See StopRequest."""
    if not self._reason:
      self._reason = reason
      logging.warning('Asked to stop (%s).', reason)

  def requested(self) -> str:
    """See StopRequest."""
    return self._reason

  def poll(self) -> bool:
    """See StopRequest."""
    return bool(self._reason)


class SharedStop:
  """The request of one of several processes."""

  def __init__(
    self,
    store: store_lib.Store,
    mail: _mail.Mailbox,
    *,
    process_index: int,
    process_count: int,
    failed: threading.Event,
  ):
    self._store = store
    self._mail = mail
    self._index = process_index
    self._count = process_count
    self._failed = failed
    self._lock = threading.Lock()
    self._reason = ''
    self._passed = 0
    self._stop_after: int | None = None
    self._agreed = threading.Event()
    mail.subscribe('stop asked', self._hear_asked)
    mail.subscribe('stop agreed', self._hear_agreed)

  def ask(self, reason: str) -> None:
    """See StopRequest."""
    if not self._reason:
      self._mail.post('stop asked', by=self._index, reason=reason)

  def requested(self) -> str:
    """See StopRequest."""
    return self._reason

  def poll(self) -> bool:
    """See StopRequest."""
    with self._lock:
      if not self._reason:
        self._passed += 1
        return False
    self._hold()
    assert self._stop_after is not None
    if self._passed >= self._stop_after:
      return True
    self._passed += 1
    return False

  def _hold(self) -> None:
    """Waits until it is agreed where to stop."""
    for _ in range(int(_HOLD_TIMEOUT_S / _LOOK_EVERY_S)):
      if self._agreed.wait(_LOOK_EVERY_S):
        return
      if self._failed.is_set():
        raise errors.PeerFailedError(
          f'Asked to stop ({self._reason}), but another process has failed.'
        )
    raise errors.SyncError(
      f'Asked to stop ({self._reason}), but not every process has said within '
      f'{_HOLD_TIMEOUT_S:.0f} s where it is.'
    )

  def _hear_asked(self, message: dict[str, Any]) -> None:
    with self._lock:
      if self._reason:
        return
      self._reason = f'{message["reason"]} at process {message["by"]}'
      passed = self._passed  # From now on poll() holds.
    logging.warning(
      'Process %d: asked to stop (%s).', self._index, self._reason
    )
    self._store.set(f'stop/passed/{self._index}', str(passed).encode())
    if self._store.increment('stop/told') == self._count:
      told = self._store.list('stop/passed')
      self._mail.post('stop agreed', after=max(map(int, told.values())))

  def _hear_agreed(self, message: dict[str, Any]) -> None:
    self._stop_after = message['after']
    self._agreed.set()
