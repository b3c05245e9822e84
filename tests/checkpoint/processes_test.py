"""Several processes save and restore as one, or fail as one."""

import contextlib
import os
import threading

import jax
import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.checkpoint import _boxes
from paxlike.core import errors, fs
from tests.checkpoint import samples
from tests.fakes import clock as fake_clock
from tests.fakes import faulty_fs
from tests.fakes import world as fake_world

COUNT = 2


@pytest.fixture(autouse=True)
def _half_of_the_devices_each(monkeypatch):
  """Two processes, played by threads, own four of the eight devices each."""
  _boxes.clear_caches()
  monkeypatch.setattr(_boxes, 'process_of', lambda device: device.id // 4)
  yield
  _boxes.clear_caches()


def manager(directory, world, disk=None, *, keep=None, policy=None, **config):
  options = {k: config.pop(k) for k in ('read_only', 'clock') if k in config}
  return checkpoint.CheckpointManager(
    directory,
    config=checkpoint.CheckpointConfig(**config),
    save_policy=policy,
    keep_policy=checkpoint.KeepPolicy(max_to_keep=keep),
    world=world,
    file_system=disk,
    **options,
  )


def sharded(seed=0):
  on = samples.mesh(8)
  rng = np.random.default_rng(seed)
  return {
    'rows': samples.put(rng.standard_normal((16, 8), np.float32), on, 'data'),
    'whole': samples.put(rng.standard_normal((5,), np.float32), on),
    'host': np.arange(3) + seed,
    'step': seed,
  }


def second_half():
  """A mesh whose every device belongs to process 1."""
  return jax.sharding.Mesh(
    np.array(jax.devices()[4:]),
    ('data',),
    axis_types=(jax.sharding.AxisType.Auto,),
  )


@pytest.mark.parametrize('kind', ['GDA', 'FLAX', 'MULTI_HOST_FLAX'])
def test_what_two_processes_save_each_restores(tmp_path, kind):
  state = sharded()

  def job(world):
    with manager(tmp_path, world, type=kind) as m:
      m.save(1, state, items={'input_state': {'position': 1}})
      m.wait()
      assert m.steps() == [1]
      found = m.restore(samples.abstract(state))
    samples.assert_equal(found.state, state)
    return found.items

  assert fake_world.run(COUNT, job) == [{'input_state': {'position': 1}}] * 2


def test_one_process_restores_what_two_have_saved(tmp_path):
  state = sharded()

  def job(world):
    with manager(tmp_path, world) as m:
      m.save(1, state)

  fake_world.run(COUNT, job)
  with checkpoint.CheckpointManager(tmp_path) as m:
    samples.assert_equal(m.restore(samples.abstract(state)).state, state)


def test_each_byte_is_written_once(tmp_path):
  on = samples.mesh(8)
  values = np.ones((8, 4096), np.float32)
  state = {'x': samples.put(values, on, 'data'), 'y': samples.put(values, on)}

  def job(world):
    with manager(tmp_path, world) as m:
      m.save(1, state)

  fake_world.run(COUNT, job)
  sizes = {
    p.name: p.stat().st_size for p in tmp_path.glob('checkpoint_*/*.data')
  }
  half = values.nbytes // 2
  assert sizes == {
    'p00000.data': 4096 + half + values.nbytes,
    'p00001.data': 4096 + half,
  }


def test_holders_of_replicas_share_the_writing(tmp_path):
  on = samples.mesh(8)
  values = np.ones((512, 1024), np.float32)
  state = {f'x{i}': samples.put(values, on) for i in range(4)}

  def job(world):
    with manager(tmp_path, world) as m:
      m.save(1, state)
      samples.assert_equal(m.restore(samples.abstract(state)).state, state)

  fake_world.run(COUNT, job)
  sizes = [p.stat().st_size for p in tmp_path.glob('checkpoint_*/*.data')]
  assert sizes == [4096 + 2 * values.nbytes] * 2


def test_a_process_that_holds_no_first_replica_writes_no_data(tmp_path):
  state = {'x': samples.put(np.ones((8, 8), np.float32), second_half(), 'data')}

  def job(world):
    with manager(tmp_path, world) as m:
      m.save(1, state)
      return m.restore(samples.abstract(state)).state

  for found in fake_world.run(COUNT, job):
    samples.assert_equal(found, state)
  names = os.listdir(tmp_path / 'checkpoint_00000001')
  assert sorted(names) == [
    'MANIFEST',
    'p00000.index',
    'p00001.data',
    'p00001.index',
  ]


def test_a_reader_opens_only_the_files_it_needs(tmp_path):
  state = sharded()

  def job(world):
    with manager(tmp_path, world) as m:
      m.save(1, state)

  fake_world.run(COUNT, job)
  disk = faulty_fs.FaultyFileSystem()
  on = second_half()
  with checkpoint.CheckpointManager(
    tmp_path, read_only=True, file_system=disk
  ) as m:
    m.restore({'host': np.zeros(3, int)}, only='host')
  opened = {fs.base_name(c.path) for c in disk.calls if c.method == 'open_read'}
  assert opened == {'p00000.data'}
  assert on.size == 4


def test_fifty_saves_in_a_row(tmp_path):
  state = sharded()

  def job(world):
    with manager(tmp_path, world, keep=2) as m:
      for step in range(50):
        m.save(step, state)
      m.wait()
      return m.steps()

  assert fake_world.run(COUNT, job) == [[48, 49]] * 2


def test_processes_that_built_their_dicts_in_other_orders_agree(tmp_path):
  state = sharded()

  def save(where, is_turned):
    def job(world):
      turned = is_turned and world.process_index == 1
      names = list(state)[:: -1 if turned else 1]
      with manager(where, world) as m:
        m.save(1, {name: state[name] for name in names})
        m.wait()
        found = m.restore(samples.abstract(state)).state
      samples.assert_equal(found, state)

    fake_world.run(COUNT, job)
    # Without the page that names the attempt.
    return {p.name: p.read_bytes()[4096:] for p in where.rglob('*.data')}

  straight = save(tmp_path / 'a', False)
  assert len(straight) == 2
  assert save(tmp_path / 'b', True) == straight


def test_two_managers_save_the_same_step_at_once(tmp_path):
  state = sharded()

  def job(world):
    with (
      manager(tmp_path / 'params', world) as one,
      manager(tmp_path / 'ema', world) as two,
    ):
      one.save(1, state)
      two.save(1, state)
      one.wait()
      two.wait()
      return one.steps() + two.steps()

  assert fake_world.run(COUNT, job) == [[1, 1]] * 2


@pytest.mark.parametrize('bad', [0, 1])
@pytest.mark.parametrize('call', ['create', 'write_at', 'finish', 'write_new'])
def test_a_writer_that_fails_fails_on_every_process_by_name(
  tmp_path, bad, call
):
  def job(world):
    is_broken = []
    disk = faulty_fs.FaultyFileSystem(
      faulty_fs.FailWhen(
        lambda _, c: (
          bool(is_broken)
          and c.method == call
          and world.process_index == bad
          and 'tmp_' in c.path
        ),
        lambda: OSError(28, 'No space left on device'),
      )
    )
    with manager(tmp_path, world, disk) as m:
      m.save(1, sharded(1))
      m.wait()
      is_broken.append(1)
      m.save(2, sharded(2))
      try:
        m.save(3, sharded(3))
      except errors.SaveError as e:
        text = str(e)
      is_broken.clear()
      assert m.restore(samples.abstract(sharded())).state['step'] == 1
      m.save(4, sharded(4))
      m.wait()
      return text, m.steps()

  for text, steps in fake_world.run(COUNT, job):
    assert f'process {bad} failed' in text
    assert 'No space left' in text
    assert steps == [1, 4]
  assert not [n for n in os.listdir(tmp_path) if n.startswith('tmp_')]


def test_a_writer_that_hangs_is_named_after_the_deadline(tmp_path):
  released = threading.Event()

  def job(world):
    def wait():
      released.wait(20)

    disk = faulty_fs.FaultyFileSystem(
      faulty_fs.DelayWhen(
        lambda _, c: c.method == 'create' and world.process_index == 1, wait
      )
    )
    m = manager(tmp_path, world, disk, timeout_s=6.0)
    m.save(1, sharded())
    try:
      m.wait()
    except errors.SaveError as e:
      return str(e)
    finally:
      released.set()
      with contextlib.suppress(errors.PaxlikeError):
        m.close()
    return ''

  texts = fake_world.run(COUNT, job, join_timeout_s=60.0)
  assert 'process 1' in texts[0], texts[0]
  assert 'not saved' in texts[0]
  assert not list(tmp_path.glob('checkpoint_*'))


def test_a_save_that_only_process_0_calls_ends_in_an_error(tmp_path):
  def job(world):
    m = manager(tmp_path, world, timeout_s=6.0)
    if world.process_index == 0:
      with pytest.raises(errors.SaveError, match='process 1'):
        m.save(1, sharded())
    m.close()
    return True

  assert fake_world.run(COUNT, job) == [True, True]
  assert not list(tmp_path.glob('checkpoint_*'))


def test_every_process_takes_the_listing_of_process_0(tmp_path):
  def save(world):
    with manager(tmp_path, world) as m:
      m.save(1, sharded(1))
      m.save(2, sharded(2))

  fake_world.run(COUNT, save)

  class Lagging(fs.LocalFileSystem):
    def list_dir(self, path):
      names = super().list_dir(path)
      return [n for n in names if n != 'checkpoint_00000002']

  def look(world):
    disk = Lagging() if world.process_index else None
    with manager(tmp_path, world, disk, read_only=True) as m:
      return m.latest_step(), m.restore(samples.abstract(sharded())).step

  assert fake_world.run(COUNT, look) == [(2, 2)] * 2


def test_clocks_that_differ_save_at_the_same_steps(tmp_path):
  policy = checkpoint.SavePolicy(every_steps=1000, every_s=100.0)

  def job(world):
    clock = fake_clock.FakeClock()
    if world.process_index:
      clock.advance_s(90.0)
    saved = []
    with manager(tmp_path, world, policy=policy, clock=clock) as m:
      m.save(0, {'x': np.zeros(1)})
      if world.process_index:
        clock.advance_s(90.0)
      for step in range(1, 31):
        clock.advance_s(10.0)
        if m.should_save(step):
          m.save(step, {'x': np.zeros(1)})
          saved.append(step)
    return saved

  assert fake_world.run(COUNT, job) == [[10, 20, 30]] * 2


@pytest.mark.parametrize('fallback', [False, True])
def test_damage_that_one_process_meets_is_everyones(tmp_path, fallback):
  def save(world):
    with manager(tmp_path, world) as m:
      m.save(1, sharded(1))
      m.save(2, sharded(2))

  fake_world.run(COUNT, save)

  class Flipping(fs.LocalFileSystem):
    def read_bytes(self, path):
      data = bytearray(super().read_bytes(path))
      if path.endswith('00002/p00001.index'):
        data[-1] ^= 1
      return bytes(data)

  def job(world):
    disk = Flipping() if world.process_index else None
    with manager(tmp_path, world, disk, read_only=True, fallback=fallback) as m:
      try:
        return m.restore(samples.abstract(sharded())).step
      except errors.CheckpointDamagedError as e:
        return str(e)

  found = fake_world.run(COUNT, job)
  if fallback:
    assert found == [1, 1]
  else:
    assert all('p00001.index' in text for text in found)
    assert all('process 1' in text for text in found)


def test_meetings_do_not_grow_with_the_number_of_processes(tmp_path):
  def job(world):
    calls = []

    class Counting:
      """The world, telling of each meeting."""

      def __getattr__(self, name):
        if name == 'scoped':
          return lambda prefix: self
        if name in ('barrier', 'broadcast', 'gather'):
          calls.append(name)
        return getattr(world, name)

    with manager(tmp_path / str(world.process_count), Counting()) as m:
      m.save(1, {'x': np.zeros(3)})
      m.wait()
      calls.clear()
      m.save(2, {'x': np.zeros(3)})
      m.wait()
      return tuple(calls)

  found = set(fake_world.run(2, job) + fake_world.run(4, job))
  assert found == {('broadcast', 'gather', 'broadcast')}
