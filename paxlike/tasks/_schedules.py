"""Learning rates as functions of the number of updates done before."""

import dataclasses
import math

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from paxlike.core import errors


def _check_rate(name: str, rate: float) -> None:
  if not (math.isfinite(rate) and rate >= 0):
    raise errors.ConfigError(
      f'{name} is {rate}; a learning rate must be finite and >= 0.'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant:
  """The same learning rate for every update."""

  value: float

  def __post_init__(self) -> None:
    _check_rate('Constant.value', self.value)

  def describe(self, num_train_steps: int) -> str:
    """In words."""
    del num_train_steps
    return f'is {self.value:g} throughout'

  def rate(
    self, step: Int[Array, ''], num_train_steps: int
  ) -> Float[Array, '']:
    """The learning rate of the update after `step` updates."""
    del step, num_train_steps
    return jnp.asarray(self.value, jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupCosine:
  """A straight line up from 0, then half a cosine down.

  Attributes:
    peak: Highest learning rate, reached after `warmup_steps` updates.
    warmup_steps: Updates on the way up.
    end_fraction: Last learning rate as a fraction of `peak`.
    total_steps: Where the cosine ends; None: at the run's num_train_steps.
  """

  peak: float
  warmup_steps: int = 0
  end_fraction: float = 0.0
  total_steps: int | None = None

  def __post_init__(self) -> None:
    _check_rate('WarmupCosine.peak', self.peak)
    if self.warmup_steps < 0:
      raise errors.ConfigError(
        f'WarmupCosine.warmup_steps is {self.warmup_steps}, must be >= 0.'
      )
    if self.total_steps is not None and self.total_steps < self.warmup_steps:
      raise errors.ConfigError(
        f'WarmupCosine.total_steps is {self.total_steps}, must be at least '
        f'warmup_steps ({self.warmup_steps}).'
      )

  def describe(self, num_train_steps: int) -> str:
    """In words: how high, where it ends, and whether the run does there too."""
    total = self.total_steps or num_train_steps
    last = self.peak * self.end_fraction
    text = (
      f'goes up to {self.peak:g} in {self._warmup(total)} steps, then along a '
      f'cosine down to {last:g} at step {total}'
    )
    if total < num_train_steps:
      text += (
        f', and STAYS at {last:g} for the other {num_train_steps - total} of '
        f'{num_train_steps} steps'
      )
    elif total > num_train_steps:
      text += f', which the run does NOT reach: it ends at {num_train_steps}'
    return text

  def _warmup(self, total: int) -> int:
    # A run cut short for a trial keeps a legal schedule: all of it warm-up.
    return min(self.warmup_steps, max(total - 1, 0))

  def rate(
    self, step: Int[Array, ''], num_train_steps: int
  ) -> Float[Array, '']:
    """The learning rate of the update after `step` updates."""
    total = self.total_steps or num_train_steps
    warmup = self._warmup(total)
    schedule = optax.schedules.warmup_cosine_decay_schedule(
      init_value=0.0 if warmup else self.peak,
      peak_value=self.peak,
      warmup_steps=warmup,
      decay_steps=max(total, 1),
      end_value=self.peak * self.end_fraction,
    )
    return jnp.asarray(schedule(step), jnp.float32)
