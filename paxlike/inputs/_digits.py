"""The handwritten digits that come with scikit-learn."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from paxlike.core import errors
from paxlike.inputs import _arrays, _order

_NUM_DIGITS = 1797
_NUM_TEST = 360
_SPLIT_SEED = 8 * 8


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DigitsInput(_arrays.ArraysInput):
  """1,797 images of 8 x 8 x 1 in 0..1, split once and for all by example.

  Attributes:
    split: 'train' (1,437 examples) or 'test' (360).
  """

  split: str

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.split not in ('train', 'test'):
      raise errors.ConfigError(
        f'DigitsInput.split of input {self.name} is {self.split!r}, must be '
        "'train' or 'test'."
      )

  @property
  def num_examples(self) -> int:
    """Examples of the split."""
    return _NUM_TEST if self.split == 'test' else _NUM_DIGITS - _NUM_TEST

  def _field_specs(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    return {'inputs': ((8, 8, 1), np.float32), 'labels': ((), np.int32)}

  def _load(self) -> Mapping[str, np.ndarray]:
    try:
      from sklearn import datasets
    except ModuleNotFoundError as error:
      raise errors.ConfigError(
        "DigitsInput needs scikit-learn: pip install 'paxlike[examples]'."
      ) from error
    images, labels = datasets.load_digits(return_X_y=True)
    shuffled = _order.shuffled(
      np.arange(_NUM_DIGITS),
      num_examples=_NUM_DIGITS,
      seed=_SPLIT_SEED,
      epoch=0,
    )
    test = self.split == 'test'
    ids = np.sort(shuffled[:_NUM_TEST] if test else shuffled[_NUM_TEST:])
    return {
      'inputs': images[ids].reshape(-1, 8, 8, 1).astype(np.float32) / 16.0,
      'labels': labels[ids].astype(np.int32),
    }
