"""The base of every layer, and the one way to make a parameter.

Promises: a layer's constructor signature is visible to Fiddle, and every
parameter carries one logical axis name per dimension. Which mesh axis a logical
axis lands on is `parallel`'s.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from paxlike.core import errors

# Names of the dimensions of parameters; None is a dimension never sharded.
LogicalAxes = tuple[str | None, ...]
COMPUTE_DTYPES = ('float32', 'bfloat16')


class Layer(nnx.Module):
  """A flax nnx module whose constructor Fiddle can see.

  nnx's metaclass shows every constructor as `(*args, **kwargs)`, under which a
  config accepts a misspelt argument and knows no default.
  """

  def __init_subclass__(cls, **kwargs: Any) -> None:
    super().__init_subclass__(**kwargs)
    parameters = list(inspect.signature(cls.__init__).parameters.values())
    cls.__signature__ = inspect.Signature(parameters[1:])


class NonTrainable(nnx.Variable[jax.Array]):
  """State that a step updates but no gradient does: running statistics."""


def normal(
  rngs: nnx.Rngs,
  shape: Sequence[int],
  *,
  axes: LogicalAxes,
  stddev: float,
) -> nnx.Param[jax.Array]:
  """A float32 parameter drawn from a normal distribution of mean 0."""
  draw = jax.random.normal(rngs.params(), tuple(shape), jnp.float32)
  return nnx.Param(draw * stddev, logical_axes=axes)


def constant(
  value: float, shape: Sequence[int], *, axes: LogicalAxes
) -> nnx.Param[jax.Array]:
  """A float32 parameter that starts as `value` everywhere."""
  filled = jnp.full(tuple(shape), value, jnp.float32)
  return nnx.Param(filled, logical_axes=axes)


def fan_in_stddev(fan_in: int) -> float:
  """Keeps the variance of activations of variance 1 over a linear map."""
  return 1.0 / math.sqrt(fan_in)


def require_positive(owner: str, **values: int) -> None:
  """Refuses sizes below 1.

  Raises:
    ConfigError: One of `values` is below 1; the message names it.
  """
  for name, value in values.items():
    if value < 1:
      raise errors.ConfigError(f'{owner}.{name} is {value}, must be >= 1.')


def require_fraction(owner: str, **values: float) -> None:
  """Refuses rates outside [0, 1).

  Raises:
    ConfigError: One of `values` is outside; the message names it.
  """
  for name, value in values.items():
    if not 0.0 <= value < 1.0:
      raise errors.ConfigError(
        f'{owner}.{name} is {value}, must be at least 0 and below 1.'
      )


def require_choice(owner: str, choices: Sequence[str], **values: str) -> None:
  """Refuses a name that is not among `choices`.

  Raises:
    ConfigError: One of `values` is none of them; the message lists them.
  """
  for name, value in values.items():
    if value not in choices:
      raise errors.ConfigError(
        f'{owner}.{name} is {value!r}, must be one of {", ".join(choices)}.'
      )
