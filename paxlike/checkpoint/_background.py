"""The one save that is written behind the loop, and what is removed after it."""

import concurrent.futures
from collections.abc import Callable

from absl import logging

from paxlike.checkpoint import _jobs
from paxlike.core import errors


class Background:
  """Threads that outlive the calls of a manager, and how its last save fares.

  Attributes:
    step: Of the save that was started last, -1 before the first.
  """

  def __init__(self, *, on_save_error: str):
    self.step = -1
    self._on_save_error = on_save_error
    self._writer = concurrent.futures.ThreadPoolExecutor(
      1, thread_name_prefix='checkpoint-commit'
    )
    self._remover = concurrent.futures.ThreadPoolExecutor(
      1, thread_name_prefix='checkpoint-remove'
    )
    self._preparing: concurrent.futures.Future[None] | None = None
    self._saving: concurrent.futures.Future[_jobs.Committed] | None = None

  @property
  def has_save(self) -> bool:
    """Whether there is a save whose outcome nobody has taken yet."""
    return self._saving is not None

  @property
  def is_saving(self) -> bool:
    """Whether a save is still being written."""
    return self._saving is not None and not self._saving.done()

  def prepare(self, work: Callable[[], None]) -> None:
    """Readies memory; the next `wait` waits for it too."""
    self._preparing = self._writer.submit(work)

  def save(self, step: int, work: Callable[[], _jobs.Committed]) -> None:
    """Starts a save, when there is no other."""
    assert self._saving is None
    self.step = step
    self._saving = self._writer.submit(work)

  def remove(self, work: Callable[[], None]) -> None:
    """Takes away what has been hidden; nobody but `close` waits for that."""
    self._remover.submit(work)

  def wait(self) -> None:
    """Blocks until nothing is being written."""
    if self._preparing is not None:
      # Touching a page writes to it.
      preparing, self._preparing = self._preparing, None
      preparing.result()
    if self._saving is not None:
      concurrent.futures.wait([self._saving])

  def let_go(self) -> None:
    """Waits for a save whose outcome the caller has from elsewhere."""
    assert self._saving is not None
    concurrent.futures.wait([self._saving])
    self._saving = None

  def take(self, *, raises: bool) -> _jobs.Committed | None:
    """The outcome of a save that has ended, once.

    Args:
      raises: Whether to raise its error. Only calls that wait may: they do so
        at the same place of the program on every process, however far each
        one's writer has come.

    Returns:
      What was committed; None if there is nothing new to tell.

    Raises:
      SaveError: It failed, and that stops the run.
    """
    if self._saving is None or not self._saving.done():
      return None
    if not raises and self._saving.exception() is not None:
      return None
    saved, self._saving = self._saving, None
    try:
      return saved.result()
    except errors.SaveError as e:
      if self._on_save_error == 'stop' or isinstance(
        e.__cause__, errors.SyncError | errors.CheckpointBusyError
      ):
        raise
      logging.error('%s Training goes on.', e)
      logging.debug('Where saving failed:', exc_info=e)
    return None

  def close(self) -> None:
    """Waits for all that was started."""
    self._writer.shutdown()
    self._remover.shutdown()
