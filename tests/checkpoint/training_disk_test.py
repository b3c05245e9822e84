"""A training run whose disk is full does what its configuration says."""

import contextlib
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest

from paxlike import checkpoint, inputs, reporting
from paxlike.core import errors
from paxlike.runners import train
from tests.fakes import disks, tiny_task

pytestmark = pytest.mark.skipif(
  os.geteuid() != 0, reason='only root mounts disks'
)
NUM_STEPS = 8


@pytest.fixture
def job_log_dir() -> Iterator[pathlib.Path]:
  """A job whose checkpoints go to a real disk with room for a few steps."""
  with (
    tempfile.TemporaryDirectory() as path,
    disks.mounted(pathlib.Path(path) / 'checkpoints', size='80k'),
  ):
    yield pathlib.Path(path)


def enlarge(job_log_dir):
  directory = job_log_dir / 'checkpoints'
  subprocess.run(['mount', '-o', 'remount,size=8m', directory], check=True)


def run(job_log_dir, source=None, *, num_steps=NUM_STEPS, **config):
  return train.train_and_evaluate_spmd_model(
    tiny_task.make_task(
      num_train_steps=num_steps,
      save_interval_steps=1,
      summary_interval_steps=1,
      save_max_to_keep=None,
    ),
    source or tiny_task.make_input(),
    str(job_log_dir),
    checkpoint_p=checkpoint.CheckpointConfig(**config),
  )


def whole_steps(job_log_dir):
  """Every step there, after it has proved that it restores."""
  directory = job_log_dir / 'checkpoints'
  with checkpoint.CheckpointManager(directory, read_only=True) as manager:
    steps = manager.steps()
    for step in steps:
      assert int(manager.restore(step=step).state['step']) == step
  assert not [n for n in os.listdir(directory) if n.startswith('tmp_')]
  return steps


def trained(job_log_dir):
  lines = reporting.read_metrics(str(job_log_dir), 'train')
  return [line['step'] for line in lines]


@pytest.mark.parametrize('async_save', [False, True])
@pytest.mark.parametrize('kind', ['GDA', 'FLAX', 'MULTI_HOST_FLAX'])
def test_a_run_told_to_stop_ends_with_what_is_wrong_and_goes_on_later(
  job_log_dir, kind, async_save
):
  with pytest.raises(errors.SaveError, match='No space left on dev') as caught:
    run(job_log_dir, type=kind, async_save=async_save)
  assert f"'{job_log_dir}/checkpoints/tmp_" in str(caught.value)
  assert 'Make room there.' in str(caught.value)
  status = reporting.read_status(str(job_log_dir), 'train')
  assert status.state == 'failed'
  assert 'No space left on device' in status.reason
  steps = whole_steps(job_log_dir)
  assert 1 <= len(steps) < NUM_STEPS
  assert max(trained(job_log_dir)) < NUM_STEPS
  # Once there is room the same command ends well, on the same numbers.
  enlarge(job_log_dir)
  again = run(job_log_dir, type=kind, async_save=async_save)
  assert whole_steps(job_log_dir)[-1] == NUM_STEPS
  with tempfile.TemporaryDirectory() as other:
    straight = run(pathlib.Path(other), type=kind)
  np.testing.assert_array_equal(
    np.asarray(again.state.mdl_vars['params']['kernel']),
    np.asarray(straight.state.mdl_vars['params']['kernel']),
  )


@pytest.mark.parametrize('async_save', [False, True])
def test_a_run_told_to_go_on_trains_on_and_saves_once_there_is_room(
  job_log_dir, caplog, async_save
):
  # Data is read some steps ahead, and the disk has to be full before.
  num_steps = 40

  class Enlarging(inputs.ArraysInput):
    """Data that comes with a larger disk, after most of the steps."""

    def read(self, position, rows):
      if position == num_steps - 3:
        enlarge(job_log_dir)
      return super().read(position, rows)

  arrays = tiny_task.make_input().arrays
  source = Enlarging(name='tiny', batch_size=4, is_training=True, arrays=arrays)
  run(
    job_log_dir,
    source,
    num_steps=num_steps,
    on_save_error='warn',
    async_save=async_save,
  )
  assert trained(job_log_dir) == list(range(1, num_steps + 1))
  assert reporting.read_status(str(job_log_dir), 'train').state == 'done'
  assert 'No space left on device' in caplog.text
  assert 'Training goes on.' in caplog.text
  assert 'Traceback' not in caplog.text
  steps = whole_steps(job_log_dir)
  assert steps[-1] == num_steps
  assert len(steps) < num_steps


@pytest.mark.parametrize('on_save_error', ['stop', 'warn'])
def test_a_job_whose_whole_disk_is_full_still_says_how_it_ended(
  tmp_path, on_save_error
):
  with disks.mounted(tmp_path / 'disk', size='256k') as disk:
    room = disk / 'room'
    room.write_bytes(bytes(1 << 15))

    class Filling(inputs.ArraysInput):
      """Data after whose first batches the disk has no room at all."""

      def read(self, position, rows):
        if position == 16:
          with contextlib.suppress(OSError), open(room, 'ab') as file:
            while True:
              os.write(file.fileno(), bytes(4096))
        return super().read(position, rows)

    arrays = tiny_task.make_input().arrays
    source = Filling(name='tiny', batch_size=4, is_training=True, arrays=arrays)
    with pytest.raises((errors.PaxlikeError, OSError)) as caught:
      run(disk / 'run', source, num_steps=400, on_save_error=on_save_error)
    status = reporting.read_status(str(disk / 'run'), 'train')
    assert status.state == 'failed'
    assert 'No space left on device' in status.reason
    assert str(disk) in str(caught.value)
