"""Every count exact, every mean over all examples, on any batches and mesh."""

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

from paxlike import inputs, models, programs, tasks
from tests.fakes import tiny_task


def numpy_loss(kernel, batch):
  squares = (batch['inputs'] @ kernel - batch['labels']) ** 2
  return squares.astype(np.float64).mean()


class OfProcesses(inputs.ArraysInput):
  """Read as so many processes do it: each its rows of every batch.

  Attributes:
    num_processes: How many.
  """

  num_processes = 1

  def read(self, position, rows):
    parts = [
      super(OfProcesses, self).read(position, range(part[0], part[-1] + 1))
      for part in np.array_split(np.asarray(rows), self.num_processes)
      if len(part)
    ]
    return {
      name: np.concatenate([part[name] for part in parts]) for name in parts[0]
    }


@pytest.mark.parametrize('num_devices', [1, 2, 4])
@pytest.mark.parametrize('batch_size', range(1, 9))
def test_count_is_exact_and_mean_that_of_numpy(batch_size, num_devices):
  task = tiny_task.make_task()
  program = programs.EvalProgram(task, tiny_task.make_partitioner(num_devices))
  kernel = np.array([0.5, -1.0, 2.0, 0.25], np.float32)
  mdl_vars = {
    'params': {'kernel': kernel},
    'non_trainable': {'seen': np.float32(0)},
  }
  for n in range(1, 18):
    batch = tiny_task.make_batch(n)
    want = numpy_loss(kernel, batch)
    source = OfProcesses(
      name='tiny',
      batch_size=batch_size,
      arrays={name: batch[name] for name in ('inputs', 'labels')},
    )
    found = []
    for source.num_processes in (1, 2, 3):
      result = program.run(mdl_vars, source)
      assert result.num_examples == n
      assert result.metrics['loss'].weight == n
      found.append(float(result.metrics['loss'].value))
    assert found[0] == pytest.approx(want, rel=1e-6)
    assert len(set(found)) == 1


def test_all_batch_sizes_and_meshes_give_one_result():
  task = tiny_task.make_task()
  mdl_vars = {
    'params': {'kernel': np.ones(4, np.float32)},
    'non_trainable': {'seen': np.float32(0)},
  }
  source = tiny_task.make_input(17, batch_size=6, is_training=False)
  losses = []
  for num_devices in (1, 2, 4):
    partitioner = tiny_task.make_partitioner(num_devices)
    program = programs.EvalProgram(task, partitioner)
    losses.append(float(program.run(mdl_vars, source).metrics['loss'].value))
  assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def make_classifier(num_classes=3):
  return tasks.ClassificationTask(
    model=fdl.build(
      fdl.Partial(
        models.MlpClassifier,
        input_shape=(4,),
        num_classes=num_classes,
        hidden_dims=(5,),
      )
    ),
    learner=tasks.Learner(
      schedule=tasks.Constant(value=0.1), optimizer=tasks.sgd
    ),
    train=tasks.TrainParams(num_train_steps=1),
  )


def make_digits(n, *, batch_size, num_classes=3):
  rng = np.random.default_rng(3)
  return inputs.ArraysInput(
    name='digits',
    batch_size=batch_size,
    arrays={
      'inputs': rng.normal(size=(n, 4)).astype(np.float32),
      'labels': rng.integers(num_classes, size=n).astype(np.int32),
    },
  )


@pytest.mark.parametrize(
  ('batch_size', 'num_devices'), [(7, 1), (4, 2), (3, 4)]
)
def test_what_is_no_mean_is_computed_once_from_all_examples(
  batch_size, num_devices
):
  task = make_classifier()
  mdl_vars = task.init_vars(jax.random.key(1, impl='threefry2x32'))
  whole = make_digits(40, batch_size=40)
  batch = whole.read(0, range(40))
  logits, _ = task.model.apply(
    mdl_vars,
    '__call__',
    jnp.asarray(batch['inputs']),
    example_weights=jnp.asarray(batch['example_weights']),
    train=False,
  )
  probabilities = np.asarray(jax.nn.softmax(logits))
  predicted = probabilities.argmax(axis=1)
  confidence = probabilities.max(axis=1)
  bins = np.minimum((confidence * 15).astype(int), 14)
  hits = predicted == batch['labels']
  error = sum(
    abs(hits[bins == b].sum() - confidence[bins == b].sum()) for b in range(15)
  )

  program = programs.EvalProgram(task, tiny_task.make_partitioner(num_devices))
  result = program.run(mdl_vars, make_digits(40, batch_size=batch_size))
  found = {name: float(m.value) for name, m in result.metrics.items()}
  assert found['f1_macro'] == pytest.approx(
    sklearn.metrics.f1_score(batch['labels'], predicted, average='macro')
  )
  assert found['auc'] == pytest.approx(
    sklearn.metrics.roc_auc_score(
      batch['labels'], probabilities, multi_class='ovr'
    )
  )
  assert found['calibration_error'] == pytest.approx(error / 40, abs=1e-6)


def test_token_weights_follow_the_paddings_where_none_are_given():
  rng = np.random.default_rng(0)
  ids = rng.integers(8, size=(5, 6))
  paddings = np.zeros((5, 6), np.float32)
  paddings[:, 4:] = 1.0
  source = inputs.ArraysInput(
    name='lm',
    batch_size=2,
    arrays={'ids': ids, 'targets': ids, 'paddings': paddings},
  )
  task = tasks.LanguageModelTask(
    model=fdl.build(
      fdl.Partial(
        models.TransformerLm,
        vocab_size=8,
        model_dim=8,
        num_layers=1,
        num_heads=2,
      )
    ),
    learner=tasks.Learner(
      schedule=tasks.Constant(value=0.1), optimizer=tasks.sgd
    ),
    train=tasks.TrainParams(num_train_steps=1),
  )
  mdl_vars = task.init_vars(jax.random.key(0, impl='threefry2x32'))
  result = programs.EvalProgram(task, tiny_task.make_partitioner(2)).run(
    mdl_vars, source
  )
  assert result.metrics['loss'].weight == 5 * 4
  assert result.num_examples == 5
  assert result.metrics['perplexity'].value == pytest.approx(
    np.exp(result.metrics['loss'].value)
  )


def test_two_hosts_count_files_of_uneven_size_whole(tmp_path):
  for name, size in {'a': 1, 'b': 5, 'c': 2}.items():
    (tmp_path / f'{name}.txt').write_text('x\n' * size)
  source = inputs.TextInput(
    name='text',
    batch_size=3,
    files=f'{tmp_path}/*.txt',
    seq_len=2,
  )
  ids = [
    source.read(position, rows)['example_id']
    for rows in (range(2), range(2, 3))
    for position in range(source.num_batches)
  ]
  found = np.concatenate(ids)
  assert sorted(found[found >= 0]) == list(range(8))
