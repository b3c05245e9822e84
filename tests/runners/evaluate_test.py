import io

import fiddle as fdl
import jax
import numpy as np
import pytest

from paxlike import (
  experiment,
  inputs,
  models,
  parallel,
  programs,
  reporting,
  tasks,
)
from paxlike.core import errors, metrics
from paxlike.runners import (
  _restore,
  _table,
  decode,
  evaluate,
  session,
  train,
)
from tests.fakes import tiny_task


def make_task(**knobs):
  return tiny_task.make_task(
    **{'num_train_steps': 4, 'save_max_to_keep': None, **knobs}
  )


def train_in(directory, task, **options):
  return train.train_and_evaluate_spmd_model(
    task, tiny_task.make_input(), str(directory), **options
  )


def evaluate_in(directory, task, sources, **options):
  return evaluate.evaluate_spmd_model(
    task, sources, str(directory), **{'follow': False, **options}
  )


def make_source(rows=10, **knobs):
  return tiny_task.make_input(
    rows, **{'name': 'test', 'is_training': False, **knobs}
  )


def lines(directory, name='test'):
  return reporting.read_metrics(str(directory), f'eval_test_{name}')


def bare(line):
  return {
    k: v for k, v in line.items() if k not in ('wall_time', 'checkpoint_time')
  }


def test_an_evaluation_counts_each_example_once(tmp_path):
  task = make_task()
  train_in(tmp_path, task)
  (result,) = evaluate_in(tmp_path, task, [make_source(10)])
  assert result.step == 4
  assert result.results['test'].num_examples == 10
  (line,) = lines(tmp_path)
  assert (line['step'], line['num_examples']) == (4, 10)


def test_the_eval_job_gives_the_bits_of_the_evaluation_in_training(tmp_path):
  task = make_task(
    eval_interval_steps=2, save_interval_steps=2, learner={'ema_decay': 0.9}
  )
  source = make_source(11)
  train_in(tmp_path, task, eval_input_p=[source], eval_on_test=True)
  in_training = lines(tmp_path)
  job = tmp_path / 'job'
  evaluate_in(
    job,
    task,
    [source],
    restore_checkpoint_dir=str(tmp_path / 'checkpoints'),
    restore_checkpoint_step=[2, 4],
  )
  assert [bare(line) for line in lines(job)] == [
    bare(line) for line in in_training
  ]
  assert len(in_training) == 2


def classification():
  rng = np.random.default_rng(5)
  source = inputs.ArraysInput(
    name='test',
    batch_size=4,
    arrays={
      'inputs': rng.normal(size=(19, 4)).astype(np.float32),
      'labels': rng.integers(3, size=19).astype(np.int32),
    },
  )
  template = fdl.Partial(
    models.MlpClassifier, input_shape=(4,), num_classes=3, hidden_dims=(5,)
  )
  return tasks.ClassificationTask, template, source


def language():
  ids = np.random.default_rng(6).integers(8, size=(11, 6))
  paddings = np.zeros((11, 6), np.float32)
  paddings[::2, 4:] = 1.0
  source = inputs.ArraysInput(
    name='test',
    batch_size=4,
    arrays={'ids': ids, 'targets': ids[:, ::-1], 'paddings': paddings},
  )
  template = fdl.Partial(
    models.TransformerLm,
    vocab_size=8,
    model_dim=8,
    num_layers=1,
    num_heads=2,
  )
  return tasks.LanguageModelTask, template, source


@pytest.mark.parametrize(
  ('make', 'names'),
  [
    (classification, {'accuracy', 'f1_macro', 'auc', 'calibration_error'}),
    (language, {'perplexity', 'accuracy'}),
  ],
)
def test_what_is_no_mean_has_the_same_bits_in_training_and_in_the_eval_job(
  tmp_path, make, names
):
  kind, template, source = make()
  task = kind(
    model=fdl.build(template),
    learner=tasks.Learner(
      schedule=tasks.Constant(value=0.1), optimizer=tasks.sgd
    ),
    train=tasks.TrainParams(
      num_train_steps=2, eval_interval_steps=1, save_interval_steps=1
    ),
  )
  train.train_and_evaluate_spmd_model(
    task,
    type(source)(
      name='train', batch_size=8, is_training=True, arrays=source.arrays
    ),
    str(tmp_path),
    eval_input_p=[source],
    eval_on_test=True,
  )
  in_training = lines(tmp_path)
  evaluate_in(
    tmp_path / 'job',
    task,
    [source],
    restore_checkpoint_dir=str(tmp_path / 'checkpoints'),
    restore_checkpoint_step=[1, 2],
  )
  assert [bare(line) for line in lines(tmp_path / 'job')] == [
    bare(line) for line in in_training
  ]
  assert [line['step'] for line in in_training] == [1, 2]
  assert names <= in_training[0].keys()
  assert in_training[0] != in_training[1]


@pytest.mark.parametrize('batch_size', [1, 6])
def test_an_eval_batch_unlike_the_train_batch_drops_no_example(
  tmp_path, batch_size
):
  mesh = parallel.make_mesh(parallel.MeshConfig(), jax.devices()[:4])
  train.train_and_evaluate_spmd_model(
    make_task(num_train_steps=2, eval_interval_steps=2),
    tiny_task.make_input(batch_size=8),
    str(tmp_path),
    mesh_p=mesh,
    eval_input_p=[make_source(10, batch_size=batch_size)],
    eval_on_test=True,
  )
  assert [line['num_examples'] for line in lines(tmp_path)] == [10]


def test_a_model_unlike_the_one_that_was_trained_names_what_was_changed(
  tmp_path,
):
  before, now = (
    experiment.resolve(
      experiment.get('DigitsMlp'),
      ['NUM_TRAIN_STEPS=1', f'HIDDEN_DIMS=({width},)', *more],
    )
    for width, more in ((16, ()), (24, ('task_p.train.save_max_to_keep=9',)))
  )
  experiment.write_record(str(tmp_path), 'train', before)
  train.train_and_evaluate_spmd_model(
    before.task_p, before.train_input_p, str(tmp_path)
  )
  for follow in (False, True):
    with pytest.raises(errors.RestoreMismatchError) as caught:
      evaluate_in(tmp_path, now.task_p, now.eval_input_p, follow=follow)
    text = str(caught.value)
    assert 'task_p.model.hidden_dims: (16,) -> (24,)' in text
    assert 'config/train.json' in text
    assert 'save_max_to_keep' not in text
    assert 'hidden' in text.partition('does not fit')[2]
    assert text.index('task_p.model.hidden_dims') < text.index('does not fit')
  with pytest.raises(errors.RestoreMismatchError, match=r'hidden_dims: \(16'):
    decode.decode_once_spmd_model(now.task_p, now.decode_input_p, str(tmp_path))


def test_a_model_unlike_the_one_that_was_trained_is_told_by_five_leaves(
  tmp_path, caplog
):
  before, now = (
    experiment.resolve(
      experiment.get('DigitsMlp'),
      ['NUM_TRAIN_STEPS=1', f'HIDDEN_DIMS={(width,) * 4}'],
    )
    for width in (4, 5)
  )
  experiment.write_record(str(tmp_path), 'train', before)
  train.train_and_evaluate_spmd_model(
    before.task_p, before.train_input_p, str(tmp_path)
  )
  caplog.clear()
  with pytest.raises(errors.RestoreMismatchError) as caught:
    evaluate_in(tmp_path, now.task_p, now.eval_input_p)
  # The error alone: no warning that says it as well, and less.
  assert 'WARNING' not in caplog.text
  lines = str(caught.value).splitlines()
  (said,) = (i for i, line in enumerate(lines) if 'does not fit' in line)
  leaves = [line for line in lines[said + 1 :] if line.startswith('  ')]
  # Kernel and bias of four layers, and the kernel of the last one.
  assert '9 leaves differ' in lines[said]
  assert len(leaves) == 6
  assert leaves[-1] == '  and 4 more'
  assert 'paxlike ckpt show' in lines[-1]


def test_a_model_that_fits_and_is_another_one_is_told(tmp_path, caplog):
  before, now = (
    experiment.resolve(
      experiment.get('DigitsMlp'),
      ['NUM_TRAIN_STEPS=1', f'DROPOUT_RATE={rate}', f'LEARNING_RATE={lr}'],
    )
    for rate, lr in ((0.1, 0.1), (0.2, 0.3))
  )
  experiment.write_record(str(tmp_path), 'train', before)
  train.train_and_evaluate_spmd_model(
    before.task_p, before.train_input_p, str(tmp_path)
  )
  evaluate_in(tmp_path, before.task_p, before.eval_input_p)
  assert 'not the one that was trained with' not in caplog.text
  evaluate_in(tmp_path, now.task_p, now.eval_input_p)
  assert 'task_p.model.dropout_rate: 0.1 -> 0.2' in caplog.text
  assert 'learning_rate' not in caplog.text.partition('trained with')[2]


def test_only_the_averaged_parameters_are_read(tmp_path):
  dim = 20_000
  task = make_task(dim=dim, num_train_steps=1, learner={'ema_decay': 0.5})
  train.train_and_evaluate_spmd_model(
    task, tiny_task.make_input(dim=dim), str(tmp_path)
  )
  job = session.build('eval', task, str(tmp_path))
  with _restore.reader(job, job.checkpoint_dir) as manager:
    found = _restore.restore_step(job, manager, None)
  size = found.mdl_vars['params']['kernel'].nbytes
  assert size == 4 * dim
  assert size <= found.bytes_read <= size + 4096


def test_evaluating_a_step_again_replaces_its_line(tmp_path):
  task = make_task(save_interval_steps=2)
  train_in(tmp_path, task)
  for rows in (10, 7):
    evaluate_in(
      tmp_path, task, [make_source(rows)], restore_checkpoint_step=[2, 4]
    )
  found = [(line['step'], line['num_examples']) for line in lines(tmp_path)]
  assert found == [(2, 7), (4, 7)]


class DiesAt(inputs.ArraysInput):
  """Fails at its first batch, as long as it is told to."""

  dies = True

  def read(self, position, rows):
    if DiesAt.dies:
      raise OSError('no such shard')
    return super().read(position, rows)


def test_an_evaluator_that_died_leaves_one_result_an_input_and_step(tmp_path):
  task = make_task()
  train_in(tmp_path, task)
  good = make_source(10, name='good')
  bad = DiesAt(name='bad', batch_size=4, arrays=tiny_task.make_input(6).arrays)
  DiesAt.dies = True
  with pytest.raises(OSError, match='no such shard'):
    evaluate_in(tmp_path, task, [good, bad], follow=True)
  status = reporting.read_status(str(tmp_path), 'eval')
  assert (status.state, status.step) == ('failed', 4)
  first = lines(tmp_path, 'good')
  DiesAt.dies = False
  (again,) = evaluate_in(tmp_path, task, [good, bad], follow=True)
  assert list(again.results) == ['bad']
  assert lines(tmp_path, 'good') == first
  assert [line['num_examples'] for line in lines(tmp_path, 'bad')] == [6]


def test_a_step_that_is_not_there_is_named(tmp_path):
  task = make_task()
  train_in(tmp_path, task)
  with pytest.raises(errors.CheckpointNotFoundError, match='step 3'):
    evaluate_in(tmp_path, task, [make_source()], restore_checkpoint_step=3)


def test_following_and_a_given_step_contradict_each_other(tmp_path):
  with pytest.raises(errors.UsageError, match='--follow'):
    evaluate_in(
      tmp_path, make_task(), [], restore_checkpoint_step=3, follow=True
    )


class Terminal(io.StringIO):
  def isatty(self):
    return True


def result_of(**values):
  return programs.EvalResult(
    metrics={
      name: metrics.WeightedScalar(value=value, weight=3.0)
      for name, value in values.items()
    },
    num_examples=3,
  )


def test_results_are_a_table_on_a_terminal():
  stream = Terminal()
  results = {'a': result_of(loss=0.25), 'b': result_of(loss=1, f1_macro=0.5)}
  _table.show(7, results, stream=stream)
  text = stream.getvalue()
  assert 'step 7' in text
  (row,) = [line for line in text.splitlines() if '0.25' in line]
  assert 'a' in row
  assert '3' in row


def test_results_are_a_line_in_a_log():
  line = _table.line(7, 'a', result_of(loss=0.25))
  assert line == 'step 7  a: loss 0.25  (3 examples)'


def test_an_evaluation_of_an_input_without_examples_says_so(tmp_path):
  task = make_task()
  train_in(tmp_path, task)
  source = inputs.ArraysInput(
    name='empty',
    batch_size=4,
    arrays={
      'inputs': np.zeros((0, 4), np.float32),
      'labels': np.zeros(0, np.float32),
    },
  )
  (result,) = evaluate_in(tmp_path, task, [source])
  assert result.results['empty'].num_examples == 0
