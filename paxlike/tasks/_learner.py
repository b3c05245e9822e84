"""How gradients become updates, put together from optax's parts."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from paxlike.core import errors
from paxlike.core import typing as ptyping

# Scales and biases; a stacked scale has two dimensions, so shape cannot tell.
NO_DECAY = r'(^|/)(scale|bias)$'


@runtime_checkable
class Schedule(Protocol):
  """A learning rate for every update."""

  def rate(
    self, step: Int[Array, ''], num_train_steps: int
  ) -> Float[Array, '']:
    """The learning rate of the update after `step` updates."""
    ...


def adam(
  *,
  b1: float = 0.9,
  b2: float = 0.95,
  eps: float = 1e-8,
  weight_decay: float = 0.0,
  no_decay: str = NO_DECAY,
) -> optax.GradientTransformation:
  """AdamW's direction (Loshchilov and Hutter 2019), before the learning rate.

  Args:
    b1: Decay of the mean of gradients.
    b2: Decay of the mean of their squares.
    eps: Added to the root of that mean.
    weight_decay: Fraction of a parameter added to its direction.
    no_decay: Pattern of the names of parameters that do not decay.
  """
  parts = [optax.scale_by_adam(b1=b1, b2=b2, eps=eps)]
  if weight_decay:
    parts.append(_decay(weight_decay, no_decay))
  return optax.chain(*parts)


def sgd(
  *,
  momentum: float = 0.0,
  nesterov: bool = False,
  weight_decay: float = 0.0,
  no_decay: str = NO_DECAY,
) -> optax.GradientTransformation:
  """Gradient descent's direction, before the learning rate.

  Args:
    momentum: Decay of the sum of past directions; 0.0 keeps none.
    nesterov: Whether to look ahead along that sum.
    weight_decay: Fraction of a parameter added to its gradient.
    no_decay: Pattern of the names of parameters that do not decay.
  """
  parts = [optax.identity()]  # a chain of nothing is refused
  if weight_decay:
    parts.append(_decay(weight_decay, no_decay))
  if momentum:
    parts.append(optax.trace(decay=momentum, nesterov=nesterov))
  return optax.chain(*parts)


def _decay(rate: float, no_decay: str) -> optax.GradientTransformation:
  pattern = re.compile(no_decay)

  def decays(path: tuple[Any, ...], leaf: Any) -> bool:
    del leaf
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    return pattern.search(name) is None

  return optax.add_decayed_weights(
    rate, mask=lambda params: jax.tree.map_with_path(decays, params)
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learner:
  """An optimizer, its learning rate, and what happens to gradients first.

  Attributes:
    schedule: The learning rate of update k is `schedule.rate(k, ...)`.
    optimizer: Makes the optax transformation whose result, times minus the
      learning rate, is added to the parameters.
    clip_global_norm: Longest gradient, over all parameters; None: any.
    num_micro_batches: Parts that a batch is worked through in, one after the
      other, to save memory; the update is that of the whole batch.
    ema_decay: Also keep averaged parameters, which are then the ones to be
      evaluated; None keeps none.
  """

  schedule: Schedule
  optimizer: Callable[[], optax.GradientTransformation] = adam
  clip_global_norm: float | None = 1.0
  num_micro_batches: int = 1
  ema_decay: float | None = None

  def __post_init__(self) -> None:
    if self.num_micro_batches < 1:
      raise errors.ConfigError(
        f'learner.num_micro_batches is {self.num_micro_batches}, must be >= 1.'
      )
    if self.clip_global_norm is not None and self.clip_global_norm <= 0:
      raise errors.ConfigError(
        f'learner.clip_global_norm is {self.clip_global_norm}, must be > 0, '
        'or None for no clipping.'
      )
    if self.ema_decay is not None and not 0 < self.ema_decay < 1:
      raise errors.ConfigError(
        f'learner.ema_decay is {self.ema_decay}, must be between 0 and 1, or '
        'None for no averaging.'
      )

  def init(self, params: ptyping.PyTree) -> ptyping.PyTree:
    """The optimizer's state for `params`, before any update."""
    return self.optimizer().init(params)

  def update(
    self,
    grads: ptyping.PyTree,
    opt_states: ptyping.PyTree,
    params: ptyping.PyTree,
    *,
    rate: Float[Array, ''],
    grad_norm: Float[Array, ''],
  ) -> tuple[ptyping.PyTree, ptyping.PyTree]:
    """One update.

    Args:
      grads: Gradients of the loss, a tree like `params`.
      opt_states: The optimizer's state.
      params: The parameters.
      rate: This update's learning rate.
      grad_norm: Global norm of `grads`.

    Returns:
      New parameters, of the same dtypes, and new optimizer state.
    """
    if self.clip_global_norm is not None:
      limit = self.clip_global_norm
      scale = jnp.where(grad_norm > limit, limit / grad_norm, 1.0)
      grads = jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)
    direction, opt_states = self.optimizer().update(grads, opt_states, params)
    params = jax.tree.map(
      lambda p, d: (p - rate * d).astype(p.dtype), params, direction
    )
    return params, opt_states

  def map_like_params(
    self,
    per_param: ptyping.PyTree,
    opt_states: ptyping.PyTree,
    *,
    otherwise: Any,
  ) -> ptyping.PyTree:
    """A tree like `opt_states` that holds, for each moment, its parameter's.

    Args:
      per_param: One value a parameter, such as its logical axes.
      opt_states: Abstract or real state of the optimizer.
      otherwise: The value for what belongs to no parameter.

    Returns:
      A tree of the structure of `opt_states`.
    """
    return optax.tree.map_params(
      self.optimizer(),
      lambda _, value: value,
      opt_states,
      per_param,
      transform_non_params=lambda _: otherwise,
    )
