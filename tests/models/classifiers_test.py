import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn import datasets

from paxlike import models
from paxlike.core import errors
from tests.models import tiny

CNN = functools.partial(
  models.CnnClassifier,
  input_shape=(8, 8, 1),
  num_classes=10,
  conv_dims=(8, 16),
  hidden_dim=32,
)
MLP = functools.partial(
  models.MlpClassifier,
  input_shape=(8, 8),
  num_classes=10,
  hidden_dims=(64, 64),
)


def _digits():
  digits = datasets.load_digits()
  images = np.asarray(digits.images / 16.0, np.float32)
  return images, np.asarray(digits.target, np.int32)


@pytest.mark.parametrize('template', [MLP, CNN])
def test_it_learns_digits_it_has_not_seen(template):
  model = models.functional(functools.partial(template, dropout_rate=0.1))
  mdl_vars = jax.jit(model.init)(jax.random.key(0))
  images, labels = _digits()
  optimizer = optax.adam(3e-3)

  def loss_fn(params, rest, images, labels, key):
    mdl_vars = {'params': params, 'non_trainable': rest}
    scores, after = model.apply(
      mdl_vars, '__call__', images, key=key, train=True
    )
    nats = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    return nats.mean(), after

  @jax.jit
  def step(mdl_vars, opt_state, images, labels, key):
    grads, after = jax.grad(loss_fn, has_aux=True)(
      mdl_vars['params'], mdl_vars['non_trainable'], images, labels, key
    )
    updates, opt_state = optimizer.update(grads, opt_state)
    params = optax.apply_updates(mdl_vars['params'], updates)
    return {**after, 'params': params}, opt_state

  opt_state = optimizer.init(mdl_vars['params'])
  draw = np.random.default_rng(0)
  for i in range(250):
    rows = draw.integers(0, 1_400, 64)
    mdl_vars, opt_state = step(
      mdl_vars, opt_state, images[rows], labels[rows], jax.random.key(i)
    )
  scores, _ = jax.jit(
    lambda mdl_vars, images: model.apply(mdl_vars, '__call__', images)
  )(mdl_vars, images[1_400:])
  assert (np.argmax(scores, axis=-1) == labels[1_400:]).mean() > 0.9


@pytest.mark.parametrize('template', [MLP, CNN])
def test_padding_rows_change_no_score_and_no_state(template):
  model = models.functional(template)
  mdl_vars = tiny.draw(model)
  images, _ = _digits()
  padded = np.concatenate([images[:4], np.full((2, 8, 8), 1e3, np.float32)])
  apply = functools.partial(model.apply, mdl_vars, '__call__', train=True)
  got, after = apply(
    jnp.asarray(padded), example_weights=jnp.array([1.0] * 4 + [0.0] * 2)
  )
  want, want_after = apply(jnp.asarray(images[:4]))
  np.testing.assert_allclose(got[:4], want, atol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after, want_after
  )


@pytest.mark.parametrize('template', [MLP, CNN])
def test_scores_are_float32_also_from_bfloat16(template):
  model = models.functional(
    functools.partial(template, compute_dtype='bfloat16')
  )
  mdl_vars = tiny.draw(model)
  scores, _ = model.apply(mdl_vars, '__call__', jnp.ones((2, 8, 8)))
  assert scores.dtype == jnp.float32
  assert scores.shape == (2, 10)


@pytest.mark.parametrize('template', [MLP, CNN])
def test_dropout_needs_a_key_and_replays_from_it(template):
  model = models.functional(functools.partial(template, dropout_rate=0.5))
  mdl_vars = tiny.draw(model)
  train = functools.partial(
    model.apply, mdl_vars, '__call__', jnp.ones((2, 8, 8)), train=True
  )
  first, again, other = (
    train(key=jax.random.key(seed))[0] for seed in (0, 0, 1)
  )
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)
  with pytest.raises(errors.ConfigError, match='key'):
    train()


def test_no_hidden_layers_is_a_linear_classifier():
  model = models.functional(functools.partial(MLP, hidden_dims=()))
  mdl_vars = tiny.draw(model)
  x = jax.random.normal(jax.random.key(1), (3, 8, 8))
  scores, _ = model.apply(mdl_vars, '__call__', x)
  linear = mdl_vars['params']['scores']
  want = x.reshape(3, 64) @ linear['kernel'].T + linear['bias']
  np.testing.assert_allclose(scores, want, atol=1e-4)


@pytest.mark.parametrize(
  ('template', 'knobs', 'message'),
  [
    (MLP, {'num_classes': 0}, 'num_classes is 0'),
    (MLP, {'input_shape': ()}, r'input_shape is \(\): it needs'),
    (MLP, {'hidden_dims': (3, 0)}, r'hidden_dims is \(3, 0\), must be >= 1'),
    (MLP, {'compute_dtype': 'int8'}, 'must be one of float32, bfloat16'),
    (CNN, {'input_shape': (6, 8, 1)}, 'not divisible by 4'),
    (CNN, {'kernel_size': 0}, 'kernel_size is 0, must be >= 1'),
    (CNN, {'dropout_rate': 1.5}, 'dropout_rate is 1.5'),
  ],
)
def test_nonsense_is_refused_by_name(template, knobs, message):
  with pytest.raises(errors.ConfigError, match=message):
    models.functional(functools.partial(template, **knobs))
