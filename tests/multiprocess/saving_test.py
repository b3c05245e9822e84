"""Saves of two real processes: one decision, one error, no mixed-up meetings."""

import os
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.core import clock as clocks
from tests.fakes import faulty_fs
from tests.multiprocess import harness, sync_jobs

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

_JOBS = 'tests.multiprocess.saving_test'


def _state(step):
  return {'w': jnp.full((8,), float(step)), 'step': step}


class _Ahead(clocks.SystemClock):
  """A clock that is put 90 s forward a second after the start."""

  def __init__(self):
    self._start_s = time.monotonic()

  def _jump_s(self):
    return 90.0 if time.monotonic() - self._start_s > 1.0 else 0.0

  def now_s(self):
    return super().now_s() + self._jump_s()

  def monotonic_s(self):
    return super().monotonic_s() + self._jump_s()


class _NeverDue(checkpoint.SavePolicy):
  """Disagrees with the policy of the other process."""

  def due(self, *, steps_since, s_since):
    return False


def decides_otherwise(world, directory, what):
  """Process 1 has its own opinion of when to save."""
  is_other = world.process_index == 1
  make = checkpoint.SavePolicy
  if is_other and what == 'policy':
    make = _NeverDue
  clock = _Ahead() if is_other and what == 'clock' else clocks.SYSTEM
  saved = []
  with checkpoint.CheckpointManager(
    directory,
    save_policy=make(every_steps=10_000, every_s=0.8),
    keep_policy=checkpoint.KeepPolicy(max_to_keep=None),
    clock=clock,
  ) as manager:
    for step in range(1, 41):
      sync_jobs.collective()
      time.sleep(0.1)
      if manager.should_save(step):
        manager.save(step, _state(step))
        saved.append(step)
    manager.wait()
    assert manager.steps() == saved
  print(f'saved {saved}', flush=True)


@pytest.mark.parametrize('what', ['clock', 'policy'])
def test_processes_of_two_minds_save_the_same_steps(tmp_path, what):
  ended = harness.run(f'{_JOBS}:decides_otherwise', 2, str(tmp_path), what)
  assert [p.status for p in ended] == [0, 0], ended[1].output
  lines = {re.search(r'saved \[.*\]', p.output)[0] for p in ended}
  assert len(lines) == 1
  steps = [int(step) for step in re.findall(r'\d+', lines.pop())]
  # The first at once, then at least 8 steps apart: no burst of them.
  assert steps[0] == 1
  assert 3 <= len(steps) <= 6
  assert sorted(os.listdir(tmp_path)) == [
    *(f'checkpoint_{step:08d}' for step in steps),
    'checkpoints.pb',
  ]


def cannot_write_on_one(world, directory):
  """The disk of process 1 is full from the second save on."""
  disk = faulty_fs.FaultyFileSystem(
    faulty_fs.FailWhen(
      lambda _, call: (
        world.process_index == 1
        and call.method == 'create'
        and 'checkpoint_00000004' in call.path
      ),
      lambda: OSError(28, 'No space left on device'),
    )
  )
  with checkpoint.CheckpointManager(directory, file_system=disk) as manager:
    for step in range(1, 10_000):
      world.progress.step(step)
      sync_jobs.collective()
      time.sleep(0.05)
      if step == 4:
        sync_jobs.fault()
      if step % 2 == 0:
        manager.save(step, _sharded(step))


def _sharded(step):
  """Each process writes a part."""
  whole = np.full((8, 4), step, np.float32)
  return {
    'w': jax.make_array_from_callback(
      whole.shape, sync_jobs.sharding(), lambda index: whole[index]
    )
  }


def test_a_disk_that_is_full_on_one_ends_both_and_both_say_which(tmp_path):
  ended = harness.run(f'{_JOBS}:cannot_write_on_one', 2, str(tmp_path))
  harness.assert_all_ended(ended)
  fault_s = ended[0].said_s('the fault is now')
  for process in ended:
    assert process.status == 1, process.output
    assert process.ended_s - fault_s < 15.0
    assert 'Step 4 was not saved' in process.output
    assert 'process 1 failed' in process.output
    assert 'No space left on device' in process.output
  assert sorted(os.listdir(tmp_path)) == [
    'checkpoint_00000002',
    'checkpoints.pb',
  ]


def saves_with_two_managers(world, directory):
  """Parameters and averages, saved at once, in either order of waiting."""
  with (
    checkpoint.CheckpointManager(f'{directory}/params') as params,
    checkpoint.CheckpointManager(f'{directory}/ema') as ema,
  ):
    for step in range(1, 11):
      params.save(step, _sharded(step))
      ema.save(step, _sharded(-step))
      first, second = (ema, params) if step % 2 else (params, ema)
      first.wait()
      second.wait()
    target = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      _sharded(0),
    )
    for manager, value in ((params, 10.0), (ema, -10.0)):
      (shard, *_) = manager.restore(target).state['w'].addressable_shards
      assert (np.asarray(shard.data) == value).all()
  print('both committed', flush=True)


def test_two_managers_save_the_same_steps_at_once(tmp_path):
  ended = harness.run(f'{_JOBS}:saves_with_two_managers', 2, str(tmp_path))
  assert [p.status for p in ended] == [0, 0], ended[0].output
  for process in ended:
    assert 'both committed' in process.output
  for name in ('params', 'ema'):
    assert (tmp_path / name / 'checkpoint_00000010').is_dir()
