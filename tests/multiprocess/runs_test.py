"""Whole runs of two real processes, called as from a notebook."""

import threading

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import inputs, models, reporting, sync, tasks
from paxlike.runners import evaluate, train
from tests.fakes import tiny_task
from tests.multiprocess import harness

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

_JOBS = 'tests.multiprocess.runs_test'
NUM_STEPS = 50


def _run(directory, **options):
  task = tiny_task.make_task(
    num_train_steps=NUM_STEPS,
    save_interval_steps=5,
    eval_interval_steps=5,
    summary_interval_steps=1,
    **options,
  )
  return train.train_and_evaluate_spmd_model(
    task,
    tiny_task.make_input(),
    directory,
    eval_input_p=[tiny_task.make_input(9, name='test', is_training=False)],
    eval_on_test=True,
  )


def trains_under_guard(world, directory):
  """A run in which JAX refuses every thread but the main one."""
  del world
  refused, others = [], set()

  def compute():
    try:
      jnp.ones(()) + 1
    except RuntimeError:
      refused.append(1)

  with sync.assert_main_thread_only():
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    start = threading.Thread.start

    def noted(self):
      others.add(self.name.partition('_')[0])
      start(self)

    threading.Thread.start = noted
    _run(directory)
  print(f'refused {len(refused)}, beside {len(others)} threads', flush=True)
  assert refused == [1]
  assert len(others) >= 3, others


def test_a_run_launches_jax_from_its_main_thread_alone(tmp_path):
  ended = harness.run(f'{_JOBS}:trains_under_guard', 2, str(tmp_path))
  assert [p.status for p in ended] == [0, 0], ended[0].output
  for process in ended:
    assert 'refused 1' in process.output
  lines = reporting.read_metrics(str(tmp_path), 'train')
  assert [line['step'] for line in lines] == list(range(1, NUM_STEPS + 1))
  assert len(reporting.read_metrics(str(tmp_path), 'eval_test_test')) == 10
  assert (tmp_path / f'checkpoints/checkpoint_{NUM_STEPS:08d}').is_dir()


def trains_twice(world, directory):
  """Two runs and an evaluation of each in one process."""
  found = []
  for name in ('one', 'other'):
    result = _run(f'{directory}/{name}')
    (evaluated,) = evaluate.evaluate_spmd_model(
      tiny_task.make_task(num_train_steps=NUM_STEPS),
      [tiny_task.make_input(9, name='test', is_training=False)],
      f'{directory}/{name}_job',
      restore_checkpoint_dir=f'{directory}/{name}/checkpoints',
    )
    assert evaluated.results['test'].num_examples == 9
    kernel = result.state.mdl_vars['params']['kernel']
    found.append(np.asarray(kernel.addressable_shards[0].data))
  np.testing.assert_array_equal(*found)
  assert jax.process_count() == world.process_count == 2
  print('both done', flush=True)


def test_two_runs_in_one_process_do_not_meet_each_other(tmp_path):
  ended = harness.run(f'{_JOBS}:trains_twice', 2, str(tmp_path))
  assert [p.status for p in ended] == [0, 0], ended[0].output
  for process in ended:
    assert 'both done' in process.output


def evaluates_uneven_files(world, files, trained, directory):
  """A language model on files of 1, 5 and 2 lines, three at a time."""

  def text(**options):
    return inputs.TextInput(
      name='text', batch_size=3, files=f'{files}/*.txt', seq_len=2, **options
    )

  model = fdl.Partial(
    models.TransformerLm,
    vocab_size=256,
    model_dim=8,
    num_layers=1,
    num_heads=2,
  )
  task = tasks.LanguageModelTask(
    model=fdl.build(model),
    learner=tasks.Learner(
      schedule=tasks.Constant(value=0.1), optimizer=tasks.sgd
    ),
    train=tasks.TrainParams(num_train_steps=1),
  )
  if world.process_count == 1:
    train.train_and_evaluate_spmd_model(task, text(is_training=True), trained)
  evaluate.evaluate_spmd_model(
    task, [text()], directory, restore_checkpoint_dir=f'{trained}/checkpoints'
  )


def test_files_of_uneven_size_are_evaluated_whole_by_two(tmp_path):
  files = tmp_path / 'files'
  files.mkdir()
  for name, size in {'a': 1, 'b': 5, 'c': 2}.items():
    (files / f'{name}.txt').write_text(f'{name}\n' * size)
  found = []
  for count in (1, 2):
    where = tmp_path / f'by_{count}'
    ended = harness.run(
      f'{_JOBS}:evaluates_uneven_files',
      count,
      *map(str, (files, tmp_path / 'trained', where)),
    )
    assert [p.status for p in ended] == [0] * count, ended[0].output
    (line,) = reporting.read_metrics(str(where), 'eval_test_text')
    found.append(line)
  names = ('loss', 'perplexity', 'num_examples')
  one, two = ({name: line[name] for name in names} for line in found)
  assert two['num_examples'] == 8
  assert two == pytest.approx(one, rel=1e-5)
  assert two['perplexity'] == pytest.approx(np.exp(two['loss']), rel=1e-5)
