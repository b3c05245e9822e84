"""Fresh host memory in large blocks, in huge pages where those are cheap.

The system has to find and clear a new page: one of 2 MiB takes 0.1 ms, 512
small ones 0.7 ms. Not everywhere: a virtual machine whose free memory went back
to its host takes 4 to 9 ms for a huge page that it has not had before. So only
memory that is used again and again is in huge pages, and only while they prove
cheap; what a state is restored into is touched once, while others read.
"""

import contextlib
import ctypes
import mmap
import time

import numpy as np

from paxlike.core import fs

HUGE_PAGE_BYTES = 1 << 21
_SLAB_BYTES = 64 << 20
_SLOW_PAGE_S = 1e-3
# That many slow pages, each fast one making up for one, and it is enough.
_MOST_SLOW = 3
# Linux 5.14: brings pages in and leaves alone what is in them.
_MADV_POPULATE_WRITE = 23


def round_up(value: int, multiple: int) -> int:
  """The least multiple that is not below `value`."""
  return -(-value // multiple) * multiple


def page_aligned(size_bytes: int, *, is_huge: bool = True) -> np.ndarray:
  """Fresh zeros, uint8, from a page's boundary; no page is there yet.

  Args:
    size_bytes: How many.
    is_huge: Whether to ask for huge pages; else it is as the system's
      settings have it.
  """
  if not size_bytes:
    return np.empty(0, np.uint8)
  flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
  block = mmap.mmap(-1, round_up(size_bytes, HUGE_PAGE_BYTES), flags=flags)
  if is_huge and hasattr(mmap, 'MADV_HUGEPAGE'):
    # A kernel without huge pages is slower, not wrong.
    with contextlib.suppress(OSError):
      block.madvise(mmap.MADV_HUGEPAGE)
  return np.frombuffer(block, np.uint8)[:size_bytes]


def fault_in(block: np.ndarray) -> bool:
  """Has the system bring in the pages of what `page_aligned` gave.

  Goes on with small pages where huge ones prove slow.

  Returns:
    False if the kernel cannot do this: the pages then come at first use.
  """
  num_slow = 0
  is_refused = False
  for first in range(0, block.size, HUGE_PAGE_BYTES):
    if num_slow >= _MOST_SLOW and not is_refused:
      _advise(block[first:], mmap.MADV_NOHUGEPAGE)
      is_refused = True
    started_s = time.perf_counter()
    if not _advise(
      block[first : first + HUGE_PAGE_BYTES], _MADV_POPULATE_WRITE
    ):
      return False
    is_slow = time.perf_counter() - started_s > _SLOW_PAGE_S
    num_slow = max(0, num_slow + (1 if is_slow else -1))
  return True


def _advise(memory: np.ndarray, advice: int) -> bool:
  """Whether the system took advice on some pages."""
  address = ctypes.c_void_p(memory.ctypes.data)
  size = ctypes.c_size_t(round_up(memory.size, fs.BLOCK_BYTES))
  return not ctypes.CDLL(None).madvise(address, size, advice)


class Slabs:
  """Memory for many arrays, each block freed with the last array in it."""

  def __init__(self) -> None:
    self._left = np.empty(0, np.uint8)

  def take(self, size_bytes: int) -> np.ndarray:
    """Memory that begins at a page and is whole pages long."""
    padded = round_up(size_bytes, fs.BLOCK_BYTES)
    if padded > _SLAB_BYTES // 4:
      return page_aligned(padded, is_huge=False)
    if self._left.size < padded:
      self._left = page_aligned(_SLAB_BYTES, is_huge=False)
    taken, self._left = self._left[:padded], self._left[padded:]
    return taken
