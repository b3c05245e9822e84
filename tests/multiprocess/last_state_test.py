"""What two processes save when an error ends the training."""

import os

import pytest

from paxlike import inputs
from paxlike.runners import train
from tests.fakes import tiny_task
from tests.multiprocess import harness

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]


class Broken(inputs.ArraysInput):
  """Data that end in an error after seven batches."""

  def read(self, position, rows):
    if position == 7:
      raise OSError('no such shard')
    return super().read(position, rows)


def trains(world, directory, *broken_on):
  is_broken = str(world.process_index) in broken_on
  train.train_and_evaluate_spmd_model(
    tiny_task.make_task(
      num_train_steps=40, save_interval_steps=50, summary_interval_steps=1
    ),
    (Broken if is_broken else inputs.ArraysInput)(
      name='tiny',
      batch_size=4,
      is_training=True,
      arrays=tiny_task.make_input().arrays,
    ),
    directory,
  )


def saved(directory):
  names = sorted(os.listdir(directory / 'checkpoints'))
  return [name for name in names if name.startswith('checkpoint_')]


def test_an_error_on_all_processes_costs_no_step(tmp_path):
  ended = harness.run(f'{__name__}:trains', 2, str(tmp_path), '0', '1')
  assert saved(tmp_path) == ['checkpoint_00000000', 'checkpoint_00000007']
  for process in ended:
    assert process.status == 1
    assert 'no such shard' in process.output


def test_an_error_on_one_process_is_told_to_the_other_soon(tmp_path):
  ended = harness.run(f'{__name__}:trains', 2, str(tmp_path), '1')
  assert saved(tmp_path) == ['checkpoint_00000000']
  assert [process.status for process in ended] == [1, 1]
  for process in ended:
    assert 'no such shard' in process.output
    assert 'train_error' not in process.output
