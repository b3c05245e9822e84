"""Fresh host memory in large blocks, at the price of huge pages.

Most of what a restore costs beside the disk is the system finding and clearing
new pages: a page of 2 MiB takes 0.1 ms, 512 small ones 0.7 ms. Not everywhere:
a virtual machine whose free memory went back to its host takes 4 to 9 ms for a
huge page that it has not had before, and then small pages are the better buy.
"""

import contextlib
import ctypes
import functools
import mmap
import threading
import time
from collections.abc import Iterator

import numpy as np

from paxlike.core import fs

HUGE_PAGE_BYTES = 1 << 21
_SLAB_BYTES = 64 << 20
_PROBE_BYTES = 8 * HUGE_PAGE_BYTES
_SLOW_PAGE_S = 1e-3
# That many slow pages, each fast one making up for one, and it is enough.
_MOST_SLOW = 3
# Linux 5.14: brings pages in and leaves alone what is in them.
_MADV_POPULATE_WRITE = 23


def round_up(value: int, multiple: int) -> int:
  """The least multiple that is not below `value`."""
  return -(-value // multiple) * multiple


class _Prices:
  """What the huge pages of one piece of work cost so far; for one thread."""

  def __init__(self) -> None:
    self._num_slow = 0

  @property
  def are_high(self) -> bool:
    return self._num_slow >= _MOST_SLOW

  def note(self, page_s: float) -> None:
    if not self.are_high:
      change = 1 if page_s > _SLOW_PAGE_S else -1
      self._num_slow = max(0, self._num_slow + change)


def page_aligned(size_bytes: int) -> np.ndarray:
  """Fresh zeros, uint8, from a huge page's boundary; no page is there yet."""
  if not size_bytes:
    return np.empty(0, np.uint8)
  flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
  block = mmap.mmap(-1, round_up(size_bytes, HUGE_PAGE_BYTES), flags=flags)
  if hasattr(mmap, 'MADV_HUGEPAGE'):
    # A kernel without huge pages is slower, not wrong.
    with contextlib.suppress(OSError):
      block.madvise(mmap.MADV_HUGEPAGE)
  return np.frombuffer(block, np.uint8)[:size_bytes]


def fault_in(*blocks: np.ndarray, prices: _Prices | None = None) -> bool:
  """Has the system bring in the pages of what `page_aligned` gave.

  What is in the memory remains, so others may fill it meanwhile. Goes on with
  small pages where huge ones prove slow.

  Args:
    *blocks: The memory.
    prices: What is known of huge pages before, if anything is.

  Returns:
    False if the kernel cannot do this: the pages then come at first use.
  """
  waiting = [
    block[first : first + HUGE_PAGE_BYTES]
    for block in blocks
    for first in range(0, block.size, HUGE_PAGE_BYTES)
  ]
  prices = prices or _Prices()
  refused = False
  for i, page in enumerate(waiting):
    if prices.are_high and not refused:
      # At once for all, before others come to them.
      for later in waiting[i:]:
        _advise(later, mmap.MADV_NOHUGEPAGE)
      refused = True
    started_s = time.perf_counter()
    if not _advise(page, _MADV_POPULATE_WRITE):
      return False
    prices.note(time.perf_counter() - started_s)
  return True


def _advise(memory: np.ndarray, advice: int) -> bool:
  """Whether the system took advice on some pages."""
  address = ctypes.c_void_p(memory.ctypes.data)
  size = ctypes.c_size_t(round_up(memory.size, fs.BLOCK_BYTES))
  return not ctypes.CDLL(None).madvise(address, size, advice)


class Slabs:
  """Memory for many arrays, each block freed with the last array in it."""

  def __init__(self) -> None:
    self._blocks: list[np.ndarray] = []
    self._left = np.empty(0, np.uint8)

  def take(self, size_bytes: int) -> np.ndarray:
    """Memory that begins at a page and is whole pages long."""
    padded = round_up(size_bytes, fs.BLOCK_BYTES)
    if padded > _SLAB_BYTES // 4:
      self._blocks.append(page_aligned(padded))
      return self._blocks[-1]
    if self._left.size < padded:
      self._left = page_aligned(_SLAB_BYTES)
      self._blocks.append(self._left)
    taken, self._left = self._left[:padded], self._left[padded:]
    return taken

  @contextlib.contextmanager
  def coming_in(self) -> Iterator[None]:
    """Brings in the pages of all that was taken, while others fill it.

    At the end it holds on to none of it.
    """
    blocks, self._blocks = self._blocks, []
    self._left = np.empty(0, np.uint8)
    # What pages cost is best known before others begin to take them.
    prices = _Prices()
    fault_in(*(block[:_PROBE_BYTES] for block in blocks[:1]), prices=prices)
    thread = threading.Thread(
      target=functools.partial(fault_in, *blocks, prices=prices),
      name='checkpoint-pages',
    )
    thread.start()
    try:
      yield
    finally:
      thread.join()
