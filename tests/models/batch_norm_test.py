import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import models
from paxlike.core import errors
from paxlike.models import _batch_norm

MODEL = models.functional(
  functools.partial(_batch_norm.BatchNorm, 3, axis='embed', momentum=0.75)
)
MDL_VARS = MODEL.init(jax.random.key(0))
X = np.asarray(jax.random.normal(jax.random.key(1), (6, 2, 3)) * 2.0 + 5.0)


def _train(x, weights=None):
  return MODEL.apply(
    MDL_VARS,
    '__call__',
    jnp.asarray(x),
    example_weights=None if weights is None else jnp.asarray(weights),
    train=True,
  )


def test_training_normalises_by_the_batch():
  out, _ = _train(X)
  np.testing.assert_allclose(np.mean(out, axis=(0, 1)), np.zeros(3), atol=1e-5)
  np.testing.assert_allclose(np.std(out, axis=(0, 1)), np.ones(3), atol=1e-4)


def test_running_values_move_by_the_momentum_towards_the_batch():
  _, after = _train(X)
  moved = after['non_trainable']
  np.testing.assert_allclose(moved['mean'], 0.25 * X.mean((0, 1)), rtol=1e-5)
  np.testing.assert_allclose(
    moved['variance'], 0.75 + 0.25 * X.var((0, 1)), rtol=1e-5
  )


@pytest.mark.parametrize('fill', [0.0, 1e6, np.nan])
def test_padding_rows_leave_no_trace(fill):
  padded = np.concatenate([X, np.full((2, 2, 3), fill, np.float32)])
  out, after = _train(padded, np.array([1.0] * 6 + [0.0] * 2, np.float32))
  want, want_after = _train(X)
  np.testing.assert_allclose(out[:6], want, atol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
    after['non_trainable'],
    want_after['non_trainable'],
  )


def test_a_weight_of_two_counts_a_row_twice():
  out, after = _train(X[:2], np.array([2.0, 1.0], np.float32))
  want, want_after = _train(X[[0, 0, 1]])
  np.testing.assert_allclose(out[0], want[0], atol=1e-5)
  np.testing.assert_allclose(
    after['non_trainable']['variance'],
    want_after['non_trainable']['variance'],
    rtol=1e-5,
  )


def test_a_batch_of_padding_alone_changes_nothing_and_stays_finite():
  out, after = _train(X, np.zeros(6, np.float32))
  assert np.isfinite(out).all()
  jax.tree.map(
    np.testing.assert_array_equal,
    after['non_trainable'],
    MDL_VARS['non_trainable'],
  )


def test_gradients_of_a_batch_of_padding_alone_are_finite():
  def loss(params):
    mdl_vars = {**MDL_VARS, 'params': params}
    out, _ = MODEL.apply(
      mdl_vars,
      '__call__',
      jnp.asarray(X),
      example_weights=jnp.zeros(6),
      train=True,
    )
    return (out * 0.0).sum()

  for grad in jax.tree.leaves(jax.grad(loss)(MDL_VARS['params'])):
    assert np.isfinite(grad).all()


def test_evaluation_uses_the_running_values_and_keeps_them():
  out, after = MODEL.apply(MDL_VARS, '__call__', jnp.asarray(X))
  np.testing.assert_allclose(out, X / np.sqrt(1.0 + 1e-5), rtol=1e-5)
  jax.tree.map(np.testing.assert_array_equal, after, MDL_VARS)


def test_statistics_are_of_the_global_batch_on_any_mesh():
  x = jnp.concatenate([jnp.asarray(X), jnp.asarray(X[:2] * 3)])
  mesh = jax.make_mesh(
    (4,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  rows = jax.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  train = jax.jit(lambda x: MODEL.apply(MDL_VARS, '__call__', x, train=True))
  alone, spread = train(x), train(jax.device_put(x, rows))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), alone, spread
  )


def test_a_momentum_outside_its_range_is_refused():
  with pytest.raises(errors.ConfigError, match=r'momentum is 1\.5'):
    models.functional(
      functools.partial(_batch_norm.BatchNorm, 3, axis='embed', momentum=1.5)
    )
