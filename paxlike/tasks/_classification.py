"""Classification: one label an example."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from paxlike.core import metrics
from paxlike.core import typing as ptyping
from paxlike.tasks import _base, _class_metrics, _learner, _model_task, _params


class ClassificationTask(_model_task.ModelTask):
  """Trains a classifier of `inputs` to predict `labels`.

  Attributes:
    label_smoothing: How much of each label is spread over all classes.
    auc: Whether evaluations report the area under the ROC curve. It is exact,
      so they hold the probabilities of all examples and classes in memory.
  """

  def __init__(
    self,
    *,
    model: Callable[..., Any],
    learner: _learner.Learner,
    train: _params.TrainParams,
    label_smoothing: float = 0.0,
    auc: bool = True,
  ):
    super().__init__(model=model, learner=learner, train=train)
    self.label_smoothing = label_smoothing
    self.auc = auc

  def check_batch(self, batch: ptyping.HostBatch, *, input_name: str) -> None:
    """Refuses labels that are no class of the model."""
    counted = batch['labels'][batch['example_weights'] != 0]
    self.check_below(
      'num_classes', counted, field='labels', input_name=input_name
    )

  def loss(
    self,
    mdl_vars: ptyping.PyTree,
    batch: ptyping.Batch,
    *,
    key: Key[Array, ''] | None,
    is_training: bool,
  ) -> _base.StepOutput:
    """Mean cross-entropy an example in nats, with the accuracy.

    Labels are smoothed in training only, so that evaluations compare. A label
    that is no class makes the loss NaN: never is it a perfect 0.

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
    is_class = (batch['labels'] >= 0) & (batch['labels'] < logits.shape[-1])
    nats = jnp.where(is_class, nats, jnp.nan)
    predicted = jnp.argmax(logits, axis=-1)
    hits = predicted == batch['labels']
    probabilities = jax.nn.softmax(logits)
    rows = {'probabilities': probabilities, 'labels': batch['labels']}
    return _base.StepOutput(
      loss=metrics.weighted_mean(nats, weights),
      metrics={'accuracy': metrics.weighted_mean(hits, weights)},
      mdl_vars=new_vars,
      per_example={'nats': jnp.where(weights != 0, nats, 0.0)},
      statistics=_class_metrics.statistics(
        probabilities, batch['labels'], is_counted=weights != 0
      ),
      collected=rows if self.auc and not is_training else {},
    )

  def derive(
    self,
    totals: Mapping[str, metrics.WeightedScalar],
    statistics: Mapping[str, np.ndarray],
  ) -> dict[str, metrics.WeightedScalar]:
    """Macro F1, calibration error and area under the curve, over all."""
    weight = totals['loss'].weight
    return {
      name: metrics.WeightedScalar(value=value, weight=weight)
      for name, value in _class_metrics.derive(statistics).items()
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
