import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paxlike import tasks
from paxlike.core import errors

PARAMS = {
  'dense': {'kernel': jnp.ones((2, 3)), 'bias': jnp.ones(3)},
  'stacked': {'scale': jnp.ones((4, 2))},
}


def update(learner, grads, *, rate=0.1, params=PARAMS, states=None):
  states = learner.init(params) if states is None else states
  norm = optax.tree.norm(grads)
  return learner.update(
    grads, states, params, rate=jnp.float32(rate), grad_norm=norm
  )


def learner(**options):
  return tasks.Learner(**{'schedule': tasks.Constant(value=0.1), **options})


def test_adam_is_optax_adamw_on_what_decays():
  ours = learner(
    clip_global_norm=None,
    optimizer=lambda: tasks.adam(b2=0.95, weight_decay=0.1),
  )
  theirs = optax.adamw(0.1, b1=0.9, b2=0.95, weight_decay=0.1)
  params = {'kernel': jnp.array([1.0, -2.0])}
  grads = {'kernel': jnp.array([0.5, 0.25])}
  states, optax_states = ours.init(params), theirs.init(params)
  expected = params
  for _ in range(3):
    params, states = update(ours, grads, params=params, states=states)
    updates, optax_states = theirs.update(grads, optax_states, expected)
    expected = optax.apply_updates(expected, updates)
  np.testing.assert_allclose(params['kernel'], expected['kernel'], rtol=1e-6)


def test_scales_and_biases_do_not_decay_whatever_their_shape():
  decaying = learner(optimizer=lambda: tasks.sgd(weight_decay=0.5))
  zeros = jax.tree.map(jnp.zeros_like, PARAMS)
  params, _ = update(decaying, zeros)
  np.testing.assert_allclose(params['dense']['kernel'], 0.95, rtol=1e-6)
  np.testing.assert_array_equal(params['dense']['bias'], 1.0)
  np.testing.assert_array_equal(params['stacked']['scale'], 1.0)


def test_a_gradient_longer_than_the_limit_is_shortened_to_it():
  clipped = learner(optimizer=tasks.sgd, clip_global_norm=1.0)
  grads = {'w': jnp.array([3.0, 4.0])}
  params, _ = update(clipped, grads, params={'w': jnp.zeros(2)})
  np.testing.assert_allclose(params['w'], [-0.06, -0.08], rtol=1e-6)


def test_a_short_or_zero_gradient_is_left_alone():
  clipped = learner(optimizer=tasks.sgd, clip_global_norm=1.0)
  for values in ([0.3, 0.4], [0.0, 0.0]):
    params, _ = update(
      clipped, {'w': jnp.array(values)}, params={'w': jnp.zeros(2)}
    )
    np.testing.assert_allclose(params['w'], -0.1 * np.array(values))


def test_moments_get_what_belongs_to_their_parameter():
  adam = learner(optimizer=lambda: tasks.adam(weight_decay=0.1))
  states = jax.eval_shape(adam.init, PARAMS)
  axes = {
    'dense': {'kernel': ('embed', 'mlp'), 'bias': ('mlp',)},
    'stacked': {'scale': ('layers', None)},
  }
  mapped = adam.map_like_params(axes, states, otherwise='none')
  assert mapped[0].mu == axes
  assert mapped[0].nu == axes
  assert mapped[0].count == 'none'


@pytest.mark.parametrize(
  'options',
  [{'num_micro_batches': 0}, {'clip_global_norm': 0.0}, {'ema_decay': 1.0}],
)
def test_nonsense_is_refused_when_built(options):
  (name,) = options
  with pytest.raises(errors.ConfigError, match=name):
    learner(**options)
