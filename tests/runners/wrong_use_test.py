"""Mistakes of a user that would cost work are refused, and leave nothing."""

import os
import shutil

import pytest

from paxlike import checkpoint, reporting
from paxlike.core import errors
from paxlike.runners import place, train
from tests.fakes import tiny_task


def run(directory, *, task=None, **options):
  return train.train_and_evaluate_spmd_model(
    task or tiny_task.make_task(num_train_steps=4, save_interval_steps=2),
    tiny_task.make_input(),
    str(directory),
    **options,
  )


def test_steps_where_a_training_does_not_look_are_not_trained_over(tmp_path):
  run(tmp_path / 'one')
  shutil.move(tmp_path / 'one/checkpoints', tmp_path / 'two')
  with pytest.raises(errors.UsageError) as caught:
    run(tmp_path / 'two')
  assert 'up to step 4' in str(caught.value)
  assert f'--restore_checkpoint_dir={tmp_path}/two' in str(caught.value)
  names = os.listdir(tmp_path / 'two')
  assert 'checkpoints' not in names
  assert 'status' not in names
  with pytest.raises(errors.CheckpointNotFoundError, match='itself: give'):
    place.check(str(tmp_path / 'two'))


def test_a_step_is_no_directory_to_train_in(tmp_path):
  run(tmp_path)
  step = tmp_path / 'checkpoints/checkpoint_00000004'
  before = sorted(os.listdir(step))
  for directory in (step, step / 'new' / 'job'):
    with pytest.raises(errors.UsageError, match='is one step of') as caught:
      run(directory)
    assert '--restore_checkpoint_step=4' in str(caught.value)
  assert sorted(os.listdir(step)) == before


def test_a_state_that_does_not_fit_is_told_how_to_take_its_parameters(tmp_path):
  run(tmp_path / 'one')
  other = tiny_task.make_task(num_train_steps=4, learner={'ema_decay': 0.9})
  with pytest.raises(errors.RestoreMismatchError) as caught:
    run(
      tmp_path / 'two',
      task=other,
      restore_checkpoint_dir=str(tmp_path / 'one/checkpoints'),
    )
  assert "--set checkpoint_p.restore_only='mdl_vars/.*'" in str(caught.value)
  config = checkpoint.CheckpointConfig(restore_only='mdl_vars/.*')
  result = run(
    tmp_path / 'two',
    task=other,
    checkpoint_p=config,
    restore_checkpoint_dir=str(tmp_path / 'one/checkpoints'),
  )
  assert int(result.state.step) == 4
  assert 'ema' in result.state.extra


def test_a_best_that_nothing_is_measured_by_is_refused_at_the_start(tmp_path):
  task = tiny_task.make_task(save_num_best=1, save_best_metric='test/loss')
  with pytest.raises(errors.ConfigError, match='no step would ever be'):
    run(tmp_path / 'run', task=task)
  assert not (tmp_path / 'run').exists()


def test_a_misspelled_best_is_told_at_the_first_evaluation(tmp_path):
  task = tiny_task.make_task(
    num_train_steps=6,
    save_interval_steps=1,
    save_max_to_keep=1,
    save_num_best=1,
    save_best_metric='test/los',
    eval_interval_steps=3,
  )
  source = tiny_task.make_input(10, name='test', is_training=False)
  with pytest.raises(errors.ConfigError, match='Did you mean test/loss'):
    run(tmp_path, task=task, eval_input_p=source, eval_on_test=True)
  with checkpoint.CheckpointManager(
    tmp_path / 'checkpoints', read_only=True
  ) as manager:
    assert manager.latest_step() == 3


@pytest.mark.parametrize('name', ['only', 'allow_missing', 'allow_extra'])
def test_what_is_no_pattern_of_leaves_is_one_line(tmp_path, name):
  run(tmp_path)
  with (
    checkpoint.CheckpointManager(
      tmp_path / 'checkpoints', read_only=True
    ) as manager,
    pytest.raises(errors.ConfigError, match='no regular expression'),
  ):
    manager.restore(**{name: '('})
  with pytest.raises(errors.ConfigError, match=r'checkpoint_p\.restore_only'):
    checkpoint.CheckpointConfig(restore_only='(')


def test_a_start_says_whether_it_is_fresh(tmp_path, caplog):
  caplog.set_level('INFO')
  run(tmp_path)
  assert 'Starting from fresh parameters.' in caplog.text
  caplog.clear()
  run(tmp_path)
  assert 'Starting from fresh parameters.' not in caplog.text
  assert 'Going on from step 4' in caplog.text


def test_a_status_that_nobody_can_read_is_written_anew(tmp_path, caplog):
  run(tmp_path)
  (tmp_path / 'status/train.json').write_text('garbage')
  run(tmp_path)
  assert reporting.read_status(str(tmp_path), 'train').state == 'done'
  assert 'train.json is no status' in caplog.text
