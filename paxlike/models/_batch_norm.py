"""Batch normalisation whose statistics do not see padding rows."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from paxlike.core import errors
from paxlike.models import _layer


class BatchNorm(_layer.Layer):
  """Normalises each channel over the batch, and keeps running statistics.

  Under `jax.jit` over a mesh the batch is the global one, so the statistics are
  the same on any number of devices.

  Attributes:
    mean: Running mean of each channel; changes only while training.
    variance: Running variance of each channel, that of the population.
  """

  def __init__(
    self,
    dim: int,
    *,
    axis: str,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    rngs: nnx.Rngs,
  ):
    del rngs  # Nothing is drawn; every layer takes it.
    if not 0.0 <= momentum <= 1.0:
      raise errors.ConfigError(
        f'BatchNorm.momentum is {momentum}, must be within 0 and 1.'
      )
    self.momentum = momentum
    self.epsilon = epsilon
    self.scale = _layer.constant(1.0, (dim,), axes=(axis,))
    self.bias = _layer.constant(0.0, (dim,), axes=(axis,))
    self.mean = _layer.NonTrainable(jnp.zeros((dim,)), logical_axes=(axis,))
    self.variance = _layer.NonTrainable(jnp.ones((dim,)), logical_axes=(axis,))

  def __call__(
    self,
    x: Float[Array, 'batch ... dim'],
    *,
    example_weights: Float[Array, ' batch'] | None = None,
    train: bool = False,
  ) -> Float[Array, 'batch ... dim']:
    """Normalises by the batch while training, by the running values else.

    Args:
      x: Channels last.
      example_weights: How much each row counts in the statistics; a row of
        weight 0 does not, NaN included. A batch of nothing but such rows leaves
        the running values as they are. None counts every row once.
      train: Whether to use the batch's statistics and update the running ones.
    """
    if train:
      mean, variance = self._update(x.astype(jnp.float32), example_weights)
    else:
      mean, variance = self.mean[...], self.variance[...]
    scale = self.scale[...] * jax.lax.rsqrt(variance + self.epsilon)
    out = (x.astype(jnp.float32) - mean) * scale + self.bias[...]
    return out.astype(x.dtype)

  def _update(
    self,
    x: Float[Array, 'batch ... dim'],
    example_weights: Float[Array, ' batch'] | None,
  ) -> tuple[Float[Array, ' dim'], Float[Array, ' dim']]:
    """Statistics of this batch, which the running ones move towards."""
    if example_weights is None:
      example_weights = jnp.ones((x.shape[0],), jnp.float32)
    weights = example_weights.astype(jnp.float32)
    weights = weights.reshape(-1, *(1,) * (x.ndim - 1))
    counted = jnp.where(weights != 0, x, 0.0)
    axes = tuple(range(x.ndim - 1))
    positions = x[0, ..., 0].size
    total = weights.sum() * positions
    divisor = jnp.where(total == 0, 1.0, total)
    mean = (counted * weights).sum(axes) / divisor
    variance = (jnp.square(counted - mean) * weights).sum(axes) / divisor
    keep = jnp.where(total == 0, 1.0, self.momentum)
    self._move(self.mean, mean, keep)
    self._move(self.variance, variance, keep)
    return mean, variance

  def _move(
    self,
    running: _layer.NonTrainable,
    batch: Float[Array, ' dim'],
    keep: Float[Array, ''],
  ) -> None:
    moved = keep * running[...] + (1.0 - keep) * batch
    running[...] = jax.lax.stop_gradient(moved)
