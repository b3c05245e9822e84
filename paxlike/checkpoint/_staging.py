"""Host memory that a state is copied into, and who may write from it when.

Promises: once `Staging.fill` returns, nothing that the trainer does to the
state (donation, deletion, writing into NumPy arrays) can change what is
written. The memory is kept and used again: copying into pages never touched
before is six to ten times slower.
"""

import bisect
import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import logging

from paxlike.checkpoint import _memory
from paxlike.core import errors

# How many device arrays travel to the host ahead of the copy.
_LOOKAHEAD = 8


class Arena:
  """One block of page-aligned host memory that is used save after save.

  Attributes:
    max_bytes: The most that it may hold; None for as much as is asked for.
  """

  def __init__(self, *, max_bytes: int | None = None):
    self.max_bytes = max_bytes
    self._memory = np.empty(0, np.uint8)
    self._has_told = False

  def take(self, size_bytes: int) -> np.ndarray:
    """The first `size_bytes` of the memory, which grows to hold them.

    Raises:
      SaveError: The host has not so much.
    """
    if self._memory.size < size_bytes:
      self._memory = np.empty(0, np.uint8)
      try:
        self._memory = _memory.page_aligned(size_bytes)
      except (MemoryError, OSError) as e:
        raise errors.SaveError(
          f'This host cannot give {size_bytes} bytes of memory for the copy '
          f'of the state: {e}. Set checkpoint_p.max_host_bytes to what it '
          'can, or shard the state over more processes.'
        ) from e
    return self._memory[:size_bytes]

  def tell_window(self, size_bytes: int) -> None:
    """Says, once, that the state is copied a part at a time, and why."""
    if not self._has_told:
      self._has_told = True
      logging.warning(
        'The copy of the state takes %d bytes on this process and '
        'checkpoint_p.max_host_bytes allows %s: it is copied and written a '
        'part at a time, and each save holds up training for most of the '
        'writing.',
        size_bytes,
        self.max_bytes,
      )

  def touch(self) -> None:
    """Touches every page of what was taken, a little at a time."""
    if not _memory.fault_in(self._memory):
      for first in range(0, self._memory.size, _memory.HUGE_PAGE_BYTES):
        self._memory[first : first + _memory.HUGE_PAGE_BYTES] = 0

  @property
  def size_bytes(self) -> int:
    """Memory held."""
    return self._memory.size


class Progress:
  """How far the copy has come, and how far those who write behind it."""

  def __init__(self) -> None:
    self._condition = threading.Condition()
    self._done_bytes = 0
    self._error: BaseException | None = None
    # Where each task begins that is not done; nothing is before the first.
    self._open_begins = [0]
    self._is_abandoned = False

  def advance(self, done_bytes: int) -> None:
    """Says that everything before `done_bytes` is copied."""
    with self._condition:
      self._done_bytes = done_bytes
      self._condition.notify_all()

  def fail(self, error: BaseException) -> None:
    """Says that the copy will never be whole."""
    with self._condition:
      self._error = error
      self._condition.notify_all()

  def wait_for(self, needed_bytes: int) -> None:
    """Blocks until everything before `needed_bytes` is copied."""
    with self._condition:
      self._condition.wait_for(
        lambda: self._error or self._done_bytes >= needed_bytes
      )
      if self._error:
        raise errors.SaveError(
          f'Copying the state to host memory failed: {self._error!r}.'
        ) from self._error

  # --- where the copy goes round in memory smaller than the state

  def expect(self, begins: Sequence[int]) -> None:
    """Says where the tasks begin that read the copy, once they are known."""
    with self._condition:
      self._open_begins = sorted(begins)
      self._condition.notify_all()

  def finish(self, begin: int) -> None:
    """Says that a task that begins there needs its part no more."""
    with self._condition:
      del self._open_begins[bisect.bisect_left(self._open_begins, begin)]
      self._condition.notify_all()

  def abandon(self) -> None:
    """Says that nobody will read the copy, whatever is missing of it."""
    with self._condition:
      self._is_abandoned = True
      self._condition.notify_all()

  def wait_for_room(self, needed: int) -> bool:
    """Blocks until no open task begins before `needed`.

    Returns:
      False if the copy was abandoned, so that there is no use in more of it.
    """
    with self._condition:
      self._condition.wait_for(
        lambda: (
          self._is_abandoned
          or not self._open_begins
          or self._open_begins[0] >= needed
        )
      )
      return not self._is_abandoned


def run_together(
  tasks: Sequence[Callable[[], None]],
  *,
  num_threads: int,
  name: str,
  aside: Sequence[Callable[[], None]] = (),
) -> None:
  """Runs tasks in their order on several threads and waits for all threads.

  The first failure keeps further tasks from starting; it is raised only when
  every thread has ended, because tasks use memory that the caller frees.

  Args:
    tasks: What to run.
    num_threads: On how many threads.
    name: What the threads are called.
    aside: Further tasks, which one more thread runs in their order meanwhile.
  """
  if not aside and (num_threads <= 1 or len(tasks) <= 1):
    for task in tasks:
      task()
    return
  failures: list[BaseException] = []

  def work(waiting: collections.deque[Callable[[], None]]) -> None:
    while not failures:
      try:
        task = waiting.popleft()
      except IndexError:
        return
      try:
        task()
      except BaseException as e:  # noqa: BLE001 (raised by the caller below)
        failures.append(e)

  shared = collections.deque(tasks)
  queues = [shared] * min(num_threads, len(tasks))
  queues += [collections.deque(aside)] if aside else []
  threads = [
    threading.Thread(
      target=work, args=(queue,), name=f'{name}-{i}', daemon=True
    )
    for i, queue in enumerate(queues)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  if failures:
    raise failures[0]


def prefetch(values: Sequence[Any], at: int) -> None:
  """Starts the transfer to the host of the device arrays that come next."""
  import jax

  # On CPU the copy out of a device array is all there is.
  if not values or _platform(values[at]) == 'cpu':
    return
  for value in values[at if not at else at + _LOOKAHEAD : at + _LOOKAHEAD + 1]:
    if isinstance(value, jax.Array):
      value.copy_to_host_async()


def _platform(value: Any) -> str:
  import jax

  if not isinstance(value, jax.Array):
    return 'cpu'
  return next(iter(value.devices())).platform


def flat_bytes(value: Any) -> np.ndarray:
  """The bytes of an array in C order, without a copy where it has them so."""
  array = np.ascontiguousarray(value)
  if array.dtype.byteorder == '>':
    array = array.astype(array.dtype.newbyteorder('<'))
  return array.reshape(-1).view(np.uint8)
