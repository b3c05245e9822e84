"""Language modelling: predict each next token."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from paxlike import models
from paxlike.core import metrics
from paxlike.core import typing as ptyping
from paxlike.tasks import _base, _learner, _params


def next_token_nats(
  logits: Float[Array, 'batch time vocab'], targets: Int[Array, 'batch time']
) -> Float[Array, 'batch time']:
  """Cross-entropy of each next token in nats, in float32.

  Args:
    logits: Unnormalised scores, cast to float32 before the softmax.
    targets: The token that follows each position.
  """
  return optax.losses.softmax_cross_entropy_with_integer_labels(
    logits.astype(jnp.float32), targets
  )


class LanguageModelTask(_base.Task):
  """Trains a causal language model on `ids` to predict `targets`.

  Attributes:
    bytes_per_token: Mean bytes of text that a token stands for, so that
      bits per byte can be reported; None reports none.
  """

  def __init__(
    self,
    *,
    model: Callable[..., models.TransformerLm],
    learner: _learner.Learner,
    train: _params.TrainParams,
    bytes_per_token: float | None = None,
  ):
    super().__init__(learner=learner, train=train)
    self.model = models.functional(model)
    self.bytes_per_token = bytes_per_token

  def init_vars(self, key: Key[Array, '']) -> ptyping.PyTree:
    """Fresh variables of the model."""
    return self.model.init(key)

  def logical_axes(self) -> ptyping.PyTree:
    """The logical axes of the model's variables."""
    return self.model.logical_axes()

  def loss(
    self,
    mdl_vars: ptyping.PyTree,
    batch: ptyping.Batch,
    *,
    key: Key[Array, ''] | None,
    is_training: bool,
  ) -> _base.StepOutput:
    """Mean nats per counted token, with the accuracy of the likeliest token.

    Args:
      mdl_vars: The variables.
      batch: `ids`, `targets` and `weights` of `[batch, time]`; packed batches
        also `segment_ids` and `positions`.
      key: For dropout.
      is_training: Whether dropout is on.
    """
    packing = {
      name: batch[name]
      for name in ('segment_ids', 'positions')
      if name in batch
    }
    logits, new_vars = self.model.apply(
      mdl_vars, '__call__', batch['ids'], key=key, train=is_training, **packing
    )
    weights = batch['weights']
    nats = next_token_nats(logits, batch['targets'])
    hits = jnp.argmax(logits, axis=-1) == batch['targets']
    counts = weights.sum(axis=-1)
    return _base.StepOutput(
      loss=metrics.weighted_mean(nats, weights),
      metrics={'accuracy': metrics.weighted_mean(hits, weights)},
      mdl_vars=new_vars,
      per_example={
        'nats': jnp.where(weights != 0, nats * weights, 0.0).sum(axis=-1)
        / jnp.where(counts == 0, 1.0, counts)
      },
    )

  def derive(
    self,
    totals: Mapping[str, metrics.WeightedScalar],
    statistics: Mapping[str, np.ndarray],
  ) -> dict[str, metrics.WeightedScalar]:
    """Perplexity and bits, of the mean over all tokens."""
    del statistics
    loss = totals['loss']
    mean_nats = float(loss.value)
    derived = {
      # exp overflows a float64 above 709 nats, where it says nothing anyway.
      'perplexity': math.exp(min(mean_nats, 700.0)),
      'bits_per_token': mean_nats / math.log(2),
    }
    if self.bytes_per_token is not None:
      derived['bits_per_byte'] = mean_nats / math.log(2) / self.bytes_per_token
    return {
      name: dataclasses.replace(loss, value=value)
      for name, value in derived.items()
    }
