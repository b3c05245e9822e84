"""The last good state is saved when an error ends a training."""

import errno

import pytest

from paxlike import checkpoint, inputs
from paxlike.core import errors, fs
from paxlike.runners import train
from tests.fakes import faulty_fs, tiny_task


class Broken(inputs.ArraysInput):
  """Data that end in an error after 7 batches."""

  def read(self, position, rows):
    if position == 7:
      raise ValueError('no such shard')
    return super().read(position, rows)


@pytest.fixture
def step_5_fails(monkeypatch):
  """A disk that takes no file of step 5, and takes all others."""
  faulty = faulty_fs.FaultyFileSystem(
    faulty_fs.FailWhen(
      lambda _, call: (
        call.method == 'create' and 'checkpoint_00000005' in call.path
      ),
      lambda: OSError(errno.EIO, 'Input/output error'),
    )
  )
  monkeypatch.setattr(fs, 'for_path', lambda path: faulty)


def run(directory, kind, **config):
  train.train_and_evaluate_spmd_model(
    tiny_task.make_task(
      num_train_steps=12, save_interval_steps=5, summary_interval_steps=1
    ),
    kind(
      name='tiny',
      batch_size=4,
      is_training=True,
      arrays=tiny_task.make_input().arrays,
    ),
    str(directory),
    checkpoint_p=checkpoint.CheckpointConfig(**config),
  )


def steps_in(directory):
  with checkpoint.CheckpointManager(
    directory / 'checkpoints', read_only=True
  ) as manager:
    return manager.steps()


@pytest.mark.usefixtures('step_5_fails')
@pytest.mark.parametrize('on_save_error', ['stop', 'warn'])
def test_a_save_that_failed_before_does_not_keep_the_last_one_from_being_made(
  tmp_path, on_save_error, caplog
):
  with pytest.raises(Exception, match='no such shard'):
    run(tmp_path, Broken, on_save_error=on_save_error)
  assert steps_in(tmp_path) == [0, 7]
  assert 'Step 5 was not saved' in caplog.text


@pytest.mark.usefixtures('step_5_fails')
def test_a_failed_save_that_ends_the_run_is_followed_by_one_of_what_came_since(
  tmp_path,
):
  with pytest.raises(errors.SaveError, match='Step 5 was not saved'):
    run(tmp_path, inputs.ArraysInput, async_save=True)
  assert steps_in(tmp_path) == [0, 10]
