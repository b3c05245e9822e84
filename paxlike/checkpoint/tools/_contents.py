"""What a step holds: every leaf, how it is cut, and its numbers."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from paxlike.checkpoint import _boxes, _state
from paxlike.checkpoint.tools import _reading
from paxlike.core import trees

_CHUNK = 1 << 22


@dataclasses.dataclass(frozen=True)
class Stats:
  """Numbers of one array, in float64; None where there is no finite value.

  Attributes:
    norm: Square root of the sum of squares of the finite values.
    mean: Of the finite values.
    min: Smallest finite value.
    max: Largest finite value.
    num_non_finite: How many are NaN or infinite.
  """

  norm: float
  mean: float | None
  min: float | None
  max: float | None
  num_non_finite: int


@dataclasses.dataclass(frozen=True)
class ArraySummary:
  """One array of a step.

  Attributes:
    name: Of the leaf.
    dtype: NumPy's name, or 'key<impl>' for typed PRNG keys.
    shape: Global shape.
    num_bytes: Of the whole array.
    sharding: As it was saved, for people.
    num_boxes: Into how many boxes it was cut.
    stats: Only if asked for, and only of numbers.
  """

  name: str
  dtype: str
  shape: tuple[int, ...]
  num_bytes: int
  sharding: str
  num_boxes: int
  stats: Stats | None = None


@dataclasses.dataclass(frozen=True)
class Contents:
  """What one step holds.

  Attributes:
    path: Of the step.
    step: Its number.
    type: 'GDA', 'FLAX' or 'MULTI_HOST_FLAX'.
    timestamp_s: When it was saved, in seconds since 1970 UTC.
    process_count: How many processes wrote it.
    arrays: In the order of the state.
    others: Leaves that are no arrays: name to Python value, or to '<empty
      dict>' and the like.
    items: Name to number of bytes.
    metrics: Those it was saved with.
    versions: Of the software that wrote it.
  """

  path: str
  step: int
  type: str
  timestamp_s: float
  process_count: int
  arrays: tuple[ArraySummary, ...]
  others: Mapping[str, Any]
  items: Mapping[str, int]
  metrics: Mapping[str, float]
  versions: Mapping[str, str]


def show(
  path: str | os.PathLike[str],
  *,
  step: int | None = None,
  stats: bool = False,
  process: int = 0,
) -> Contents:
  """Tells what a step holds; reads only its manifest unless `stats`.

  Args:
    path: A job_log_dir, its directory of checkpoints, or one step.
    step: Which one; None is the newest.
    stats: Read every array and add its numbers.
    process: Whose state, where every process has its own.

  Raises:
    UsageError: The path leads to no checkpoints.
    CheckpointNotFoundError: There is no such complete step.
    CheckpointDamagedError: Bytes are not those that were written.
  """
  with _reading.open_at(path, step) as opened:
    _reading.check_process(opened, process)
    arrays, others = [], {}
    for name, leaf in opened.leaves().items():
      if isinstance(leaf, _state.SavedArray):
        values = opened.read(leaf.number, process=process) if stats else None
        arrays.append(_summary(opened, name, leaf.number, values))
      elif isinstance(leaf, trees.Empty):
        others[name] = f'<empty {leaf.type_name}>'
      else:
        others[name] = leaf.value
    manifest = opened.manifest
    return Contents(
      path=opened.path,
      step=manifest.step,
      type=manifest.type,
      timestamp_s=manifest.timestamp_sec,
      process_count=manifest.process_count,
      arrays=tuple(arrays),
      others=others,
      items={item.name: item.size for item in manifest.items},
      metrics=dict(manifest.metrics),
      versions=dict(manifest.versions),
    )


def _summary(
  opened: _reading.OpenStep,
  name: str,
  number: int,
  values: np.ndarray | None,
) -> ArraySummary:
  info = opened.arrays[number]
  layout = opened.layout_of(number)
  is_key = bool(info.prng_impl)
  return ArraySummary(
    name=name,
    dtype=f'key<{info.prng_impl}>' if is_key else info.dtype.name,
    shape=info.shape[:-1] if is_key else info.shape,
    num_bytes=info.num_bytes,
    sharding=layout.text,
    num_boxes=len(_boxes.boxes_of(layout, info.shape)),
    stats=None if values is None or is_key else stats_of(values),
  )


def stats_of(values: np.ndarray) -> Stats:
  """Numbers of an array of any dtype, a piece at a time."""
  flat = values.reshape(-1)
  squares = total = 0.0
  low, high, count = np.inf, -np.inf, 0
  for first in range(0, flat.size, _CHUNK):
    piece = as_float64(flat[first : first + _CHUNK])
    piece = piece[np.isfinite(piece)]
    if not piece.size:
      continue
    # A complex number counts with its size.
    squares += float(np.square(piece).sum())
    total += float(piece.sum())
    low, high = min(low, float(piece.min())), max(high, float(piece.max()))
    count += piece.size
  return Stats(
    norm=float(np.sqrt(squares)),
    mean=total / count if count else None,
    min=low if count else None,
    max=high if count else None,
    num_non_finite=flat.size - count,
  )


def as_float64(values: np.ndarray) -> np.ndarray:
  """Values for arithmetic, those of complex ones by size."""
  if values.dtype.kind == 'c':
    return np.abs(values).astype(np.float64)
  return values.astype(np.float64)
