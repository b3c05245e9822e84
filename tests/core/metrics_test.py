import jax.numpy as jnp
import numpy as np
import pytest

from paxlike.core import metrics


def test_mean_of_parts_is_the_mean_of_the_whole_and_not_a_mean_of_means():
  parts = [
    {'loss': metrics.weighted_mean(jnp.full(n, v), jnp.ones(n))}
    for n, v in ((1, 1.0), (9, 5.0))
  ]
  total = metrics.combine(parts)['loss']
  assert total.value == pytest.approx(4.6)
  assert total.weight == 10


def test_a_nan_at_a_position_of_weight_zero_does_not_count():
  values = jnp.array([1.0, jnp.nan, 3.0])
  weights = jnp.array([1.0, 0.0, 1.0])
  mean = metrics.weighted_mean(values, weights)
  assert float(mean.value) == 2.0
  assert float(mean.weight) == 2.0


def test_nothing_counted_is_zero_with_weight_zero():
  mean = metrics.weighted_mean(jnp.full(3, jnp.nan), jnp.zeros(3))
  assert (float(mean.value), float(mean.weight)) == (0.0, 0.0)


def test_fractional_weights_below_one_in_total_give_the_true_mean():
  mean = metrics.weighted_mean(jnp.array([2.0, 4.0]), jnp.array([0.1, 0.1]))
  np.testing.assert_allclose(mean.value, 3.0, rtol=1e-6)


def test_an_empty_batch_with_a_nan_mean_does_not_poison_the_sum():
  total = metrics.combine(
    [
      {'loss': metrics.WeightedScalar(value=float('nan'), weight=0.0)},
      {'loss': metrics.WeightedScalar(value=2.0, weight=3.0)},
    ]
  )['loss']
  assert (total.value, total.weight) == (2.0, 3.0)


def test_batches_of_five_and_four_weigh_as_five_and_four():
  total = metrics.combine(
    [
      {'m': metrics.WeightedScalar(value=1.0, weight=5.0)},
      {'m': metrics.WeightedScalar(value=0.0, weight=4.0)},
    ]
  )['m']
  assert total.value == pytest.approx(5 / 9)


def test_many_small_terms_keep_their_digits():
  accumulator = metrics.Accumulator()
  for _ in range(10_000):
    accumulator.add({'m': metrics.WeightedScalar(value=0.1, weight=1.0)})
  assert accumulator.result()['m'].value == pytest.approx(0.1, abs=1e-12)
