"""Classification: one label an example."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from paxlike import models
from paxlike.core import metrics
from paxlike.core import typing as ptyping
from paxlike.tasks import _base, _learner, _params


class ClassificationTask(_base.Task):
  """Trains a classifier of `inputs` to predict `labels`."""

  def __init__(
    self,
    *,
    model: Callable[..., Any],
    learner: _learner.Learner,
    train: _params.TrainParams,
    label_smoothing: float = 0.0,
  ):
    super().__init__(learner=learner, train=train)
    self.model = models.functional(model)
    self.label_smoothing = label_smoothing

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
    """Mean cross-entropy an example in nats, with the accuracy.

    Labels are smoothed in training only, so that evaluations compare.

    Args:
      mdl_vars: The variables.
      batch: `inputs` of `[batch, ...]`, `labels` and `example_weights` of
        `[batch]`.
      key: For dropout.
      is_training: Whether dropout is on and batch statistics are updated.
    """
    weights = batch['example_weights']
    logits, new_vars = self.model.apply(
      mdl_vars,
      '__call__',
      batch['inputs'],
      example_weights=weights,
      key=key,
      train=is_training,
    )
    logits = logits.astype(jnp.float32)
    labels = jax.nn.one_hot(batch['labels'], logits.shape[-1])
    if is_training and self.label_smoothing:
      labels = optax.losses.smooth_labels(labels, self.label_smoothing)
    nats = optax.losses.softmax_cross_entropy(logits, labels)
    predicted = jnp.argmax(logits, axis=-1)
    hits = predicted == batch['labels']
    return _base.StepOutput(
      loss=metrics.weighted_mean(nats, weights),
      metrics={'accuracy': metrics.weighted_mean(hits, weights)},
      mdl_vars=new_vars,
      per_example={'nats': jnp.where(weights != 0, nats, 0.0)},
      statistics={
        'confusion': jnp.einsum(
          'bi,bj,b->ij',
          jax.nn.one_hot(batch['labels'], logits.shape[-1]),
          jax.nn.one_hot(predicted, logits.shape[-1]),
          (weights != 0).astype(jnp.float32),
        ).astype(jnp.int32)
      },
    )

  def derive(
    self,
    totals: Mapping[str, metrics.WeightedScalar],
    statistics: Mapping[str, np.ndarray],
  ) -> dict[str, metrics.WeightedScalar]:
    """The macro F1 over the classes that occur, from the merged counts."""
    if 'confusion' not in statistics:
      return {}
    counts = np.asarray(statistics['confusion'], np.float64)
    hits = np.diag(counts)
    total = counts.sum(axis=0) + counts.sum(axis=1)
    seen = total > 0
    f1 = 2 * hits[seen] / total[seen]
    value = float(f1.mean()) if seen.any() else 0.0
    return {
      'f1_macro': metrics.WeightedScalar(
        value=value, weight=totals['loss'].weight
      )
    }

  def decode(
    self,
    mdl_vars: ptyping.PyTree,
    batch: ptyping.Batch,
    *,
    key: Key[Array, ''],
  ) -> dict[str, Array]:
    """The likeliest class and every class's probability."""
    del key
    logits, _ = self.model.apply(
      mdl_vars,
      '__call__',
      batch['inputs'],
      example_weights=batch['example_weights'],
      train=False,
    )
    return {
      'predicted': jnp.argmax(logits, axis=-1),
      'probabilities': jax.nn.softmax(logits.astype(jnp.float32)),
      'labels': batch['labels'],
    }

  def process_decode_out(
    self, source: Any, outputs: Mapping[str, np.ndarray]
  ) -> _base.Decoded:
    """Key/value pairs, and the accuracy over them."""
    decoded = super().process_decode_out(source, outputs)
    hits = outputs['predicted'] == outputs['labels']
    accuracy = metrics.WeightedScalar(
      value=float(hits.mean()) if hits.size else 0.0, weight=float(hits.size)
    )
    return _base.Decoded(metrics={'accuracy': accuracy}, pairs=decoded.pairs)
