"""Means that stay right when summed over batches, micro-batches, processes.

A metric is a mean with its weight; combining two is a sum over sums, never a
mean of means (3.0 where the token mean is 4.6).
"""

import dataclasses
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from paxlike.core import typing as ptyping


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WeightedScalar:
  """A mean and what it is weighted by.

  Attributes:
    value: The mean over whatever was counted, a float or 0-d array; 0.0 if
      nothing was.
    weight: How much was counted, such as a number of tokens; 0.0 if nothing.
  """

  value: ptyping.Leaf
  weight: ptyping.Leaf


Metrics = Mapping[str, WeightedScalar]


def weighted_mean(
  values: Shaped[Array, '...'], weights: Float[Array, '...']
) -> WeightedScalar:
  """Mean of `values` by `weights`, in float32.

  A position of weight 0 does not count whatever its value, NaN included.

  Args:
    values: One number, or True for 1, a position.
    weights: How much each position counts, of the same shape.

  Returns:
    Mean and total weight; (0, 0) if no position counts.
  """
  weights = weights.astype(jnp.float32)
  counted = jnp.where(weights != 0, values.astype(jnp.float32), 0.0)
  total = weights.sum()
  # A total below 1 is a legal weight; only an exact 0 must not divide.
  mean = (counted * weights).sum() / jnp.where(total == 0, 1.0, total)
  return WeightedScalar(value=mean, weight=total)


class Accumulator:
  """Adds up metrics on the host, in float64, in the order they come."""

  def __init__(self) -> None:
    self._sums: dict[str, float] = {}
    self._weights: dict[str, float] = {}

  def add(self, metrics: Metrics) -> None:
    """Counts one more batch in.

    Args:
      metrics: Host values; device arrays are fetched here.
    """
    for name, metric in metrics.items():
      value, weight = np.float64(metric.value), np.float64(metric.weight)
      # 0 x NaN is NaN: an empty batch must not poison the sum.
      term = float(value * weight) if weight != 0 else 0.0
      self._sums[name] = self._sums.get(name, 0.0) + term
      self._weights[name] = self._weights.get(name, 0.0) + float(weight)

  def result(self) -> dict[str, WeightedScalar]:
    """The metrics over all that was added; empty if nothing was."""
    return {
      name: WeightedScalar(
        value=self._sums[name] / weight if weight else 0.0, weight=weight
      )
      for name, weight in self._weights.items()
    }


def combine(parts: Iterable[Metrics]) -> dict[str, WeightedScalar]:
  """The metrics over all `parts` together, as sums over sums."""
  accumulator = Accumulator()
  for part in parts:
    accumulator.add(part)
  return accumulator.result()
