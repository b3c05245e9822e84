"""Metrics of a classifier that are no means: F1, calibration error, AUC.

Each is computed once, from sums or rows of all examples, never averaged over
batches or processes.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

_NUM_BINS = 15


def statistics(
  probabilities: Float[Array, 'batch classes'],
  labels: Int[Array, ' batch'],
  *,
  is_counted: Bool[Array, ' batch'],
) -> dict[str, Array]:
  """What the examples of a batch add to the counts.

  Args:
    probabilities: Of each class.
    labels: The true classes.
    is_counted: Which rows are examples.

  Returns:
    `confusion`: counts [true class, predicted class]; `calibration`: [3, 15],
    for each bin of confidence the examples, the right ones and the sum of
    their confidences.
  """
  num_classes = probabilities.shape[-1]
  predicted = probabilities.argmax(axis=-1)
  counted = is_counted.astype(jnp.float32)
  confidence = jnp.where(is_counted, probabilities.max(axis=-1), 0.0)
  bins = jnp.clip((confidence * _NUM_BINS).astype(jnp.int32), 0, _NUM_BINS - 1)
  in_bin = jax.nn.one_hot(bins, _NUM_BINS) * counted[:, None]
  hits = (predicted == labels).astype(jnp.float32)
  return {
    'confusion': jnp.einsum(
      'bi,bj,b->ij',
      jax.nn.one_hot(labels, num_classes),
      jax.nn.one_hot(predicted, num_classes),
      counted,
    ).astype(jnp.int32),
    'calibration': jnp.stack(
      [in_bin.sum(axis=0), hits @ in_bin, confidence @ in_bin]
    ),
  }


def derive(found: Mapping[str, np.ndarray]) -> dict[str, float]:
  """The metrics of all examples.

  Args:
    found: Sums of `statistics`; the rows `probabilities` and `labels` of all
      examples if AUC is asked for.
  """
  values = {}
  if 'confusion' in found:
    values['f1_macro'] = f1_macro(found['confusion'])
  if 'calibration' in found:
    values['calibration_error'] = calibration_error(found['calibration'])
  if 'probabilities' in found:
    area = auc_macro(found['probabilities'], found['labels'])
    if area is not None:
      values['auc'] = area
  return values


def f1_macro(confusion: np.ndarray) -> float:
  """Mean F1 over the classes that occur; 0.0 if none does."""
  counts = np.asarray(confusion, np.float64)
  total = counts.sum(axis=0) + counts.sum(axis=1)
  seen = total > 0
  f1 = 2 * np.diag(counts)[seen] / total[seen]
  return float(f1.mean()) if seen.any() else 0.0


def calibration_error(bins: np.ndarray) -> float:
  """Expected calibration error: |accuracy - confidence| of the mean example."""
  count, hits, confidence = np.asarray(bins, np.float64)
  total = count.sum()
  return float(np.abs(hits - confidence).sum() / total) if total else 0.0


def auc_macro(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
  """Area under the ROC curve, exactly: ties count half.

  Args:
    probabilities: `[examples, classes]`.
    labels: The true classes.

  Returns:
    Of class 1 where there are two classes; else the mean over the classes of
    each against the rest, those that have examples on both sides. None if
    there is no such class.
  """
  num_classes = probabilities.shape[1]
  classes = [1] if num_classes == 2 else range(num_classes)
  areas = [_auc(probabilities[:, c], labels == c) for c in classes]
  known = [area for area in areas if area is not None]
  return float(np.mean(known)) if known else None


def _auc(scores: np.ndarray, is_positive: np.ndarray) -> float | None:
  """How often a positive scores above a negative, over all such pairs."""
  num_positive = int(is_positive.sum())
  num_negative = len(is_positive) - num_positive
  if not num_positive or not num_negative:
    return None
  _, inverse, counts = np.unique(
    scores, return_inverse=True, return_counts=True
  )
  # The mean rank, from 1, of all that share a score.
  ranks = np.cumsum(counts) - (counts - 1) / 2
  rank_sum = ranks[inverse][is_positive].sum()
  pairs = rank_sum - num_positive * (num_positive + 1) / 2
  return float(pairs / (num_positive * num_negative))
