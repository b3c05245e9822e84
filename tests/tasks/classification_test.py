import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import models, tasks
from paxlike.core import errors, metrics


@pytest.fixture(scope='module')
def task():
  return fdl.build(
    fdl.Config(
      tasks.ClassificationTask,
      model=fdl.Partial(
        models.MlpClassifier, input_shape=(4,), num_classes=3, hidden_dims=(8,)
      ),
      learner=fdl.Config(
        tasks.Learner, schedule=fdl.Config(tasks.Constant, value=0.1)
      ),
      train=fdl.Config(tasks.TrainParams, num_train_steps=10),
      label_smoothing=0.1,
    )
  )


def test_padding_rows_count_neither_in_the_mean_nor_in_the_counts(task):
  mdl_vars = task.init_vars(jax.random.key(0))
  rng = np.random.default_rng(0)
  batch = {
    'inputs': jnp.asarray(rng.normal(size=(5, 4)), jnp.float32),
    'labels': jnp.asarray(rng.integers(0, 3, 5), jnp.int32),
    'example_weights': jnp.ones(5, jnp.float32),
  }
  padded = {
    name: jnp.concatenate([v, jnp.zeros((3, *v.shape[1:]), v.dtype)])
    for name, v in batch.items()
  }
  outs = [
    task.loss(mdl_vars, b, key=None, is_training=False) for b in (batch, padded)
  ]
  np.testing.assert_allclose(outs[1].loss.value, outs[0].loss.value, rtol=1e-6)
  assert float(outs[1].loss.weight) == 5
  np.testing.assert_array_equal(
    outs[0].statistics['confusion'], outs[1].statistics['confusion']
  )
  assert int(outs[1].statistics['confusion'].sum()) == 5


def test_f1_is_that_of_the_merged_counts_and_not_a_mean_over_batches(task):
  first = np.array([[2, 0, 0], [0, 0, 0], [0, 0, 0]])
  second = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0]])
  loss = metrics.WeightedScalar(value=0.0, weight=5.0)
  derived = task.derive({'loss': loss}, {'confusion': first + second})
  # Class 0: 2 right of 3 and 3; class 1: 1 right of 2 and 2; class 2 is absent.
  assert derived['f1_macro'].value == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_labels_are_smoothed_in_training_only(task):
  mdl_vars = task.init_vars(jax.random.key(0))
  batch = {
    'inputs': jnp.ones((2, 4)),
    'labels': jnp.array([0, 1], jnp.int32),
    'example_weights': jnp.ones(2),
  }
  losses = [
    float(
      task.loss(
        mdl_vars, batch, key=jax.random.key(0), is_training=is_training
      ).loss.value
    )
    for is_training in (True, False)
  ]
  assert losses[0] != pytest.approx(losses[1])


def labelled(labels, weights=None):
  count = len(labels)
  return {
    'inputs': np.ones((count, 4), np.float32),
    'labels': np.asarray(labels, np.int32),
    'example_weights': np.asarray(weights or [1.0] * count, np.float32),
  }


@pytest.mark.parametrize('labels', [[0, 3], [-1, 2]])
def test_labels_that_are_no_class_are_refused_by_name_and_value(task, labels):
  with pytest.raises(errors.ConfigError) as caught:
    task.check_batch(labelled(labels), input_name='mine')
  said = str(caught.value)
  assert f'labels of input mine go from {labels[0]} to {labels[1]}' in said
  assert 'num_classes=3: they must be 0 to 2' in said


def test_labels_of_padding_may_be_anything(task):
  task.check_batch(labelled([1, 9], [1.0, 0.0]), input_name='mine')
  mdl_vars = task.init_vars(jax.random.key(0))
  batch = jax.tree.map(jnp.asarray, labelled([1, 9], [1.0, 0.0]))
  out = task.loss(mdl_vars, batch, key=None, is_training=False)
  assert np.isfinite(out.loss.value)


@pytest.mark.parametrize('is_training', [True, False])
def test_a_label_that_is_no_class_is_never_a_perfect_loss(task, is_training):
  mdl_vars = task.init_vars(jax.random.key(0))
  out = task.loss(
    mdl_vars,
    jax.tree.map(jnp.asarray, labelled([1, 3])),
    key=jax.random.key(1) if is_training else None,
    is_training=is_training,
  )
  assert np.isnan(out.loss.value)
