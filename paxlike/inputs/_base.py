"""What every input is, and the rules of order, epochs and padding.

Promises: `read(position, rows)` is pure; training goes on for ever and each
epoch has every example exactly once; an evaluation has every example exactly
once, its last batch padded with weight 0. Reading ahead is `_stream`'s.
"""

import abc
import dataclasses
import functools
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from paxlike.core import errors, typing
from paxlike.inputs import _order

EXAMPLE_WEIGHTS = 'example_weights'
EXAMPLE_ID = 'example_id'
_PADDING_ID = -1
_MAX_ID = np.iinfo(np.int32).max


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Input(abc.ABC):
  """A source of global batches, addressed by position.

  Constructing one opens nothing: data are opened at first need, so that a
  config can be built and printed on a machine without the data.

  How long an evaluation is (`num_batches`), always from the first batch on:
  the whole epoch with `reset_for_eval`; else `eval_loop_num_batches`, at most
  one epoch; and without either the whole epoch too. An input without an end
  must set `eval_loop_num_batches`.

  Attributes:
    name: Names the input in summaries, metrics and output directories.
    batch_size: Examples of a global batch, over all processes.
    is_training: Whether it goes on for ever, or is one pass.
    reset_for_eval: Whether an evaluation is one whole epoch, whatever
      `eval_loop_num_batches` says.
    eval_loop_num_batches: Longest evaluation in batches; None for no limit.
    seed: Chooses the order of training examples and any randomness in them.
    shuffle: Whether training examples are shuffled; evaluation never is.
    allow_mismatch: Whether to go on from a position that was saved with other
      data, another seed or another batch size.
  """

  name: str
  batch_size: int
  is_training: bool = False
  reset_for_eval: bool = False
  eval_loop_num_batches: int | None = None
  seed: int = 0
  shuffle: bool = True
  allow_mismatch: bool = False

  def __post_init__(self) -> None:
    if not re.fullmatch(r'[A-Za-z0-9_-][A-Za-z0-9_.-]*', self.name):
      raise errors.ConfigError(
        f'Input name {self.name!r} becomes a directory name: use letters, '
        "digits, '_', '-' and '.' only, and no '.' in front."
      )
    self._check_at_least_1('batch_size')
    if self.eval_loop_num_batches is not None:
      self._check_at_least_1('eval_loop_num_batches')
    stops = self.eval_loop_num_batches is not None and not self.reset_for_eval
    if self.is_endless and not self.is_training and not stops:
      raise errors.ConfigError(
        f'Input {self.name} has no end, so evaluating one epoch of it would '
        'never be done. Set eval_loop_num_batches and leave reset_for_eval '
        'False.'
      )

  @property
  def is_endless(self) -> bool:
    """Whether the data themselves have no end; known without opening them."""
    return False

  @property
  @abc.abstractmethod
  def batch_spec(self) -> typing.BatchSpec:
    """Shapes and dtypes of a global batch, without its values."""

  @property
  @abc.abstractmethod
  def num_examples(self) -> int | None:
    """Examples of one epoch; None if there is no end."""

  @property
  @abc.abstractmethod
  def fingerprint(self) -> str:
    """JSON object of all that a position means something with.

    Data, order, seed and batch size: a position saved with one fingerprint
    may be gone on from only with the same (`inputs.check_state`).
    """

  @abc.abstractmethod
  def read(self, position: int, rows: range) -> typing.HostBatch:
    """Reads some rows of one global batch; pure, safe from any thread.

    Args:
      position: Number of the batch since the start, from 0.
      rows: Which rows of the global batch, such as those of this process.

    Returns:
      New arrays of [len(rows), ...] that nobody else holds.

    Raises:
      IndexError: `position` is past the last batch of the evaluation.
    """

  @property
  def num_batches(self) -> int | None:
    """Batches of one evaluation; None in training, which has no end."""
    if self.is_training:
      return None
    num_examples = self.num_examples
    limit = self.eval_loop_num_batches
    if num_examples is None:
      return limit
    whole = -(-num_examples // self.batch_size)
    return whole if limit is None or self.reset_for_eval else min(limit, whole)

  def key(self, example_id: int) -> str:
    """The name of an example in decode outputs, unique within the input."""
    return str(example_id)

  def _check_at_least_1(self, knob: str) -> None:
    value = getattr(self, knob)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
      raise errors.ConfigError(
        f'{type(self).__name__}.{knob} of input {self.name} is {value!r}, '
        'must be a whole number >= 1.'
      )

  def _check_read(self, position: int, rows: range) -> None:
    if position < 0:
      raise ValueError(f'Position {position} of input {self.name} is negative.')
    if rows.step != 1 or not 0 <= rows.start <= rows.stop <= self.batch_size:
      raise ValueError(
        f'{rows} are no rows of a batch of {self.batch_size} ({self.name}).'
      )
    num_batches = self.num_batches
    if num_batches is not None and position >= num_batches:
      raise IndexError(
        f'Input {self.name} has {num_batches} batches, number {position} was '
        'asked for.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class IndexedInput(Input):
  """An input whose examples can be read in any order.

  In training the epochs stand one after the other, each shuffled by (seed,
  epoch), and are cut into batches without a gap: a batch may hold the end of
  one epoch and the beginning of the next, so every epoch has every example
  exactly once whatever the batch size.

  A subclass opens its data in `_open`, reads them through `self._data`, and
  says in `_gather` what a list of examples looks like.
  """

  @abc.abstractmethod
  def _open(self) -> Any:
    """Reads what the examples are made from; called once, at first need."""

  @abc.abstractmethod
  def _field_specs(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    """Name of each field to the shape of one example's value and its dtype."""

  @abc.abstractmethod
  def _facts(self) -> Mapping[str, Any]:
    """What identifies the data, as JSON: sizes, a checksum, the layout."""

  @abc.abstractmethod
  def _gather(self, ids: np.ndarray, visits: np.ndarray) -> typing.HostBatch:
    """Reads some examples.

    Args:
      ids: Which examples, int64 [k].
      visits: How many examples the whole order has had before each of them,
        int64 [k]: what random augmentation must depend on, with the seed.

    Returns:
      New arrays of [k, ...], one a field.
    """

  # A cached_property holds a lock in Python 3.11 alone, but a second opening
  # gives the same data: consumer and prefetch thread may both come first.
  @functools.cached_property
  def _data(self) -> Any:
    return self._open()

  @property
  def batch_spec(self) -> typing.BatchSpec:
    """Shapes and dtypes of a global batch, without its values."""
    return self._batch_spec

  @property
  def fingerprint(self) -> str:
    """JSON object of all that a position means something with."""
    return self._fingerprint

  @functools.cached_property
  def _batch_spec(self) -> typing.BatchSpec:
    return batch_spec(self._field_specs(), self.batch_size)

  @functools.cached_property
  def _field_names(self) -> tuple[str, ...]:
    return tuple(self._field_specs())

  @functools.cached_property
  def _fingerprint(self) -> str:
    facts = {
      'input': type(self).__name__,
      'batch_size': self.batch_size,
      'seed': self.seed,
      'is_training': self.is_training,
      'shuffle': self.is_training and self.shuffle,
      'num_examples': self.num_examples,
      **self._facts(),
    }
    return json.dumps(facts, sort_keys=True)

  def read(self, position: int, rows: range) -> typing.HostBatch:
    """Reads some rows of one global batch; see `Input.read`."""
    self._check_read(position, rows)
    first = position * self.batch_size + rows.start
    ids = self._ids(first, len(rows))
    row_values = row_fields(ids, len(rows))
    if not len(ids):
      return {
        name: np.zeros((len(rows), *spec.shape[1:]), spec.dtype)
        for name, spec in self.batch_spec.items()
      } | row_values
    gathered = self._gather(ids, np.arange(first, first + len(ids)))
    return {
      name: _filled(gathered[name], len(rows), self.batch_spec[name])
      for name in self._field_names
    } | row_values

  def _ids(self, first: int, count: int) -> np.ndarray:
    """Examples at `first`, ... of the whole order; fewer at the end of it."""
    num_examples = self.num_examples
    if num_examples is not None and num_examples > _MAX_ID:
      raise errors.InputError(
        f'Input {self.name} has {num_examples} examples; ids are int32, so at '
        f'most {_MAX_ID} fit. Split it over several inputs.'
      )
    if num_examples is None:
      return np.arange(first, first + count, dtype=np.int64) % (_MAX_ID + 1)
    if not self.is_training:
      return np.arange(first, min(first + count, num_examples), dtype=np.int64)
    if num_examples == 0:
      raise errors.InputError(
        f'Training input {self.name} has no examples. Check its files and '
        'what they are filtered by.'
      )
    if not self.shuffle:
      places = np.arange(first, first + count, dtype=np.int64)
      return places % num_examples
    return _order.places_to_ids(
      first, count, num_examples=num_examples, seed=self.seed
    )


def batch_spec(
  fields: Mapping[str, tuple[tuple[int, ...], Any]], batch_size: int
) -> typing.BatchSpec:
  """The spec of batches with these fields and those that all batches have."""
  return {
    name: jax.ShapeDtypeStruct((batch_size, *shape), dtype)
    for name, (shape, dtype) in {
      **fields,
      EXAMPLE_WEIGHTS: ((), np.float32),
      EXAMPLE_ID: ((), np.int32),
    }.items()
  }


def token_specs(seq_len: int) -> dict[str, tuple[tuple[int, ...], Any]]:
  """Field specs of next-token prediction over `seq_len` positions."""
  shape = (seq_len,)
  return {
    'ids': (shape, np.int32),
    'targets': (shape, np.int32),
    'weights': (shape, np.float32),
  }


def row_fields(ids: np.ndarray, num_rows: int) -> typing.HostBatch:
  """The fields that all batches have; rows beyond `ids` are padding."""
  weights = np.zeros(num_rows, np.float32)
  weights[: len(ids)] = 1.0
  padded = np.full(num_rows, _PADDING_ID, np.int32)
  padded[: len(ids)] = ids
  return {EXAMPLE_WEIGHTS: weights, EXAMPLE_ID: padded}


def _filled(
  values: np.ndarray, num_rows: int, spec: jax.ShapeDtypeStruct
) -> np.ndarray:
  """`values` in the spec's dtype, padded with zeros to `num_rows` rows."""
  shape = (num_rows, *spec.shape[1:])
  if values.shape == shape and values.dtype == spec.dtype:
    return values
  filled = np.zeros(shape, spec.dtype)
  filled[: len(values)] = values
  return filled


def narrow_specs(
  example: Mapping[str, np.ndarray],
) -> dict[str, tuple[tuple[int, ...], Any]]:
  """Field specs like those of an example, wide numbers made narrow."""
  narrow = {'float64': np.float32, 'int64': np.int32}
  return {
    name: (value.shape, narrow.get(value.dtype.name, value.dtype))
    for name, value in example.items()
  }


def describe(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
  """Dtype, shape and checksum of each array, for a fingerprint."""
  return {
    name: f'{array.dtype}{list(array.shape)} '
    f'crc32 {zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}'
    for name, array in arrays.items()
  }
