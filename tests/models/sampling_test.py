import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import models
from paxlike.core import errors
from paxlike.models import _sampling

PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.25, 0.2])
NUM_DRAWS = 4_000


def _shares(**rules):
  """How often each token is drawn."""
  sampling = models.Sampling(**{'temperature': 1.0, **rules})
  logits = jnp.tile(
    jnp.log(jnp.asarray(PROBABILITIES, jnp.float32)), (NUM_DRAWS, 1)
  )
  keys = jax.random.split(jax.random.key(0), NUM_DRAWS)
  drawn = np.asarray(sampling.choose(logits, keys))
  return np.bincount(drawn, minlength=5) / NUM_DRAWS


def _expected(kept, power=1.0):
  weights = np.zeros(5)
  weights[kept] = PROBABILITIES[kept] ** power
  return weights / weights.sum()


@pytest.mark.parametrize(
  ('rules', 'kept', 'power'),
  [
    ({}, [0, 1, 2, 3, 4], 1.0),
    ({'temperature': 0.5}, [0, 1, 2, 3, 4], 2.0),
    ({'top_k': 2}, [1, 3], 1.0),
    ({'top_k': 99}, [0, 1, 2, 3, 4], 1.0),
    ({'top_p': 0.6}, [1, 3], 1.0),
    ({'top_p': 0.66}, [1, 3, 4], 1.0),
    ({'top_p': 1e-9}, [1], 1.0),
    ({'min_p': 0.45}, [1, 3, 4], 1.0),
    ({'min_p': 1.0}, [1], 1.0),
    # Of the best three, renormalised, 0.47 and 0.29 reach 0.7.
    ({'top_k': 3, 'top_p': 0.7}, [1, 3], 1.0),
    ({'top_k': 3, 'min_p': 0.6}, [1, 3], 1.0),
    # The temperature comes first: squared, 0.16 of 0.275 reaches 0.55.
    ({'temperature': 0.5, 'top_p': 0.55}, [1], 1.0),
  ],
)
def test_draws_follow_the_distribution_that_the_rules_leave(rules, kept, power):
  shares = _shares(**rules)
  want = _expected(kept, power)
  assert np.flatnonzero(shares).tolist() == kept
  np.testing.assert_allclose(shares, want, atol=0.03)


def test_greedy_takes_the_best_and_the_lowest_id_of_equals():
  logits = jnp.array([[0.0, 2.0, 1.0], [3.0, 3.0, 1.0]])
  assert models.Sampling().choose(logits, None).tolist() == [1, 0]


def test_a_low_temperature_approaches_greedy():
  assert _shares(temperature=1e-3)[1] == 1.0


def test_every_part_of_a_row_key_matters():
  key = jax.random.key(0)
  parts = jnp.array([[1, 2, 3], [2, 2, 3], [1, 3, 3], [1, 2, 4], [3, 2, 1]])
  keys = _sampling.row_keys(key, parts[:, 0], parts[:, 1], parts[:, 2])
  bits = {tuple(row) for row in np.asarray(jax.random.key_data(keys)).tolist()}
  assert len(bits) == 5


@pytest.mark.parametrize(
  ('rules', 'message'),
  [
    ({'temperature': -1.0}, 'temperature is -1'),
    ({'temperature': float('nan')}, 'temperature is nan'),
    ({'top_k': 0}, 'top_k is 0'),
    ({'top_p': 0.0}, 'top_p is 0'),
    ({'top_p': 1.5}, 'top_p is 1'),
    ({'min_p': -0.1}, 'min_p is -0'),
  ],
)
def test_nonsense_is_refused_when_built(rules, message):
  with pytest.raises(errors.ConfigError, match=message):
    models.Sampling(**rules)
