"""Host memory that a state is copied into, and who may write from it when.

Promises: once `Staging.fill` returns, nothing that the trainer does to the
state (donation, deletion, writing into NumPy arrays) can change what is
written. The memory is kept and used again: copying into pages never touched
before is six to ten times slower.
"""

import collections
import contextlib
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paxlike.core import errors, fs

_HUGE_PAGE = 1 << 21
# How many device arrays travel to the host ahead of the copy.
_LOOKAHEAD = 8
_SLAB_BYTES = 64 << 20


def round_up(value: int, multiple: int) -> int:
  """The least multiple that is not below `value`."""
  return -(-value // multiple) * multiple


class Arena:
  """One block of page-aligned host memory that is used save after save."""

  def __init__(self, *, max_bytes: int | None = None):
    self._max_bytes = max_bytes
    self._memory = np.empty(0, np.uint8)

  def take(self, size_bytes: int) -> np.ndarray:
    """The first `size_bytes` of the memory, which grows to hold them.

    Raises:
      SaveError: That is more than the limit.
    """
    if self._max_bytes is not None and size_bytes > self._max_bytes:
      raise errors.SaveError(
        f'Staging this state takes {size_bytes} bytes of host memory on this '
        f'process and checkpoint_p.max_host_bytes allows {self._max_bytes}. '
        'Raise it, or shard the state over more processes.'
      )
    if self._memory.size < size_bytes:
      self._memory = np.empty(0, np.uint8)
      self._memory = _page_aligned(size_bytes)
    return self._memory[:size_bytes]

  def touch(self, size_bytes: int) -> None:
    """Takes memory and touches every page, a little at a time."""
    memory = self.take(size_bytes)
    for first in range(0, size_bytes, _HUGE_PAGE):
      memory[first : first + _HUGE_PAGE] = 0

  @property
  def size_bytes(self) -> int:
    """Memory held."""
    return self._memory.size


def _page_aligned(size_bytes: int) -> np.ndarray:
  if not size_bytes:
    return np.empty(0, np.uint8)
  flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
  block = mmap.mmap(-1, round_up(size_bytes, _HUGE_PAGE), flags=flags)
  if hasattr(mmap, 'MADV_HUGEPAGE'):
    # A kernel without huge pages is slower, not wrong.
    with contextlib.suppress(OSError):
      block.madvise(mmap.MADV_HUGEPAGE)
  return np.frombuffer(block, np.uint8)[:size_bytes]


class Progress:
  """How far the copy has come, for the threads that write behind it."""

  def __init__(self) -> None:
    self._condition = threading.Condition()
    self._done_bytes = 0
    self._error: BaseException | None = None

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


def run_together(
  tasks: Sequence[Callable[[], None]], *, num_threads: int, name: str
) -> None:
  """Runs tasks in their order on several threads and waits for all threads.

  The first failure keeps further tasks from starting; it is raised only when
  every thread has ended, because tasks use memory that the caller frees.
  """
  if num_threads <= 1 or len(tasks) <= 1:
    for task in tasks:
      task()
    return
  waiting = collections.deque(tasks)
  failures: list[BaseException] = []

  def work() -> None:
    while not failures:
      try:
        task = waiting.popleft()
      except IndexError:
        return
      try:
        task()
      except BaseException as e:  # noqa: BLE001 (raised by the caller below)
        failures.append(e)

  threads = [
    threading.Thread(target=work, name=f'{name}-{i}', daemon=True)
    for i in range(min(num_threads, len(tasks)))
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


class Slabs:
  """Fresh memory in large blocks, each freed with the last array in it.

  The system gives a block in huge pages, which it fills several times faster
  than the small ones that an array of its own would get.
  """

  def __init__(self) -> None:
    self._slab = np.empty(0, np.uint8)

  def take(self, size_bytes: int) -> np.ndarray:
    """Memory that begins at a page and is whole pages long."""
    padded = round_up(size_bytes, fs.BLOCK_BYTES)
    if padded > _SLAB_BYTES // 4:
      return aligned_empty(size_bytes)
    if self._slab.size < padded:
      self._slab = _page_aligned(_SLAB_BYTES)
    taken, self._slab = self._slab[:padded], self._slab[padded:]
    return taken


def aligned_empty(size_bytes: int) -> np.ndarray:
  """Fresh memory that begins at a page and is whole pages long."""
  padded = round_up(size_bytes, fs.BLOCK_BYTES)
  raw = np.empty(padded + fs.BLOCK_BYTES, np.uint8)
  skip = -raw.ctypes.data % fs.BLOCK_BYTES
  return raw[skip : skip + padded]
