"""BLEU and chrF over a whole corpus, from counts that add up.

sacrebleu does the counting and the arithmetic, so the numbers are those that
papers report; it is loaded at first need.
"""

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paxlike.core import errors

_CLASSES = {'bleu': 'BLEU', 'chrf': 'CHRF'}


def check(names: Sequence[str]) -> None:
  """Refuses names that mean nothing, and metrics whose package is missing."""
  for name in names:
    if name not in _CLASSES:
      raise errors.ConfigError(
        f'task_p.decoder.text_metrics has {name!r}, must be of '
        f'{tuple(_CLASSES)}.'
      )
    _metric(name)


def statistics(
  names: Sequence[str], texts: Sequence[tuple[str, str]]
) -> dict[str, np.ndarray]:
  """Counts of some texts; those of several calls add up.

  Args:
    names: Which metrics.
    texts: Pairs of what was decoded and what it should be.
  """
  return {
    name: np.sum([_metric(name).counts(*pair) for pair in texts], axis=0)
    for name in names
    if texts
  }


def score(name: str, counts: np.ndarray) -> float:
  """The metric over all texts counted, 0 to 100."""
  return _metric(name).score_of(counts)


def known(counted: Mapping[str, Any]) -> list[str]:
  """The metrics whose counts are in a mapping."""
  return [name for name in _CLASSES if name in counted]


@functools.cache
def _metric(name: str) -> Any:
  try:
    module = importlib.import_module('sacrebleu.metrics')
  except ModuleNotFoundError as error:
    raise errors.ConfigError(
      f'The decode metric {name!r} needs sacrebleu: pip install '
      "'paxlike[bleu]'. Or leave it out of task_p.decoder.text_metrics."
    ) from error

  # By inheritance, since what a corpus score is made from is protected there.
  # (text_metrics_test.py compares with the corpus scores)
  class Countable(getattr(module, _CLASSES[name])):
    def counts(self, decoded: str, target: str) -> np.ndarray:
      (found,) = self._extract_corpus_statistics([decoded], [[target]])
      return np.asarray(found, np.int64)

    def score_of(self, counts: np.ndarray) -> float:
      return float(self._compute_score_from_stats(list(counts)).score)

  return Countable()
