"""What a directory holds: each step, whole or not, and why it is kept."""

import concurrent.futures
import dataclasses
import os
from collections.abc import Collection, Mapping

from paxlike.checkpoint import (
  _following,
  _history,
  _layout,
  _manifest,
  _sweep,
)
from paxlike.checkpoint.tools import _places
from paxlike.core import clock as clocks
from paxlike.core import errors, fs

COMPLETE = 'complete'
INCOMPLETE = 'incomplete'
DAMAGED = 'damaged'
DELETING = 'deleting'
_NUM_THREADS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSummary:
  """One line of a listing.

  Attributes:
    step: Its number.
    name: Of its directory.
    state: 'complete'; 'incomplete' (being written, or left by a crash);
      'damaged' (its manifest does not read); 'deleting'.
    type: 'GDA', 'FLAX' or 'MULTI_HOST_FLAX'; '' if unknown.
    timestamp_s: When it was saved, in seconds since 1970 UTC; None if unknown.
    age_s: Seconds since then.
    size_bytes: Of all its files.
    keep: Why it stays: 'newest', 'interval', 'best', 'pinned', 'leased'.
    metrics: Those it was saved with.
    problem: What is wrong with it, or ''.
  """

  step: int
  name: str
  state: str
  type: str = ''
  timestamp_s: float | None = None
  age_s: float | None = None
  size_bytes: int = 0
  keep: tuple[str, ...] = ()
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
  problem: str = ''


@dataclasses.dataclass(frozen=True)
class Listing:
  """What `list_steps` found.

  Attributes:
    directory: Of all steps.
    steps: In the order of their numbers, incomplete ones too.
    warnings: What is odd about the directory itself, such as a torn history.
  """

  directory: str
  steps: tuple[StepSummary, ...]
  warnings: tuple[str, ...] = ()


def list_steps(
  path: str | os.PathLike[str], *, clock: clocks.Clock = clocks.SYSTEM
) -> Listing:
  """Lists what is in a directory of steps, or in one step.

  Nothing is repaired or cleaned: that is the trainer's.

  Args:
    path: A job_log_dir, its directory of checkpoints, or one step.
    clock: For ages and leases.

  Raises:
    UsageError: The path leads to no checkpoints.
  """
  place = _places.find(path)
  records, warnings = _records(place)
  names = [
    name
    for name in place.file_system.list_dir(place.directory)
    if _step_of(name) is not None and place.only in ('', name)
  ]
  complete, now_s = place.names(), clock.now_s()
  held = _following.held(
    place.file_system, place.directory, complete, now_s=now_s
  )
  lister = _Lister(
    place, records, max(complete, default=None), held=held, now_s=now_s
  )
  with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
    found = [s for s in pool.map(lister.summary, names) if s is not None]
  found.sort(key=lambda s: (s.step, s.name))
  return Listing(place.directory, tuple(found), tuple(warnings))


def _step_of(name: str) -> int | None:
  """The step of any directory of ours, complete or not."""
  step = _layout.parse_step(name)
  if step is None and (_layout.is_temporary(name) or _layout.is_deleting(name)):
    return _layout.parse_step(name.rsplit('.', 1)[-1])
  return step


def _records(
  place: _places.Place,
) -> tuple[dict[int, _history.Record], list[str]]:
  path = fs.join(place.directory, _layout.HISTORY)
  try:
    data = place.file_system.read_bytes(path)
    return {r.step: r for r in _history.decode(data, path=path)}, []
  except FileNotFoundError:
    return {}, []
  except (errors.CheckpointDamagedError, OSError) as e:
    return {}, [f'{e} The next training run rebuilds it from the steps.']


class _Lister:
  """Summarises one directory at a time."""

  def __init__(
    self,
    place: _places.Place,
    records: Mapping[int, _history.Record],
    newest: int | None,
    *,
    held: Collection[int],
    now_s: float,
  ):
    self._place = place
    self._fs = place.file_system
    self._records = records
    self._newest = newest
    self._held = held
    self._now_s = now_s

  def summary(self, name: str) -> StepSummary | None:
    """The line of one directory; None if it vanished, or is a file."""
    path = fs.join(self._place.directory, name)
    step = _step_of(name)
    assert step is not None
    size_bytes = self._fs.tree_bytes(path)
    if _layout.is_deleting(name):
      return StepSummary(
        step=step, name=name, state=DELETING, size_bytes=size_bytes
      )
    try:
      if _layout.is_temporary(name):
        raise errors.CheckpointNotFoundError('No manifest yet.')
      manifest = _manifest.read(self._fs, path)
    except errors.CheckpointNotFoundError:
      if not self._fs.is_dir(path):
        return None
      return self._without_manifest(step, name, INCOMPLETE, size_bytes)
    except (errors.CheckpointError, OSError) as e:
      if not self._fs.is_dir(path):
        return None
      return self._without_manifest(step, name, DAMAGED, size_bytes, str(e))
    return StepSummary(
      step=step,
      name=name,
      state=COMPLETE,
      type=manifest.type,
      timestamp_s=manifest.timestamp_sec,
      age_s=self._now_s - manifest.timestamp_sec,
      size_bytes=size_bytes,
      keep=self._reasons(step, path),
      metrics=dict(manifest.metrics),
    )

  def _without_manifest(
    self, step: int, name: str, state: str, size_bytes: int, problem: str = ''
  ) -> StepSummary:
    path = fs.join(self._place.directory, name)
    try:
      timestamp_s = self._fs.mtime_s(path)
    except OSError:  # a directory of an object store has no time
      timestamp_s = None
    return StepSummary(
      step=step,
      name=name,
      state=state,
      timestamp_s=timestamp_s,
      age_s=None if timestamp_s is None else self._now_s - timestamp_s,
      size_bytes=size_bytes,
      problem=problem,
    )

  def _reasons(self, step: int, path: str) -> tuple[str, ...]:
    reasons = ['newest'] if step == self._newest else []
    if step in self._records and self._records[step].keep_reason:
      reasons.append(self._records[step].keep_reason)
    if self._fs.exists(fs.join(path, _layout.PIN)):
      reasons.append('pinned')
    elif step in self._held or _sweep.is_held(
      self._fs, path, now_s=self._now_s
    ):
      reasons.append('leased')
    return tuple(reasons)
