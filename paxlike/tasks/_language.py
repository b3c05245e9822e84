"""Language modelling: predict each next token."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from paxlike import models
from paxlike.core import errors, metrics
from paxlike.core import typing as ptyping
from paxlike.tasks import (
  _base,
  _decoder,
  _learner,
  _model_task,
  _params,
  _text_metrics,
)

if TYPE_CHECKING:
  from paxlike import inputs

_GREEDY = _decoder.DecoderParams()


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


class LanguageModelTask(_model_task.ModelTask):
  """Trains a causal language model on `ids` to predict `targets`.

  Attributes:
    decoder: How prompts are continued, or continuations scored.
    bytes_per_token: Mean bytes of text that a token stands for, so that
      bits per byte can be reported; None reports none.
  """

  def __init__(
    self,
    *,
    model: Callable[..., models.TransformerLm],
    learner: _learner.Learner,
    train: _params.TrainParams,
    decoder: _decoder.DecoderParams = _GREEDY,
    bytes_per_token: float | None = None,
  ):
    super().__init__(model=model, learner=learner, train=train)
    self.decoder = decoder
    self.bytes_per_token = bytes_per_token
    size = getattr(self.model.template, 'keywords', {}).get('vocab_size')
    ids = (*decoder.stop_ids, decoder.pad_id)
    if size is not None and max(ids) >= size:
      raise errors.ConfigError(
        f'task_p.decoder has stop_ids={tuple(decoder.stop_ids)} and '
        f'pad_id={decoder.pad_id}, but the model has vocab_size={size}: they '
        f'must be 0 to {size - 1}.'
      )

  def check_batch(self, batch: ptyping.HostBatch, *, input_name: str) -> None:
    """Refuses tokens that the model has no place for."""
    if 'weights' not in batch:  # a batch of prompts
      return
    counted = batch['weights'] != 0
    for field in ('ids', 'targets'):
      self.check_below(
        'vocab_size',
        batch[field][counted],
        field=field,
        input_name=input_name,
      )

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
      'perplexity': _perplexity(mean_nats),
      'bits_per_token': mean_nats / math.log(2),
    }
    if self.bytes_per_token is not None:
      derived['bits_per_byte'] = mean_nats / math.log(2) / self.bytes_per_token
    return {
      name: dataclasses.replace(loss, value=value)
      for name, value in derived.items()
    }

  @property
  def decode_settings(self) -> str:
    """How it decodes."""
    return repr(self.decoder)

  def prepare_decode(
    self, mdl_vars: ptyping.PyTree
  ) -> dict[str, ptyping.PyTree]:
    """The model in the form that continues prompts fast, if it is to."""
    return _decoder.prepare(self.decoder, self.model, mdl_vars)

  def decode(
    self,
    mdl_vars: ptyping.PyTree,
    batch: ptyping.Batch,
    *,
    key: Key[Array, ''],
  ) -> dict[str, Array]:
    """Continues prompts, or scores what follows them in the data.

    Args:
      mdl_vars: The variables, with what `prepare_decode` made of them or not.
      batch: `prompt_ids` and `prompt_lengths`; where the text that follows is
        known also `targets` and `weights`, 1 on that text alone.
      key: For sampling.
    """
    return _decoder.decode(self.decoder, self.model, mdl_vars, batch, key=key)

  def process_decode_out(
    self, source: 'inputs.Input', outputs: Mapping[str, np.ndarray]
  ) -> _base.Decoded:
    """Prompt, decoded text and target of each example, and their metrics."""
    return _decoder.process(self.decoder, source, outputs)

  def derive_decoded(
    self,
    totals: Mapping[str, metrics.WeightedScalar],
    statistics: Mapping[str, np.ndarray],
  ) -> dict[str, metrics.WeightedScalar]:
    """BLEU and chrF of all texts, and the perplexity of what was scored."""
    found = {}
    if 'loss' in totals:
      loss = totals['loss']
      found['perplexity'] = dataclasses.replace(
        loss, value=_perplexity(float(loss.value))
      )
    for name in _text_metrics.known(statistics):
      found[name] = dataclasses.replace(
        totals['exact_match'], value=_text_metrics.score(name, statistics[name])
      )
    return found


def _perplexity(mean_nats: float) -> float:
  # exp overflows a float64 above 709 nats, where it says nothing anyway.
  return math.exp(min(mean_nats, 700.0))
