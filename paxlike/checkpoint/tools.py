"""Looking at, checking and pruning checkpoints, without a mesh or a program.

Everything here takes a local, `gs://` or `s3://` path: of one step, of the
directory of all steps, or of the job.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from paxlike.checkpoint import _history, _layout, _sweep
from paxlike.checkpoint import _reading as reading
from paxlike.core import clock as clocks
from paxlike.core import errors, fs

SavedArray = reading.SavedArray
StepReader = reading.StepReader
find_directory = reading.find_directory
find_step = reading.find_step


@dataclasses.dataclass(frozen=True)
class StepSummary:
  """One line of a listing.

  Attributes:
    step: Its number.
    path: Its directory.
    is_complete: Whether it is committed; a tmp directory is not.
    timestamp_s: When it was saved, seconds since 1970 UTC; NaN if not known.
    num_bytes: Of all its files.
    type: 'GDA', 'FLAX' or 'MULTI_HOST_FLAX'; '' if not known.
    keep_reason: 'interval' if preserved for good.
    is_pinned: Whether it was pinned by hand.
    metrics: What it was saved with.
    problem: What is wrong with its manifest, '' if nothing.
  """

  step: int
  path: str
  is_complete: bool
  timestamp_s: float
  num_bytes: int
  type: str
  keep_reason: str
  is_pinned: bool
  metrics: dict[str, float]
  problem: str


def list_steps(path: str) -> list[StepSummary]:
  """All steps of a directory, half-written ones too, by number."""
  directory = find_directory(path)
  file_system = fs.for_path(directory)
  names = _history.committed_names(file_system, directory)
  records = {r.step: r for r in _history.load(file_system, directory, names)}
  found = [
    _summary(file_system, fs.join(directory, name), records[step])
    for step, name in names.items()
  ]
  temporary, _ = _sweep.litter(file_system, directory)
  for unfinished in temporary:
    name = fs.base_name(unfinished)
    step = _layout.parse_step(name.rpartition('.')[2])
    found.append(
      StepSummary(
        step=-1 if step is None else step,
        path=unfinished,
        is_complete=False,
        timestamp_s=math.nan,
        num_bytes=file_system.tree_bytes(unfinished),
        type='',
        keep_reason='',
        is_pinned=False,
        metrics={},
        problem='',
      )
    )
  return sorted(found, key=lambda s: (s.step, s.path))


def _summary(
  file_system: fs.FileSystem, path: str, record: _history.Record
) -> StepSummary:
  problem, kind = '', record.type
  try:
    with StepReader(path, file_system=file_system) as reader:
      kind = reader.type
  except errors.CheckpointError as e:
    problem = str(e)
  return StepSummary(
    step=record.step,
    path=path,
    is_complete=True,
    timestamp_s=record.timestamp_s,
    num_bytes=file_system.tree_bytes(path),
    type=kind,
    keep_reason=record.keep_reason,
    is_pinned=file_system.exists(fs.join(path, _layout.PIN)),
    metrics=dict(record.metrics),
    problem=problem,
  )


def open_step(path: str, step: int | None = None) -> StepReader:
  """Opens one step for reading; use it in a `with` block.

  Raises:
    CheckpointNotFoundError: There is no such step.
    CheckpointDamagedError: Its manifest is damaged.
  """
  return StepReader(find_step(path, step))


def verify(path: str, step: int | None = None) -> list[str]:
  """Checks every byte of a step.

  Returns:
    One text for each damaged file or block; [] if the step is whole.
  """
  try:
    with open_step(path, step) as reader:
      return reader.check()
  except errors.CheckpointDamagedError as e:
    return [str(e)]


@dataclasses.dataclass(frozen=True)
class ArrayStats:
  """Of the elements of one array, counted in float64.

  Attributes:
    norm: Square root of the sum of squares.
    mean: Their mean.
    least: The smallest.
    most: The largest.
    num_not_finite: How many are NaN or infinite.
  """

  norm: float
  mean: float
  least: float
  most: float
  num_not_finite: int


def array_stats(values: np.ndarray) -> ArrayStats:
  """Norms and bounds; NaN for an empty array."""
  if not values.size:
    return ArrayStats(0.0, math.nan, math.nan, math.nan, 0)
  wide = _widened(values)
  finite = np.isfinite(wide)
  with np.errstate(all='ignore'):
    size = np.abs(wide)
    return ArrayStats(
      norm=float(np.sqrt(np.sum(np.square(size)))),
      mean=float(np.mean(np.real(wide))),
      least=float(np.min(np.real(wide))),
      most=float(np.max(np.real(wide))),
      num_not_finite=int(wide.size - np.count_nonzero(finite)),
    )


def _widened(values: np.ndarray) -> np.ndarray:
  if np.iscomplexobj(values):
    return values.astype(np.complex128)
  return values.astype(np.float64)


@dataclasses.dataclass(frozen=True)
class LeafDiff:
  """How one leaf of two steps differs.

  Attributes:
    name: The leaf.
    first: What it is in the first step, '' if absent.
    second: What it is in the second step, '' if absent.
    max_abs: Largest difference; NaN where the two cannot be compared.
    max_rel: Largest difference relative to the larger of the two values.
  """

  name: str
  first: str
  second: str
  max_abs: float
  max_rel: float


def diff(first: StepReader, second: StepReader) -> Iterator[LeafDiff]:
  """The leaves in which two steps differ, one array in memory at a time."""
  left, right = _texts(first), _texts(second)
  for name in [*left, *(n for n in right if n not in left)]:
    a, b = left.get(name, ''), right.get(name, '')
    if a != b:
      yield LeafDiff(name, a, b, math.nan, math.nan)
    elif name in first.arrays:
      max_abs, max_rel = _difference(first.read(name), second.read(name))
      if max_abs:
        yield LeafDiff(name, a, b, max_abs, max_rel)


def _texts(reader: StepReader) -> dict[str, str]:
  texts = {
    name: f'{a.dtype}{list(a.shape)}' for name, a in reader.arrays.items()
  }
  texts |= {
    name: f'{type(value).__name__} {value!r}'
    for name, value in reader.scalars.items()
  }
  return texts | {n: f'empty {t}' for n, t in reader.empties.items()}


def _difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
  if a.tobytes() == b.tobytes():
    return 0.0, 0.0
  left, right = _widened(a), _widened(b)
  with np.errstate(all='ignore'):
    apart = np.abs(left - right)
    apart = np.where(np.isnan(left) & np.isnan(right), 0.0, apart)
    apart = np.where(np.isnan(apart), math.inf, apart)
    size = np.maximum(np.abs(left), np.abs(right))
    relative = np.where(size > 0, apart / size, 0.0)
  return float(np.max(apart)), float(np.nanmax(relative))


def pin(path: str, step: int | None = None) -> str:
  """Keeps a step from ever being swept; returns its directory."""
  found = find_step(path, step)
  fs.for_path(found).write_new(fs.join(found, _layout.PIN), b'pinned\n')
  return found


def unpin(path: str, step: int | None = None) -> str:
  """Takes a pin away; returns the step's directory."""
  found = find_step(path, step)
  fs.for_path(found).remove(fs.join(found, _layout.PIN))
  return found


def remove(path: str, step: int) -> str:
  """Deletes one step, pinned or not; returns the directory it had.

  Raises:
    CheckpointNotFoundError: There is no such step.
  """
  directory = find_directory(path)
  file_system = fs.for_path(directory)
  found = find_step(directory, step)
  hidden = _sweep.hide(
    file_system, directory, [fs.base_name(found)], clock=clocks.SYSTEM
  )
  _sweep.remove(file_system, hidden)
  # A trainer at work on this directory writes its own history with its next
  # save; the directories are the truth in between.
  with contextlib.suppress(OSError):
    names = _history.committed_names(file_system, directory)
    records = _history.load(file_system, directory, names)
    _history.store(file_system, directory, records)
  return found


def read_history(path: str) -> list[Any]:
  """The records of all steps, repaired from the directories."""
  directory = find_directory(path)
  file_system = fs.for_path(directory)
  names = _history.committed_names(file_system, directory)
  return list(_history.load(file_system, directory, names))
