import dataclasses
import functools
import json
import os
import socket
import subprocess
import time

import jax
import numpy as np
import pytest

from paxlike import (
  checkpoint,
  inputs,
  models,
  programs,
  reporting,
  sync,
  tasks,
)
from paxlike.core import errors
from paxlike.runners import train
from tests.fakes import tiny_task


def run(job_log_dir, *, task=None, source=None, **options):
  return train.train_and_evaluate_spmd_model(
    task or tiny_task.make_task(num_train_steps=6, summary_interval_steps=1),
    source or tiny_task.make_input(),
    str(job_log_dir),
    **options,
  )


def kernel(result):
  return np.asarray(result.state.mdl_vars['params']['kernel'])


def steps_in(job_log_dir):
  with checkpoint.CheckpointManager(
    job_log_dir / 'checkpoints', read_only=True
  ) as manager:
    return manager.steps()


def losses(job_log_dir, name='train'):
  lines = reporting.read_metrics(str(job_log_dir), name)
  return [(line['step'], line['loss'], line['learning_rate']) for line in lines]


def test_a_line_of_metrics_has_what_scripts_read(tmp_path):
  run(tmp_path)
  lines = reporting.read_metrics(str(tmp_path), 'train')
  assert [line['step'] for line in lines] == [1, 2, 3, 4, 5, 6]
  assert all(
    {'step', 'loss', 'learning_rate', 'wall_time'} <= line.keys()
    for line in lines
  )


def test_norms_stand_in_the_line_of_their_step(tmp_path):
  task = tiny_task.make_task(
    num_train_steps=4, summary_interval_steps=1, norm_summary_interval_steps=2
  )
  result = run(tmp_path, task=task)
  lines = reporting.read_metrics(str(tmp_path), 'train')
  assert ['norm/kernel' in line for line in lines] == [0, 1, 0, 1]
  norm = np.linalg.norm(kernel(result))
  assert lines[-1]['norm/kernel'] == pytest.approx(norm, rel=1e-6)


def test_the_last_step_is_saved_though_off_the_interval(tmp_path):
  task = tiny_task.make_task(num_train_steps=7, save_interval_steps=3)
  result = run(tmp_path, task=task)
  assert result.step == int(result.state.step) == 7
  assert steps_in(tmp_path) == [3, 6, 7]


def test_a_finished_run_started_again_does_nothing(tmp_path):
  first = run(tmp_path)
  before = losses(tmp_path)
  second = run(tmp_path)
  np.testing.assert_array_equal(kernel(first), kernel(second))
  assert losses(tmp_path) == before


def test_three_runs_are_bit_for_bit_the_same_as_one(tmp_path):
  def task(n):
    return tiny_task.make_task(
      num_train_steps=n,
      summary_interval_steps=1,
      save_interval_steps=2,
      noise=0.3,
      learner={'ema_decay': 0.9},
    )

  straight = run(tmp_path / 'a', task=task(9))
  for n in (3, 5, 9):
    resumed = run(tmp_path / 'b', task=task(n))
  for one, other in zip(
    jax.tree.leaves(straight.state.mdl_vars),
    jax.tree.leaves(resumed.state.mdl_vars),
    strict=True,
  ):
    np.testing.assert_array_equal(one, other)
  np.testing.assert_array_equal(
    straight.state.extra['ema']['kernel'], resumed.state.extra['ema']['kernel']
  )
  assert losses(tmp_path / 'a') == losses(tmp_path / 'b')


def test_evaluating_and_decoding_never_change_training(tmp_path):
  class Decoding(tiny_task.LinearTask):
    def decode(self, mdl_vars, batch, *, key):
      noise = jax.random.normal(key, batch['inputs'].shape[:1])
      return {'sum': batch['inputs'].sum(axis=1) + noise}

  def task(**intervals):
    made = tiny_task.make_task(num_train_steps=8, **intervals)
    return Decoding(noise=0.3, learner=made.learner, train=made.train)

  test_input = tiny_task.make_input(10, name='test', is_training=False)
  plain = run(tmp_path / 'a', task=task(eval_interval_steps=8))
  evaluated = run(
    tmp_path / 'b',
    task=task(eval_interval_steps=1, decode_interval_steps=1),
    eval_input_p=[test_input],
    decode_input_p=test_input,
    eval_on_test=True,
  )
  outputs = tmp_path / 'b' / 'decoder_out' / 'test'
  assert len(list(outputs.glob('decoder_out_*'))) >= 8
  np.testing.assert_array_equal(kernel(plain), kernel(evaluated))
  lines = reporting.read_metrics(str(tmp_path / 'b'), 'eval_test_test')
  assert [line['step'] for line in lines] == list(range(1, 9))
  assert all(line['num_examples'] == 10 for line in lines)


def test_status_tells_that_training_is_done_and_how_far(tmp_path):
  run(tmp_path)
  status = reporting.read_status(str(tmp_path), 'train')
  assert (status.state, status.step) == ('done', 6)


def nan_input(at_row):
  batch = tiny_task.make_batch(20)
  batch['inputs'][at_row] = np.nan
  return inputs.ArraysInput(
    name='tiny',
    batch_size=4,
    is_training=True,
    shuffle=False,
    arrays={name: batch[name] for name in ('inputs', 'labels')},
  )


def test_a_nan_ends_the_run_and_the_last_finite_state_is_saved(tmp_path):
  task = tiny_task.make_task(num_train_steps=9, summary_interval_steps=3)
  with pytest.raises(errors.NonFiniteLossError, match='after step 2'):
    run(tmp_path, task=task, source=nan_input(at_row=9))
  assert steps_in(tmp_path)[-1] == 2
  status = reporting.read_status(str(tmp_path), 'train')
  assert status.state == 'failed'
  assert 'after step 2' in status.reason
  saved = json.loads((tmp_path / 'status/train.json').read_text())
  assert saved['state'] == 'failed'


def test_a_saved_nan_is_found_before_it_is_saved(tmp_path):
  task = tiny_task.make_task(
    num_train_steps=9, summary_interval_steps=9, save_interval_steps=4
  )
  with pytest.raises(errors.NonFiniteLossError, match='after step 2'):
    run(tmp_path, task=task, source=nan_input(at_row=9))
  assert steps_in(tmp_path)[-1] == 2


def test_skipping_a_nan_on_a_save_step_still_saves(tmp_path):
  task = tiny_task.make_task(
    num_train_steps=3, save_interval_steps=3, on_nonfinite='skip'
  )
  result = run(tmp_path, task=task, source=nan_input(at_row=9))
  assert steps_in(tmp_path)[-1] == 3
  assert int(result.state.extra['num_skipped']) == 1


def test_other_data_than_the_checkpoints_are_refused(tmp_path):
  run(tmp_path)
  task = tiny_task.make_task(num_train_steps=9)
  with pytest.raises(errors.InputMismatchError, match='batch_size'):
    run(tmp_path, task=task, source=tiny_task.make_input(batch_size=5))


def test_a_run_can_start_from_the_checkpoint_of_another_job(tmp_path):
  task = tiny_task.make_task(num_train_steps=4, save_interval_steps=2)
  run(tmp_path / 'a', task=task)
  result = run(
    tmp_path / 'b',
    restore_checkpoint_dir=str(tmp_path / 'a/checkpoints'),
    restore_checkpoint_step=2,
  )
  straight = run(tmp_path / 'c')
  np.testing.assert_array_equal(kernel(result), kernel(straight))
  assert losses(tmp_path / 'b') == losses(tmp_path / 'c')[2:]


def test_a_restore_directory_that_is_not_there_is_an_error(tmp_path):
  with pytest.raises(errors.CheckpointNotFoundError, match='nowhere'):
    run(tmp_path, restore_checkpoint_dir=str(tmp_path / 'nowhere'))


def test_the_first_error_is_raised_and_the_last_state_saved(tmp_path):
  class Broken(inputs.ArraysInput):
    def read(self, position, rows):
      if position == 3:
        raise OSError('no such shard')
      return super().read(position, rows)

  arrays = tiny_task.make_input().arrays
  source = Broken(name='tiny', batch_size=4, is_training=True, arrays=arrays)
  with pytest.raises(OSError, match='no such shard'):
    run(tmp_path, source=source)
  assert steps_in(tmp_path)[-1] == 3


def test_between_summaries_nothing_is_fetched_from_the_device(
  tmp_path, fetches
):
  task = tiny_task.make_task(num_train_steps=50, summary_interval_steps=50)
  run(tmp_path, task=task)
  # Of 50 steps only the last is reported; the state is saved first and last.
  num_long = fetches()
  task = tiny_task.make_task(num_train_steps=100, summary_interval_steps=100)
  run(tmp_path / 'twice', task=task)
  assert fetches() - num_long == num_long


def test_one_compile_a_kind_of_step_over_a_run_and_its_resume(
  tmp_path, compiles
):
  test_input = tiny_task.make_input(10, name='test', is_training=False)
  for num_steps in (4, 8):
    before = compiles('train_step'), compiles('eval_step')
    run(
      tmp_path,
      task=tiny_task.make_task(
        num_train_steps=num_steps, eval_interval_steps=2
      ),
      eval_input_p=[test_input],
      eval_on_test=True,
    )
    assert compiles('train_step') - before[0] == 1
    assert compiles('eval_step') - before[1] == 1


def test_an_error_in_a_step_skips_no_batch_after_the_restart(
  tmp_path, monkeypatch
):
  original = programs.TrainProgram.run

  def failing(self, state, batch):
    if int(state.step) == 4:
      raise RuntimeError('the device has a cold')
    return original(self, state, batch)

  with monkeypatch.context() as patch:
    patch.setattr(programs.TrainProgram, 'run', failing)
    with pytest.raises(RuntimeError, match='cold'):
      run(tmp_path)
  assert steps_in(tmp_path)[-1] == 4
  np.testing.assert_array_equal(
    kernel(run(tmp_path)), kernel(run(tmp_path / 'straight'))
  )
  assert losses(tmp_path) == losses(tmp_path / 'straight')


def test_a_damaged_last_step_that_was_passed_over_is_saved_again(tmp_path):
  straight = run(tmp_path)
  (data,) = (tmp_path / 'checkpoints/checkpoint_00000006').glob('*.data')
  data.write_bytes(data.read_bytes()[:-1])
  config = checkpoint.CheckpointConfig(fallback=True)
  again = run(tmp_path, checkpoint_p=config)
  np.testing.assert_array_equal(kernel(again), kernel(straight))
  with checkpoint.CheckpointManager(
    tmp_path / 'checkpoints', read_only=True
  ) as manager:
    restored = manager.restore()
  assert restored.step == 6
  # What was damaged is set aside, not deleted.
  (aside,) = (tmp_path / 'checkpoints').glob('damaged_*.checkpoint_00000006')
  assert (aside / data.name).exists()


def test_a_last_save_that_fails_is_never_called_done(tmp_path, monkeypatch):
  original = checkpoint.CheckpointManager.save

  def failing(self, step, *args, **options):
    return step == 0 and original(self, step, *args, **options)

  monkeypatch.setattr(checkpoint.CheckpointManager, 'save', failing)
  config = checkpoint.CheckpointConfig(on_save_error='warn')
  with pytest.raises(errors.SaveError, match='step 6'):
    run(tmp_path, checkpoint_p=config)
  assert reporting.read_status(str(tmp_path), 'train').state == 'failed'


def test_going_back_within_a_job_is_refused_with_what_to_do(tmp_path):
  task = tiny_task.make_task(num_train_steps=6, save_interval_steps=2)
  run(tmp_path, task=task)
  with pytest.raises(errors.ConfigError, match=r'step 6.*ckpt rm'):
    run(tmp_path, restore_checkpoint_step=2)


def test_a_request_to_stop_saves_that_step_and_a_restart_goes_on(
  tmp_path, monkeypatch
):
  asked = sync.SoloWorld()
  monkeypatch.setattr(sync, 'world', lambda: asked)

  class Stopping(inputs.ArraysInput):
    def read(self, position, rows):
      if position == 3:
        asked.stop.ask('the test')  # the first run's world; later ones differ
      return super().read(position, rows)

  arrays = tiny_task.make_input().arrays
  source = Stopping(name='tiny', batch_size=4, is_training=True, arrays=arrays)
  with pytest.raises(errors.PreemptedError, match='start the job again'):
    run(tmp_path, source=source)
  status = reporting.read_status(str(tmp_path), 'train')
  assert status.state == 'preempted'
  assert steps_in(tmp_path)[-1] == status.step < 6
  monkeypatch.undo()
  np.testing.assert_array_equal(
    kernel(run(tmp_path, source=source)), kernel(run(tmp_path / 'straight'))
  )


def test_an_evaluation_cut_off_by_a_stop_is_made_up_for(tmp_path, monkeypatch):
  asked = sync.SoloWorld()
  monkeypatch.setattr(sync, 'world', lambda: asked)

  class Stopping(inputs.ArraysInput):
    def read(self, position, rows):
      asked.stop.ask('the test')
      return super().read(position, rows)

  arrays = tiny_task.make_input().arrays
  task = tiny_task.make_task(num_train_steps=4, eval_interval_steps=2)
  tests = [
    kind(name='test', batch_size=4, arrays=arrays)
    for kind in (Stopping, inputs.ArraysInput)
  ]
  with pytest.raises(errors.PreemptedError):
    run(tmp_path, task=task, eval_input_p=tests[0], eval_on_test=True)
  assert steps_in(tmp_path)[-1] == 2
  monkeypatch.undo()
  run(tmp_path, task=task, eval_input_p=tests[1], eval_on_test=True)
  lines = reporting.read_metrics(str(tmp_path), 'eval_test_test')
  assert [line['step'] for line in lines] == [2, 4]


def test_decoding_during_training_writes_the_outputs_of_that_step(tmp_path):
  class Decoding(tiny_task.LinearTask):
    def decode(self, mdl_vars, batch, *, key):
      return {'sum': batch['inputs'].sum(axis=1)}

  base = tiny_task.make_task(num_train_steps=5, decode_interval_steps=2)
  task = Decoding(learner=base.learner, train=base.train)
  source = tiny_task.make_input(6, name='some', is_training=False)
  run(tmp_path, task=task, decode_input_p=source)
  for step in (2, 4, 5):
    pairs = list(
      reporting.read_key_values(
        str(tmp_path / f'decoder_out/some/decoder_out_{step}_*.jsonl')
      )
    )
    assert [key for key, _ in pairs] == ['0', '1', '2', '3', '4', '5']


def test_a_restart_decodes_nothing_again(tmp_path):
  calls = []

  class Decoding(tiny_task.LinearTask):
    def decode(self, mdl_vars, batch, *, key):
      return {'sum': batch['inputs'].sum(axis=1)}

    def process_decode_out(self, source, outputs):
      calls.append(1)
      return super().process_decode_out(source, outputs)

  base = tiny_task.make_task(num_train_steps=4, decode_interval_steps=4)
  task = Decoding(learner=base.learner, train=base.train)
  source = tiny_task.make_input(4, name='some', is_training=False)
  for _ in range(2):
    run(tmp_path, task=task, decode_input_p=source)
  assert len(calls) == 1


def test_the_model_is_told_of_beside_the_summaries(tmp_path):
  run(tmp_path)
  (path,) = (tmp_path / 'summaries/train').iterdir()
  assert b'4 parameters' in path.read_bytes()


def test_a_run_can_begin_with_the_parameters_alone_of_another(tmp_path):
  first = run(tmp_path / 'a')
  other = tiny_task.make_task(
    num_train_steps=3, learner={'ema_decay': 0.5, 'clip_global_norm': 1.0}
  )
  config = checkpoint.CheckpointConfig(restore_only='mdl_vars/params/.*')
  seen = []
  plain = programs.TrainProgram.run

  def watched(self, state, batch):
    seen.append(np.asarray(state.mdl_vars['params']['kernel']))
    return plain(self, state, batch)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(programs.TrainProgram, 'run', watched)
    result = run(
      tmp_path / 'b',
      task=other,
      checkpoint_p=config,
      restore_checkpoint_dir=str(tmp_path / 'a/checkpoints'),
    )
  np.testing.assert_array_equal(seen[0], kernel(first))
  assert result.step == 3


def test_a_pattern_that_matches_nothing_is_refused(tmp_path):
  run(tmp_path / 'a')
  config = checkpoint.CheckpointConfig(restore_only='params')
  with pytest.raises(errors.ConfigError, match='matches no leaf'):
    run(
      tmp_path / 'b',
      checkpoint_p=config,
      restore_checkpoint_dir=str(tmp_path / 'a/checkpoints'),
    )


def test_saving_after_an_error_can_be_turned_off(tmp_path):
  config = checkpoint.CheckpointConfig(save_after_error=False)
  task = tiny_task.make_task(num_train_steps=9, summary_interval_steps=3)
  with pytest.raises(errors.NonFiniteLossError):
    run(tmp_path, task=task, source=nan_input(9), checkpoint_p=config)
  assert steps_in(tmp_path) == [0]


def test_the_best_step_by_a_test_metric_is_kept(tmp_path):
  # The rate grows until the loss does: the best step is in the middle.
  schedule = tasks.WarmupCosine(peak=1.2, warmup_steps=11, total_steps=1000)
  task = tiny_task.make_task(
    num_train_steps=12,
    save_interval_steps=1,
    eval_interval_steps=1,
    save_max_to_keep=1,
    save_num_best=1,
    save_best_metric='test/loss',
    learner={'schedule': schedule},
  )
  source = tiny_task.make_input(10, name='test', is_training=False)
  run(tmp_path, task=task, eval_input_p=source, eval_on_test=True)
  lines = reporting.read_metrics(str(tmp_path), 'eval_test_test')
  best = min(lines, key=lambda line: line['loss'])['step']
  assert 1 < best < 12
  assert steps_in(tmp_path) == [best, 12]


def test_saving_continuously_saves_more_than_the_interval_asks_for(tmp_path):
  task = tiny_task.make_task(
    num_train_steps=40,
    save_interval_steps=1000,
    save_continuously=True,
    save_max_to_keep=None,
  )
  run(tmp_path, task=task)
  assert len(steps_in(tmp_path)) > 2


def test_a_start_that_is_refused_leaves_the_status_of_the_run(tmp_path):
  run(tmp_path)
  with pytest.raises(errors.InputMismatchError):
    run(tmp_path, source=tiny_task.make_input(batch_size=5))
  status = reporting.read_status(str(tmp_path), 'train')
  assert (status.state, status.step) == ('done', 6)


def test_a_start_that_is_refused_leaves_the_status_to_whom_it_is_of(tmp_path):
  run(tmp_path)
  theirs = dataclasses.replace(
    reporting.read_status(str(tmp_path), 'train'),
    state='running',
    pid=7,
    host='far',
  )
  reporting.put_status(str(tmp_path), 'train', theirs)
  with pytest.raises(errors.InputMismatchError):
    run(tmp_path, source=tiny_task.make_input(batch_size=5))
  assert reporting.read_status(str(tmp_path), 'train') == theirs


def test_a_run_that_was_taken_over_leaves_the_status_to_the_other(
  tmp_path, monkeypatch
):
  def taken_over(manager, step):
    if step < 3:
      return False
    theirs = dataclasses.replace(
      reporting.read_status(str(tmp_path), 'train'), pid=7, host='far'
    )
    reporting.put_status(str(tmp_path), 'train', theirs)
    loss = errors.CheckpointBusyError('taken over')
    raise errors.SaveError(f'Nothing more: {loss}') from loss

  monkeypatch.setattr(checkpoint.CheckpointManager, 'should_save', taken_over)
  with pytest.raises(errors.SaveError, match='taken over'):
    run(tmp_path)
  status = reporting.read_status(str(tmp_path), 'train')
  assert (status.state, status.host) == ('running', 'far')


def test_test_data_that_are_not_there_end_the_run_before_it_begins(tmp_path):
  missing = inputs.TextInput(
    name='test', batch_size=4, seq_len=8, files=str(tmp_path / 'nowhere')
  )
  with pytest.raises(errors.PaxlikeError, match='nowhere'):
    run(tmp_path / 'job', eval_input_p=missing, eval_on_test=True)
  assert not (tmp_path / 'job').exists()


def test_a_list_of_inputs_is_refused_with_what_to_give(tmp_path):
  with pytest.raises(errors.ConfigError, match='takes one input'):
    run(tmp_path, source=[tiny_task.make_input()])


def test_a_second_trainer_in_the_directory_is_refused_while_one_lives(
  tmp_path,
):
  other = subprocess.Popen(['sleep', '60'])
  status = tmp_path / 'status/train.json'
  status.parent.mkdir()
  status.write_text(
    json.dumps(
      {
        'state': 'running',
        'step': 3,
        'reason': '',
        'pid': other.pid,
        'host': socket.gethostname(),
        'updated_s': time.time(),
      }
    )
  )
  try:
    with pytest.raises(
      errors.UsageError, match=f'Process {other.pid} .*step 3'
    ):
      run(tmp_path)
  finally:
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
  # Dead, though nobody has waited for it: it is no longer in the way.
  assert run(tmp_path).step == 6
  other.wait()


def test_the_end_of_the_schedule_is_said_at_the_start(tmp_path, caplog):
  caplog.set_level('INFO')
  schedule = tasks.WarmupCosine(peak=0.1, total_steps=4)
  task = tiny_task.make_task(num_train_steps=6, learner={'schedule': schedule})
  run(tmp_path, task=task)
  (said,) = [m for m in caplog.messages if 'learning rate' in m]
  assert 'down to 0 at step 4' in said
  assert 'for the other 2 of 6 steps' in said


def labelled_input(labels, **options):
  rows = np.ones((len(labels), 4), np.float32)
  arrays = {'inputs': rows, 'labels': np.asarray(labels, np.int32)}
  options = {'name': 'mine', 'batch_size': 4, 'shuffle': False, **options}
  return inputs.ArraysInput(arrays=arrays, **options)


def classifier(num_classes, **train):
  return tasks.ClassificationTask(
    model=functools.partial(
      models.MlpClassifier,
      input_shape=(4,),
      num_classes=num_classes,
      hidden_dims=(),
    ),
    learner=tasks.Learner(schedule=tasks.Constant(value=0.1)),
    train=tasks.TrainParams(**{'num_train_steps': 4, **train}),
  )


def test_labels_beyond_the_classes_end_a_run_before_anything_is_saved(
  tmp_path,
):
  source = labelled_input([0, 1, 2, 7], is_training=True)
  with pytest.raises(errors.ConfigError, match='labels of input mine'):
    run(tmp_path, task=classifier(3), source=source)
  assert not list((tmp_path / 'checkpoints').glob('checkpoint_*'))
  assert run(tmp_path, task=classifier(8), source=source).step == 4


def test_a_later_label_beyond_the_classes_ends_a_run_too(tmp_path):
  source = labelled_input([0, 1, 2, 0, 1, 2, 7, 0], is_training=True)
  with pytest.raises(errors.NonFiniteLossError, match='after step 1'):
    run(tmp_path, task=classifier(3), source=source)
  assert steps_in(tmp_path)[-1] == 1


def test_the_first_batch_alone_is_looked_at(tmp_path, monkeypatch):
  seen = []

  def check(self, batch, *, input_name):
    seen.append((input_name, len(batch['labels'])))

  monkeypatch.setattr(tiny_task.LinearTask, 'check_batch', check)
  test_input = tiny_task.make_input(10, name='test', is_training=False)
  task = tiny_task.make_task(num_train_steps=6, eval_interval_steps=3)
  run(tmp_path, task=task, eval_input_p=[test_input], eval_on_test=True)
  assert seen == [('tiny', 4), ('test', 4), ('test', 4)]
