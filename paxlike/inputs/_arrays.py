"""Examples held in memory as NumPy arrays."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from paxlike.core import errors, typing
from paxlike.inputs import _base


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ArraysInput(_base.IndexedInput):
  """Rows of arrays; a language model's token weights follow its paddings.

  With a field 'ids' and no 'weights', the weights are 1 - 'paddings', or all 1
  without paddings. Float64 and int64 become float32 and int32, as on the
  devices.

  Attributes:
    arrays: Field name to an array of [num_examples, ...]. A subclass may read
      them at first need instead, by overriding `_load`.
  """

  arrays: Mapping[str, np.ndarray] | None = dataclasses.field(
    default=None, repr=False
  )

  def _load(self) -> Mapping[str, np.ndarray]:
    """The arrays, read at first need."""
    if self.arrays is None:
      raise errors.ConfigError(
        f'Input {self.name} has no arrays: set ArraysInput.arrays, or '
        'override _load in a subclass.'
      )
    return self.arrays

  def _open(self) -> dict[str, np.ndarray]:
    fields = {name: _narrow(array) for name, array in self._load().items()}
    reserved = fields.keys() & {_base.EXAMPLE_ID, _base.EXAMPLE_WEIGHTS}
    if reserved:
      raise errors.ConfigError(
        f'Input {self.name} has arrays named {sorted(reserved)}: those fields '
        'are made by the input itself. Choose other names.'
      )
    lengths = {name: len(array) for name, array in fields.items()}
    if len(set(lengths.values())) != 1:
      raise errors.InputError(
        f'The arrays of input {self.name} must be of one length: {lengths}.'
      )
    if 'ids' in fields and 'weights' not in fields:
      # Unset weights must not count the padding (arrays_test.py).
      paddings = fields.get('paddings', np.zeros(fields['ids'].shape))
      fields['weights'] = (1.0 - paddings).astype(np.float32)
    return fields

  @property
  def num_examples(self) -> int:
    """Rows of the arrays."""
    return len(next(iter(self._data.values())))

  def _field_specs(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    return {
      name: (array.shape[1:], array.dtype) for name, array in self._data.items()
    }

  def _facts(self) -> Mapping[str, Any]:
    return {'arrays': self._checksums}

  @functools.cached_property
  def _checksums(self) -> dict[str, str]:
    return _base.describe(self._data)

  def _gather(self, ids: np.ndarray, visits: np.ndarray) -> typing.HostBatch:
    del visits
    return {name: array[ids] for name, array in self._data.items()}


def _narrow(array: np.ndarray) -> np.ndarray:
  array = np.asarray(array)
  narrow = {'float64': np.float32, 'int64': np.int32}.get(array.dtype.name)
  if narrow is None:
    return array
  if narrow is np.int32 and array.size and np.abs(array).max() > 2**31 - 1:
    raise errors.InputError(
      f'An array of dtype int64 goes up to {np.abs(array).max()}, which does '
      'not fit int32.'
    )
  return array.astype(narrow)
