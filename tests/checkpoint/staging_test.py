"""A state larger than the memory allowed is saved through what there is."""

import errno
import os
import threading

import jax
import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.checkpoint import (
  _config,
  _integrity,
  _staging,
  _state,
  _stores,
)
from paxlike.core import errors, fs
from tests.checkpoint import samples
from tests.fakes import faulty_fs
from tests.fakes import world as fake_world

MIB = 1 << 20
LIMIT = 8 * MIB


def large(seed=0):
  """26 MB: one array larger than the limit, middling ones and small ones."""
  rng = np.random.default_rng(seed)

  def random(*shape):
    return rng.integers(0, 1 << 30, shape, np.int32)

  return {
    'huge': random(3, 1024, 1025),
    'middling': [random(1000, 257) for _ in range(12)],
    'small': [random(n) for n in range(50)],
    'step': seed,
  }


def manager(directory, *, kind='GDA', disk=None, world=None, **config):
  return checkpoint.CheckpointManager(
    directory,
    config=checkpoint.CheckpointConfig(
      type=kind, max_host_bytes=LIMIT, **config
    ),
    file_system=disk,
    world=world,
  )


class WholeParts(fs.LocalFileSystem):
  """A disk that takes files in one piece, as an object store does."""

  whole_parts = True


class SmallParts(fs.LocalFileSystem):
  """A disk of many small files."""

  part_bytes = 3 * MIB - 4096
  num_threads = 4


@pytest.mark.parametrize('disk', [fs.LocalFileSystem, WholeParts, SmallParts])
def test_a_state_larger_than_the_memory_comes_back(tmp_path, caplog, disk):
  with manager(tmp_path, disk=disk()) as m:
    m.prepare(large())
    for step in (1, 2, 3):
      assert m.save(step, large(step))
      assert m._arena.size_bytes <= LIMIT
    m.wait()
    for step in (1, 2, 3):
      samples.assert_equal(m.restore(large(), step=step).state, large(step))
  assert caplog.text.count('a part at a time') == 1


def test_what_changes_after_such_a_save_is_not_saved(tmp_path):
  state = large(1)
  with manager(tmp_path) as m:
    m.save(1, state)
    state['huge'][:] = -1
    state['small'][40][:] = -1
    m.wait()
    samples.assert_equal(m.restore(large()).state, large(1))


def test_sharded_arrays_go_through_little_memory(tmp_path):
  on = samples.mesh(4, 2)
  rng = np.random.default_rng(0)
  state = {
    'a': samples.put(rng.standard_normal((1024, 4096), np.float32), on, 'data'),
    'b': samples.put(rng.standard_normal((512, 999), np.float32), on),
  }
  with manager(tmp_path) as m:
    m.save(1, state)
    samples.assert_equal(m.restore(samples.abstract(state)).state, state)


def written(state, memory_bytes, disk, directory):
  """The files of a state whose copy goes through so much memory."""
  directory.mkdir()
  staged, _ = _stores.stage(
    _config.CheckpointType.GDA,
    _state.take_apart(state),
    _staging.Arena(max_bytes=memory_bytes),
    step=1,
    process=0,
    file_system=disk,
  )
  result = []
  thread = threading.Thread(
    target=lambda: result.append(
      staged.write(disk, str(directory), process=0, attempt=bytes(16), tag='')
    )
  )
  thread.start()
  staged.fill()
  thread.join(30)
  assert len(result) == 1
  return {p.name: p.read_bytes() for p in directory.iterdir()}


@pytest.mark.parametrize('disk', [fs.LocalFileSystem(), SmallParts()])
@pytest.mark.parametrize('memory_bytes', [LIMIT, 9 * MIB + 12345, 24 * MIB])
def test_the_files_are_the_same_whatever_the_memory(
  tmp_path, disk, memory_bytes
):
  expected = written(large(), None, disk, tmp_path / 'whole')
  assert written(large(), memory_bytes, disk, tmp_path / 'parts') == expected


def test_the_disk_does_not_wait_for_sums(tmp_path, monkeypatch):
  class OneAtATime(fs.LocalFileSystem):
    num_threads = 1

  disk = faulty_fs.FaultyFileSystem()
  expected = written(large(), None, disk, tmp_path / 'expected')
  num_writes = sum(call.method == 'write_at' for call in disk.calls)
  is_written = threading.Event()
  block_crcs = _integrity.block_crcs

  def slow(data):
    assert is_written.wait(30)
    return block_crcs(data)

  class Telling(OneAtATime):
    def create(self, path, size_bytes):
      return TellingWriter(super().create(path, size_bytes))

  class TellingWriter:
    def __init__(self, inner):
      self._inner = inner
      self._count = 0
      self.finish, self.abort = inner.finish, inner.abort

    def write_at(self, offset, data):
      self._inner.write_at(offset, data)
      self._count += 1
      if self._count == num_writes:
        is_written.set()

  monkeypatch.setattr(_integrity, 'block_crcs', slow)
  assert written(large(), None, Telling(), tmp_path / 'here') == expected


def test_the_copy_is_done_before_its_sums_begin(tmp_path, monkeypatch):
  events = []
  block_crcs, flat_bytes = _integrity.block_crcs, _staging.flat_bytes

  def copying(value):
    events.append('copy')
    return flat_bytes(value)

  def summing(data):
    events.append('sum')
    return block_crcs(data)

  monkeypatch.setattr(_staging, 'flat_bytes', copying)
  monkeypatch.setattr(_integrity, 'block_crcs', summing)
  written(large(), None, fs.LocalFileSystem(), tmp_path / 'here')
  assert events.count('sum') > 10
  assert events == sorted(events)


@pytest.mark.parametrize(
  'method', ['make_dirs', 'create', 'write_at', 'finish']
)
def test_a_writer_that_fails_does_not_hold_up_the_copy(tmp_path, method):
  broken = []
  disk = faulty_fs.FaultyFileSystem(
    faulty_fs.FailWhen(
      lambda _, call: bool(broken) and call.method == method,
      lambda: OSError(errno.ENOSPC, 'No space left on device'),
    )
  )
  with manager(tmp_path, disk=disk) as m:
    m.save(1, large(1))
    m.wait()
    broken.append(True)
    assert m.save(2, large(2))
    with pytest.raises(errors.SaveError, match='No space left'):
      m.save(3, large(3))
    broken.clear()
    assert m.save(3, large(3))
    samples.assert_equal(m.restore(large()).state, large(3))
    assert m.steps() == [1, 3]


def test_two_processes_save_through_little_memory(tmp_path, monkeypatch):
  from paxlike.checkpoint import _boxes

  _boxes.clear_caches()
  monkeypatch.setattr(_boxes, 'process_of', lambda device: device.id // 4)
  on = samples.mesh(8)
  values = np.random.default_rng(0).standard_normal((8, 1 << 20), np.float32)
  state = {'x': samples.put(values, on, 'data')}

  def job(world):
    broken = []
    disk = faulty_fs.FaultyFileSystem(
      faulty_fs.FailWhen(
        lambda _, call: (
          bool(broken) and call.method == 'write_at' and world.process_index
        ),
        lambda: OSError(errno.ENOSPC, 'No space left on device'),
      )
    )
    with manager(tmp_path, disk=disk, world=world) as m:
      m.save(1, state)
      samples.assert_equal(m.restore(samples.abstract(state)).state, state)
      broken.append(True)
      m.save(2, state)
      with pytest.raises(errors.SaveError, match=r'process 1 failed.*No space'):
        m.wait()
      broken.clear()
      m.save(3, state)
      m.wait()
      return m.steps()

  try:
    assert fake_world.run(2, job) == [[1, 3]] * 2
  finally:
    _boxes.clear_caches()


@pytest.mark.parametrize('kind', ['FLAX', 'MULTI_HOST_FLAX'])
def test_a_flax_file_that_needs_more_memory_is_refused_before_training(
  tmp_path, kind
):
  def job(world):
    with (
      manager(tmp_path, kind=kind, world=world) as m,
      pytest.raises(errors.ConfigError, match=r'max_host_bytes.*GDA'),
    ):
      m.prepare(large())
    return True

  assert fake_world.run(2, job) == [True, True]
  assert not list(tmp_path.glob('*checkpoint_*'))


def test_a_process_that_writes_no_flax_file_takes_no_memory(tmp_path):
  def job(world):
    with checkpoint.CheckpointManager(
      tmp_path, config=checkpoint.CheckpointConfig(type='FLAX'), world=world
    ) as m:
      m.prepare(large())
      return m._arena.size_bytes > 0

  assert fake_world.run(2, job) == [True, False]


def test_memory_that_the_host_has_not_is_a_clear_error_before_training(
  tmp_path,
):
  state = {'x': jax.ShapeDtypeStruct((1 << 50,), np.float32)}
  with (
    checkpoint.CheckpointManager(tmp_path) as m,
    pytest.raises(errors.SaveError, match=r'cannot give.*max_host_bytes'),
  ):
    m.prepare(state)


# --- a copy that cannot be made


class NoMemory(_staging.Arena):
  """An arena of a host that has no memory left."""

  def take(self, size_bytes):
    raise MemoryError(f'no {size_bytes} bytes')


@pytest.mark.parametrize('async_save', [False, True])
@pytest.mark.parametrize('on_save_error', ['stop', 'warn'])
@pytest.mark.parametrize('kind', ['GDA', 'MULTI_HOST_FLAX'])
def test_a_process_that_cannot_copy_is_told_to_all_at_once(
  tmp_path, kind, on_save_error, async_save
):
  def job(world):
    with checkpoint.CheckpointManager(
      tmp_path,
      config=checkpoint.CheckpointConfig(
        type=kind, on_save_error=on_save_error, async_save=async_save
      ),
      world=world,
    ) as m:
      m.save(1, {'x': np.zeros(9)})
      m.wait()
      arena = m._arena
      if world.process_index == 1:
        m._arena = NoMemory()
      text = ''
      try:
        m.save(2, {'x': np.ones(9)})
        m.wait()
      except errors.SaveError as e:
        text = str(e)
      m._arena = arena
      m.save(3, {'x': np.ones(9)})
      m.wait()
      return text, m.steps()

  found = fake_world.run(2, job)
  assert [steps for _, steps in found] == [[1, 3]] * 2
  for text, _ in found:
    if on_save_error == 'stop':
      assert 'process 1 failed with MemoryError' in text
    else:
      assert not text
  assert not [n for n in os.listdir(tmp_path) if n.startswith('tmp_')]


def test_a_mistake_on_one_process_is_raised_there_and_told_to_the_other(
  tmp_path,
):
  def job(world):
    with checkpoint.CheckpointManager(tmp_path, world=world) as m:
      try:
        m.save(1, {'x': object() if world.process_index else 1})
        m.wait()
      except errors.PaxlikeError as e:
        return e
    return None

  first, second = fake_world.run(2, job, return_errors=True)
  assert isinstance(first, errors.SaveError)
  assert "process 1 failed with ConfigError: State leaf 'x'" in str(first)
  assert isinstance(second, errors.ConfigError)


def test_a_donated_state_is_told_at_the_next_call(tmp_path):
  state = samples.small()
  jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)(state)
  with checkpoint.CheckpointManager(tmp_path) as m:
    assert m.save(1, state)
    with pytest.raises(errors.SaveError, match='deleted'):
      m.wait()
