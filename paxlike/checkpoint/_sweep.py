"""Which steps stay and which go, and taking away those that go.

`decide` is a function of records and policy alone, so that the same history
keeps the same steps, however often the run was restarted in between.
"""

import dataclasses
import math
from collections.abc import Collection, Sequence

from absl import logging

from paxlike.checkpoint import _config, _history, _layout
from paxlike.core import clock as clocks
from paxlike.core import fs


@dataclasses.dataclass(frozen=True)
class Decision:
  """What becomes of the steps of a directory.

  Attributes:
    kept: Records that stay, with `keep_reason` brought up to date.
    surplus: Steps that no rule keeps; a pin or a lease may still.
  """

  kept: tuple[_history.Record, ...]
  surplus: tuple[int, ...]


def best_steps(
  records: Sequence[_history.Record], policy: _config.KeepPolicy
) -> set[int]:
  """The best steps by the policy's metric; NaN and no value are never best."""
  sign = 1.0 if policy.best_mode == 'min' else -1.0
  scored = []
  for record in records:
    value = record.metrics.get(policy.best_metric, math.nan)
    if not math.isnan(value):
      # Of equals the newest: it has trained longest.
      scored.append((sign * value, -record.step))
  return {-step for _, step in sorted(scored)[: policy.num_best]}


def decide(
  records: Sequence[_history.Record], policy: _config.KeepPolicy
) -> Decision:
  """Applies a keep policy to the records of all committed steps.

  The `max_to_keep` newest stay. Of the older ones, from the oldest on, one is
  preserved for good if `keep_interval` has passed since the last one that was;
  that is written into its record, so no restart can decide otherwise.

  Args:
    records: In the order of the steps.
    policy: What to keep.

  Returns:
    The records that stay and the steps that may go.
  """
  if policy.max_to_keep is None:
    return Decision(tuple(records), ())
  num_older = max(0, len(records) - policy.max_to_keep)
  preserved = [r for r in records if r.keep_reason == _history.KEEP_INTERVAL]
  last_s = preserved[-1].timestamp_s if preserved else -math.inf
  best = best_steps(records, policy)
  kept: list[_history.Record] = []
  surplus: list[int] = []
  for i, record in enumerate(records):
    is_old = i < num_older and record.keep_reason != _history.KEEP_INTERVAL
    # Not elapsed >= infinity: without an interval nothing is preserved.
    if (
      is_old
      and policy.keep_interval is not None
      and record.timestamp_s - last_s >= policy.keep_interval_s
    ):
      record = dataclasses.replace(record, keep_reason=_history.KEEP_INTERVAL)
      last_s = record.timestamp_s
      is_old = False
    if is_old and record.step not in best:
      surplus.append(record.step)
      continue
    if record.keep_reason != _history.KEEP_INTERVAL:
      reason = _history.KEEP_BEST if record.step in best else ''
      record = dataclasses.replace(record, keep_reason=reason)
    kept.append(record)
  return Decision(tuple(kept), tuple(surplus))


def is_held(file_system: fs.FileSystem, path: str, *, now_s: float) -> bool:
  """Whether a step is pinned, or leased by a reader that may still read it."""
  try:
    names = file_system.list_dir(path)
  except (FileNotFoundError, NotADirectoryError):
    return False
  for name in names:
    if name == _layout.PIN:
      return True
    if name.startswith(_layout.LEASE_PREFIX):
      try:
        until_s = float(file_system.read_bytes(fs.join(path, name)))
      except (OSError, ValueError):
        continue
      if until_s > now_s:
        return True
  return False


def hide(
  file_system: fs.FileSystem,
  directory: str,
  names: Collection[str],
  *,
  clock: clocks.Clock,
) -> list[str]:
  """Takes steps out of sight, each in one move, before anything is removed.

  Returns:
    Paths whose contents `remove` is to take away.
  """
  hidden = []
  for count, name in enumerate(names):
    path = fs.join(directory, name)
    if not file_system.atomic_rename:
      # The manifest is what makes a step exist.
      file_system.remove(fs.join(path, _layout.MANIFEST))
      hidden.append(path)
      continue
    target = fs.join(
      directory,
      _layout.deleting_name(name, now_s=clock.now_s(), count=count),
    )
    try:
      file_system.rename(path, target)
    except FileNotFoundError:
      continue
    hidden.append(target)
  return hidden


def remove(file_system: fs.FileSystem, paths: Collection[str]) -> None:
  """Takes away what `hide` has hidden; what cannot go is left for later."""
  for path in paths:
    try:
      file_system.remove_tree(path)
    except OSError as e:
      logging.warning('%s could not be removed, left for later: %s', path, e)


def set_aside(file_system: fs.FileSystem, path: str, *, now_s: float) -> None:
  """Keeps a damaged step for the user to judge, out of the way of its number.

  Where there is no rename its files stay where they are, beside those of the
  step if it is saved again, and a copy of MANIFEST marks them; the caller takes
  the step off the history and then MANIFEST away.
  """
  if file_system.atomic_rename:
    step = _layout.parse_step(fs.base_name(path))
    assert step is not None
    directory, name = fs.parent_dir(path), _layout.step_name(step)
  else:
    directory, name = path, _layout.MANIFEST
  target = fs.join(directory, _layout.damaged_name(name, now_s=now_s))
  while file_system.exists(target):
    now_s += 1.0
    target = fs.join(directory, _layout.damaged_name(name, now_s=now_s))
  if file_system.atomic_rename:
    file_system.rename(path, target)
  else:
    file_system.write_new(target, _manifest_or_nothing(file_system, path))
  logging.warning('%s is damaged; it was set aside as %s.', path, target)


def _manifest_or_nothing(file_system: fs.FileSystem, path: str) -> bytes:
  try:
    return file_system.read_bytes(fs.join(path, _layout.MANIFEST))
  except (FileNotFoundError, IsADirectoryError):
    return b''


def hides_damage(file_system: fs.FileSystem, path: str) -> bool:
  """Whether files of a step that was set aside are among those of this one."""
  if file_system.atomic_rename:
    return False
  try:
    names = file_system.list_dir(path)
  except FileNotFoundError:  # it was removed meanwhile
    return False
  return any(_layout.is_damaged_manifest(name) for name in names)


@dataclasses.dataclass(frozen=True)
class Litter:
  """What an earlier run left, as paths.

  Attributes:
    unfinished: Steps half written.
    deleting: Steps half deleted.
    damaged: Steps without MANIFEST that are, or may be, committed ones; none
      where there is a rename: they have their names and are in nobody's way.
  """

  unfinished: tuple[str, ...]
  deleting: tuple[str, ...]
  damaged: tuple[str, ...]


def litter(file_system: fs.FileSystem, directory: str) -> Litter:
  """Finds what an earlier run left; what was set aside is left alone."""
  try:
    names = file_system.list_dir(directory)
  except FileNotFoundError:  # an object store, where nothing was written yet
    names = []
  unfinished = [n for n in names if _layout.is_temporary(n)]
  deleting = [n for n in names if _layout.is_deleting(n)]
  damaged: list[str] = []
  if not file_system.atomic_rename:
    new, damaged = _without_manifest(file_system, directory, names)
    unfinished += new
  return Litter(
    *(
      tuple(fs.join(directory, name) for name in found)
      for found in (unfinished, deleting, damaged)
    )
  )


def _without_manifest(
  file_system: fs.FileSystem, directory: str, names: Collection[str]
) -> tuple[list[str], list[str]]:
  """Of steps written in place, those that never ended and those damaged."""
  steps = [name for name in names if _layout.parse_step(name) is not None]
  bare = [
    name
    for name in steps
    if not file_system.exists(fs.join(directory, name, _layout.MANIFEST))
  ]
  if not bare:
    return [], []
  # Read after the names: a step that goes is taken off the list first.
  listed = _history.listed(file_system, directory)
  if (
    listed is None and len(bare) == len(steps) and _layout.HISTORY not in names
  ):
    listed = set()  # a run that has not saved anything yet
  unfinished, damaged = [], []
  for name in bare:
    path = fs.join(directory, name)
    if file_system.is_dir(path) and not hides_damage(file_system, path):
      # Without a history nobody can tell; so it is kept.
      is_new = listed is not None and _layout.parse_step(name) not in listed
      (unfinished if is_new else damaged).append(name)
  return unfinished, damaged
