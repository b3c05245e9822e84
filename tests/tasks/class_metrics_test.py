import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

from paxlike.tasks import _class_metrics as class_metrics


def draw(n, *, num_classes, seed=0, decimals=2):
  """Probabilities, rounded so that there are ties, and labels."""
  rng = np.random.default_rng(seed)
  probabilities = rng.dirichlet(np.ones(num_classes), n).round(decimals)
  return probabilities.astype(np.float32), rng.integers(num_classes, size=n)


def test_the_area_of_two_classes_is_that_of_scikit_learn():
  probabilities, labels = draw(500, num_classes=2, decimals=1)
  want = sklearn.metrics.roc_auc_score(labels, probabilities[:, 1])
  assert class_metrics.auc_macro(probabilities, labels) == pytest.approx(
    want, abs=1e-12
  )


def test_the_area_of_many_classes_is_the_mean_of_each_against_the_rest():
  probabilities, labels = draw(300, num_classes=5)
  want = np.mean(
    [
      sklearn.metrics.roc_auc_score(labels == c, probabilities[:, c])
      for c in range(5)
    ]
  )
  assert class_metrics.auc_macro(probabilities, labels) == pytest.approx(
    want, abs=1e-12
  )


def test_without_two_sides_there_is_no_area():
  probabilities, _ = draw(4, num_classes=3)
  assert class_metrics.auc_macro(probabilities, np.zeros(4, np.int32)) is None


def test_a_perfectly_calibrated_classifier_has_no_error():
  # Four examples at confidence 0.75, three of them right.
  probabilities = jnp.tile(jnp.array([[0.75, 0.25]]), (4, 1))
  found = class_metrics.statistics(
    probabilities, jnp.array([0, 0, 0, 1]), is_counted=jnp.ones(4, bool)
  )
  assert class_metrics.calibration_error(np.asarray(found['calibration'])) == (
    pytest.approx(0.0, abs=1e-6)
  )


def test_calibration_error_is_weighted_by_the_examples_of_each_bin():
  # 3 examples sure (0.9) and all wrong, 1 at 0.6 and right.
  probabilities = jnp.array([[0.9, 0.1]] * 3 + [[0.6, 0.4]])
  found = class_metrics.statistics(
    probabilities, jnp.array([1, 1, 1, 0]), is_counted=jnp.ones(4, bool)
  )
  assert class_metrics.calibration_error(np.asarray(found['calibration'])) == (
    pytest.approx((3 * 0.9 + 0.4) / 4, abs=1e-6)
  )


def test_padding_counts_in_no_statistic():
  probabilities, labels = draw(6, num_classes=3)
  counted = jnp.array([True, False, True, True, False, True])
  padded = class_metrics.statistics(
    jnp.where(counted[:, None], probabilities, jnp.nan),
    jnp.asarray(labels),
    is_counted=counted,
  )
  kept = np.asarray(counted)
  alone = class_metrics.statistics(
    jnp.asarray(probabilities[kept]),
    jnp.asarray(labels[kept]),
    is_counted=jnp.ones(4, bool),
  )
  for name, value in alone.items():
    np.testing.assert_allclose(padded[name], value, rtol=1e-6)
