import math

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import models, tasks
from paxlike.core import errors, metrics


def make_task(**options):
  return fdl.build(
    fdl.Config(
      tasks.LanguageModelTask,
      model=fdl.Partial(
        models.TransformerLm,
        vocab_size=11,
        model_dim=16,
        num_layers=2,
        num_heads=2,
        mlp_dim=32,
      ),
      learner=fdl.Config(
        tasks.Learner, schedule=fdl.Config(tasks.Constant, value=0.1)
      ),
      train=fdl.Config(tasks.TrainParams, num_train_steps=10),
      **options,
    )
  )


@pytest.fixture(scope='module')
def task():
  return make_task()


@pytest.fixture(scope='module')
def mdl_vars(task):
  return task.init_vars(jax.random.key(0))


def batch_of(ids, **fields):
  ids = jnp.asarray(ids, jnp.int32)
  batch = {
    'ids': ids[:, :-1],
    'targets': ids[:, 1:],
    'weights': jnp.ones((len(ids), ids.shape[1] - 1), jnp.float32),
  }
  return {**batch, **{k: jnp.asarray(v) for k, v in fields.items()}}


def test_loss_is_the_mean_over_counted_tokens_not_over_rows(task, mdl_vars):
  ids = np.random.default_rng(0).integers(0, 11, (2, 9))
  weights = np.zeros((2, 8), np.float32)
  weights[0, :1] = 1
  weights[1, :7] = 1
  batch = batch_of(ids, weights=weights)
  out = task.loss(mdl_vars, batch, key=None, is_training=False)
  logits, _ = task.model.apply(mdl_vars, '__call__', batch['ids'])
  nats = -jax.nn.log_softmax(logits)[
    np.arange(2)[:, None], np.arange(8), batch['targets']
  ]
  np.testing.assert_allclose(
    out.loss.value, nats[weights > 0].mean(), rtol=1e-5
  )
  assert float(out.loss.weight) == 8


def test_a_token_id_of_zero_is_a_real_token(task, mdl_vars):
  out = task.loss(
    mdl_vars, batch_of(np.zeros((1, 5))), key=None, is_training=False
  )
  assert float(out.loss.weight) == 4
  assert float(out.loss.value) > 0


def test_a_packed_batch_has_the_loss_of_its_texts_apart(task, mdl_vars):
  rng = np.random.default_rng(1)
  a, b = rng.integers(0, 11, (1, 5)), rng.integers(0, 11, (1, 7))
  apart = metrics.combine(
    {'loss': task.loss(mdl_vars, batch_of(x), key=None, is_training=False).loss}
    for x in (a, b)
  )['loss']
  packed = {
    'ids': np.concatenate([a[:, :-1], b[:, :-1]], 1).astype(np.int32),
    'targets': np.concatenate([a[:, 1:], b[:, 1:]], 1).astype(np.int32),
    'weights': np.ones((1, 10), np.float32),
    'segment_ids': np.array([[1] * 4 + [2] * 6], np.int32),
    'positions': np.array([[*range(4), *range(6)]], np.int32),
  }
  packed = jax.tree.map(jnp.asarray, packed)
  out = task.loss(mdl_vars, packed, key=None, is_training=False)
  np.testing.assert_allclose(out.loss.value, apart.value, rtol=1e-5)
  assert float(out.loss.weight) == apart.weight


def test_a_batch_of_padding_has_zero_loss_and_no_nan_in_its_gradient(
  task, mdl_vars
):
  batch = batch_of(np.zeros((2, 5)), weights=np.zeros((2, 4), np.float32))
  grads = jax.grad(
    lambda v: task.loss(v, batch, key=None, is_training=False).loss.value
  )(mdl_vars)
  assert all(not np.any(leaf) for leaf in jax.tree.leaves(grads))


def test_perplexity_and_bits_are_those_of_the_total_mean():
  task = make_task(bytes_per_token=4.0)
  loss = metrics.WeightedScalar(value=2.0, weight=10.0)
  derived = task.derive({'loss': loss}, {})
  assert derived['perplexity'].value == pytest.approx(math.exp(2.0))
  assert derived['bits_per_token'].value == pytest.approx(2 / math.log(2))
  assert derived['bits_per_byte'].value == pytest.approx(0.5 / math.log(2))


@pytest.mark.parametrize('field', ['ids', 'targets'])
def test_tokens_beyond_the_vocabulary_are_refused(field):
  task = make_task()
  tokens = {name: np.ones((1, 3), np.int32) for name in ('ids', 'targets')}
  batch = {**tokens, 'weights': np.ones((1, 3), np.float32)}
  task.check_batch(batch, input_name='mine')
  batch[field][0, 1] = 11
  with pytest.raises(errors.ConfigError, match=f'{field} .*vocab_size=11'):
    task.check_batch(batch, input_name='mine')
  batch['weights'][0, 1] = 0.0
  task.check_batch(batch, input_name='mine')
