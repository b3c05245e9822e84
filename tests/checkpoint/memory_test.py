import numpy as np
import pytest

from paxlike.checkpoint import _memory

_MIB = 1 << 20


def resident_bytes() -> int:
  with open('/proc/self/statm', encoding='ascii') as f:
    return int(f.read().split()[1]) * 4096


@pytest.fixture(params=['fast', 'slow'])
def huge_pages(request, monkeypatch):
  """Huge pages that seem cheap, and such that seem dear."""
  limit_s = {'fast': 60.0, 'slow': -1.0}[request.param]
  monkeypatch.setattr(_memory, '_SLOW_PAGE_S', limit_s)


@pytest.mark.usefixtures('huge_pages')
def test_pages_are_brought_in():
  memory = _memory.page_aligned(64 * _MIB)
  before = resident_bytes()
  assert _memory.fault_in(memory)
  assert resident_bytes() - before > 60 * _MIB
  assert not memory.any()


def test_a_kernel_that_cannot_bring_pages_in_is_no_error(monkeypatch):
  monkeypatch.setattr(_memory, '_MADV_POPULATE_WRITE', 9999)
  memory = _memory.page_aligned(4 * _MIB)
  assert not _memory.fault_in(memory)
  memory[:] = 7
  assert memory.min() == 7


@pytest.mark.parametrize('size', [1, 4095, 4096, 5 * _MIB, 100 * _MIB])
def test_slabs_give_whole_pages_that_nobody_else_has(size):
  slabs = _memory.Slabs()
  first, second = slabs.take(size), slabs.take(size)
  for memory in (first, second):
    assert memory.ctypes.data % 4096 == 0
    assert memory.size >= size
    assert memory.size % 4096 == 0
  assert not np.shares_memory(first, second)


def test_a_slab_is_freed_with_the_last_array_in_it():
  slabs = _memory.Slabs()
  arrays = [slabs.take(8 * _MIB) for _ in range(32)]
  for array in arrays:
    array[:] = 1
  del array
  full = resident_bytes()
  del arrays[:]
  assert full - resident_bytes() > 180 * _MIB


def test_nothing_is_nothing():
  assert _memory.page_aligned(0).size == 0
