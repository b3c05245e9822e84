"""Dropout from an explicit key, so that a step's draws replay exactly."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from paxlike.core import errors


def keys(
  key: jax.Array | None, num: int, *, rate: float, train: bool
) -> jax.Array | None:
  """Splits `key` where something will be dropped; None where nothing will.

  Raises:
    ConfigError: Something is to be dropped and no key is given.
  """
  if not train or rate == 0.0:
    return None
  if key is None:
    raise errors.ConfigError(
      f'Training with dropout_rate {rate} needs a key: pass key=.'
    )
  return jax.random.split(key, num)


def drop(
  x: Float[Array, '...'], rate: float, key: jax.Array | None
) -> Float[Array, '...']:
  """Zeroes each feature with probability `rate`, scaling up the rest.

  Args:
    x: Any shape; its mean stays.
    rate: Below 1.
    key: None drops nothing.
  """
  if key is None or rate == 0.0:
    return x
  kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
  return jnp.where(kept, x / (1.0 - rate), jnp.zeros_like(x))
