"""How two steps differ: first what they hold, then by how much."""

import dataclasses
import os
from typing import Any

import numpy as np

from paxlike.checkpoint import _state
from paxlike.checkpoint.tools import _reading
from paxlike.core import errors

_CHUNK = 1 << 22


@dataclasses.dataclass(frozen=True)
class ArrayDiff:
  """An array whose values differ.

  Attributes:
    name: Of the leaf.
    num_elements: In all.
    num_different: Elements whose bits differ.
    max_abs: Largest absolute difference; infinite where only one is NaN.
    max_relative: Largest difference relative to the larger of both.
    is_close: Whether every element is within the tolerance.
    process: Whose, where every process has its own state.
  """

  name: str
  num_elements: int
  num_different: int
  max_abs: float
  max_relative: float
  is_close: bool
  process: int = 0


@dataclasses.dataclass(frozen=True)
class Diff:
  """How two steps differ.

  Attributes:
    path_a: Of one step.
    path_b: Of the other.
    only_a: Leaves that only the first has: name and what is there.
    only_b: Leaves that only the second has.
    changed: Leaves that are of another kind, shape, dtype or value without
      being arrays of one shape: name, in the first, in the second.
    items: Names of items that differ or that only one has.
    arrays: Arrays of one shape whose values differ.
    num_equal: Leaves that are equal, bit for bit.
  """

  path_a: str
  path_b: str
  only_a: tuple[tuple[str, str], ...]
  only_b: tuple[tuple[str, str], ...]
  changed: tuple[tuple[str, str, str], ...]
  items: tuple[str, ...]
  arrays: tuple[ArrayDiff, ...]
  num_equal: int

  @property
  def is_structure_equal(self) -> bool:
    """Whether both hold leaves of the same names, shapes and dtypes."""
    return not (self.only_a or self.only_b or self.changed)

  @property
  def is_equal(self) -> bool:
    """Whether nothing differs by more than the tolerance."""
    close = all(array.is_close for array in self.arrays)
    return self.is_structure_equal and not self.items and close


@dataclasses.dataclass(frozen=True)
class _Tolerance:
  absolute: float
  relative: float


def diff(
  path_a: str | os.PathLike[str],
  path_b: str | os.PathLike[str],
  *,
  step_a: int | None = None,
  step_b: int | None = None,
  atol: float = 0.0,
  rtol: float = 0.0,
) -> Diff:
  """Compares two steps, whatever their types and shardings.

  Without tolerances arrays are equal if their bits are.

  Args:
    path_a: A job_log_dir, its directory of checkpoints, or one step.
    path_b: The same for the other.
    step_a: Which step of the first; None is the newest.
    step_b: Which step of the second; None is the newest.
    atol: Absolute difference that still counts as equal.
    rtol: Further difference that does, relative to the second's value.

  Raises:
    UsageError: A path leads to no checkpoints.
    CheckpointNotFoundError: There is no such complete step.
    CheckpointDamagedError: Bytes are not those that were written.
  """
  for name, value in (('atol', atol), ('rtol', rtol)):
    if not value >= 0:
      raise errors.UsageError(f'{name} is {value}, must be >= 0.')
  with (
    _reading.open_at(path_a, step_a) as a,
    _reading.open_at(path_b, step_b) as b,
  ):
    return _Comparison(a, b, _Tolerance(atol, rtol)).run()


class _Comparison:
  """Collects the differences of two open steps."""

  def __init__(
    self, a: _reading.OpenStep, b: _reading.OpenStep, tolerance: _Tolerance
  ):
    self._a = a
    self._b = b
    self._tolerance = tolerance
    self._changed: list[tuple[str, str, str]] = []
    self._arrays: list[ArrayDiff] = []
    self._num_equal = 0

  def run(self) -> Diff:
    """Compares everything."""
    a, b = self._a.leaves(), self._b.leaves()
    if self._a.processes != self._b.processes:
      self._changed.append(
        (
          '(processes with a state of their own)',
          str(self._a.processes),
          str(self._b.processes),
        )
      )
    for name in a:
      if name in b:
        self._compare(name, a[name], b[name])
    return Diff(
      path_a=self._a.path,
      path_b=self._b.path,
      only_a=tuple((n, _text(self._a, a[n])) for n in a if n not in b),
      only_b=tuple((n, _text(self._b, b[n])) for n in b if n not in a),
      changed=tuple(self._changed),
      items=self._items(),
      arrays=tuple(self._arrays),
      num_equal=self._num_equal,
    )

  def _compare(self, name: str, a: Any, b: Any) -> None:
    text_a, text_b = _text(self._a, a), _text(self._b, b)
    if text_a != text_b:
      self._changed.append((name, text_a, text_b))
    are_arrays = isinstance(a, _state.SavedArray) and isinstance(
      b, _state.SavedArray
    )
    if not are_arrays:
      self._num_equal += text_a == text_b
      return
    if self._a.arrays[a.number].shape != self._b.arrays[b.number].shape:
      return
    found = [
      difference
      for process in self._a.processes
      if process in self._b.processes
      for difference in [self._values(name, a.number, b.number, process)]
      if difference is not None
    ]
    self._arrays.extend(found)
    self._num_equal += not found and text_a == text_b

  def _values(
    self, name: str, number_a: int, number_b: int, process: int
  ) -> ArrayDiff | None:
    return compare_arrays(
      self._a.read(number_a, process=process),
      self._b.read(number_b, process=process),
      name=name,
      process=process,
      atol=self._tolerance.absolute,
      rtol=self._tolerance.relative,
    )

  def _items(self) -> tuple[str, ...]:
    a = {item.name: data for item, data in self._a.items()}
    b = {item.name: data for item, data in self._b.items()}
    return tuple(n for n in sorted({*a, *b}) if a.get(n) != b.get(n))


def _text(opened: _reading.OpenStep, leaf: Any) -> str:
  if isinstance(leaf, _state.SavedArray):
    return str(opened.arrays[leaf.number])
  if isinstance(leaf, _state.SavedScalar):
    return f'{type(leaf.value).__name__} {leaf.value!r}'
  return f'empty {leaf.type_name}'


def compare_arrays(
  a: np.ndarray,
  b: np.ndarray,
  *,
  name: str = '',
  process: int = 0,
  atol: float = 0.0,
  rtol: float = 0.0,
) -> ArrayDiff | None:
  """Compares two arrays of one shape; None if they are equal bit for bit."""
  num_different, max_abs, max_relative, is_close = 0, 0.0, 0.0, True
  flat_a, flat_b = a.reshape(-1), b.reshape(-1)
  for first in range(0, flat_a.size, _CHUNK):
    piece_a = flat_a[first : first + _CHUNK]
    piece_b = flat_b[first : first + _CHUNK]
    differ = _bits_differ(piece_a, piece_b)
    if not differ.any():
      continue
    num_different += int(differ.sum())
    wide_a, wide_b = _wide(piece_a[differ]), _wide(piece_b[differ])
    with np.errstate(all='ignore'):
      gap = np.abs(wide_a - wide_b)
      # Both NaN, or the same infinity, of different bits: no difference.
      both = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
      gap = np.where(both, 0.0, np.where(np.isnan(gap), np.inf, gap))
      size = np.fmax(np.abs(wide_a), np.abs(wide_b))
      relative = np.where(gap == 0, 0.0, gap / size)
      relative = np.where(np.isnan(relative), np.inf, relative)
      limit = atol + rtol * np.abs(wide_b)
    max_abs = max(max_abs, float(gap.max()))
    max_relative = max(max_relative, float(relative.max()))
    is_close = is_close and bool(
      (atol > 0 or rtol > 0) and (gap <= limit).all()
    )
  if not num_different:
    return None
  return ArrayDiff(
    name, a.size, num_different, max_abs, max_relative, is_close, process
  )


def _bits_differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Which elements differ; by value where the dtypes do."""
  if a.dtype != b.dtype:
    return np.asarray(_wide(a) != _wide(b))
  a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
  if a.dtype.itemsize in (1, 2, 4, 8):
    bits = f'u{a.dtype.itemsize}'
    return a.view(bits) != b.view(bits)
  bytes_a = a.view(np.uint8).reshape(a.size, -1)
  bytes_b = b.view(np.uint8).reshape(b.size, -1)
  return (bytes_a != bytes_b).any(axis=1)


def _wide(values: np.ndarray) -> np.ndarray:
  if values.dtype.kind == 'c':
    return values.astype(np.complex128)
  if values.dtype.kind in 'iu' and values.dtype.itemsize == 8:
    # A double has too few digits to tell large integers apart.
    return values.astype(np.longdouble)
  return values.astype(np.float64)
