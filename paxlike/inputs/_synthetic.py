"""Made-up data that can be learnt, of any size, for tests and measurements.

Promises: example i is a function of (seed, i) alone; no data are stored.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from paxlike.core import errors, typing
from paxlike.inputs import _base, _order

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _SyntheticInput(_base.IndexedInput):
  """Size and randomness of what is made up.

  Attributes:
    num_examples: Examples of one epoch; None for no end.
  """

  # A field in place of the base's property of the same name.
  num_examples: int | None = None  # pyright: ignore[reportIncompatibleMethodOverride]

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.num_examples is not None and self.num_examples < 0:
      raise errors.ConfigError(
        f'{type(self).__name__}.num_examples of input {self.name} is '
        f'{self.num_examples}, must be >= 0, or None for no end.'
      )

  @property
  def is_endless(self) -> bool:
    """Whether there is no last example."""
    return self.num_examples is None

  def _open(self) -> None:
    return None

  def _facts(self) -> Mapping[str, Any]:
    return {}

  def _random(self, ids: np.ndarray, stream: int, count: int) -> np.ndarray:
    """`count` random uint64 for each of `ids`, from a numbered stream."""
    seed = np.array([self.seed % 2**64], np.uint64)
    key = _order.mix(_order.mix(seed) + np.uint64(stream))
    rows = _order.mix(ids.astype(np.uint64) ^ key)[:, None]
    return _order.mix(rows + np.arange(count, dtype=np.uint64) * _GOLDEN)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SyntheticLmInput(_SyntheticInput):
  """Token sequences that count upwards with a stride of their own.

  A model that finds the stride of a sequence predicts all of its tokens but
  the first two.

  Attributes:
    seq_len: Tokens of an example.
    vocab_size: Tokens are below it.
    num_examples: Examples of one epoch; None for no end.
  """

  seq_len: int
  vocab_size: int

  def __post_init__(self) -> None:
    super().__post_init__()
    self._check_at_least_1('seq_len')
    self._check_at_least_1('vocab_size')

  def _facts(self) -> Mapping[str, Any]:
    return {'seq_len': self.seq_len, 'vocab_size': self.vocab_size}

  def _field_specs(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    return _base.token_specs(self.seq_len)

  def _gather(self, ids: np.ndarray, visits: np.ndarray) -> typing.HostBatch:
    del visits
    start, stride = (self._random(ids, 0, 2) % np.uint64(self.vocab_size)).T
    times = np.arange(self.seq_len + 1, dtype=np.uint64)
    tokens = (start[:, None] + stride[:, None] * times) % np.uint64(
      self.vocab_size
    )
    return {
      'ids': tokens[:, :-1].astype(np.int32),
      'targets': tokens[:, 1:].astype(np.int32),
      'weights': np.ones((len(ids), self.seq_len), np.float32),
    }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SyntheticClassificationInput(_SyntheticInput):
  """Noisy copies of one random prototype a class.

  Attributes:
    shape: Shape of one example's `inputs`.
    num_classes: Labels are below it.
    noise: Standard deviation of the noise beside prototypes of 1.
    num_examples: Examples of one epoch; None for no end.
  """

  shape: tuple[int, ...]
  num_classes: int
  noise: float = 0.5

  def __post_init__(self) -> None:
    super().__post_init__()
    self._check_at_least_1('num_classes')

  def _facts(self) -> Mapping[str, Any]:
    return {
      'shape': list(self.shape),
      'num_classes': self.num_classes,
      'noise': self.noise,
    }

  def _field_specs(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    return {'inputs': (tuple(self.shape), np.float32), 'labels': ((), np.int32)}

  def _gather(self, ids: np.ndarray, visits: np.ndarray) -> typing.HostBatch:
    del visits
    size = int(np.prod(self.shape))
    labels = self._random(ids, 1, 1)[:, 0] % np.uint64(self.num_classes)
    prototypes = _normal(self._random(labels, 2, 2 * size))
    noise = _normal(self._random(ids, 3, 2 * size))
    values = prototypes + self.noise * noise
    return {
      'inputs': values.reshape(-1, *self.shape).astype(np.float32),
      'labels': labels.astype(np.int32),
    }


def _normal(bits: np.ndarray) -> np.ndarray:
  """Normal numbers out of twice as many uint64 (Box and Muller)."""
  uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
  radius, angle = np.split(uniform, 2, axis=-1)
  return np.sqrt(-2.0 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
