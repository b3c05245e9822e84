"""Taking steps away and keeping them, by hand."""

import os
from collections.abc import Callable, Collection, Sequence

from paxlike.checkpoint import _following, _history, _layout, _sweep
from paxlike.checkpoint.tools import _places
from paxlike.core import clock as clocks
from paxlike.core import errors, fs


def remove(
  path: str | os.PathLike[str],
  steps: Sequence[int] = (),
  *,
  force: bool = False,
  clock: clocks.Clock = clocks.SYSTEM,
) -> list[int]:
  """Deletes steps: first out of sight in one move each, then from the disk.

  Args:
    path: A job_log_dir, its directory of checkpoints, or one step.
    steps: Which ones; may be left out where the path is one step.
    force: Also the newest complete one, and pinned and leased ones.
    clock: For leases and names.

  Returns:
    The steps that were deleted.

  Raises:
    UsageError: No step is named, or one needs `force`; nothing was deleted.
    CheckpointNotFoundError: A step is not there; nothing was deleted.
  """
  place = _places.find(path)
  chosen = _choose(place, steps, 'rm')
  every = _history.committed_names(place.file_system, place.directory)
  if not force:
    _refuse_precious(place, chosen, every=every, now_s=clock.now_s())
  records = _history.load(place.file_system, place.directory, every)
  # The newest first, as when a run is taken back: a crash between two leaves
  # a history without gaps.
  order = sorted(chosen, reverse=True)
  # Off the list first: what is listed is there, or else damaged.
  kept = [record for record in records if record.step not in chosen]
  _history.store(place.file_system, place.directory, kept)
  hidden = _sweep.hide(
    place.file_system,
    place.directory,
    [chosen[step] for step in order],
    clock=clock,
  )
  for each in hidden:
    place.file_system.remove_tree(each)
  return sorted(chosen)


def _choose(
  place: _places.Place, steps: Sequence[int], command: str
) -> dict[int, str]:
  """Directory names of the steps that are meant."""
  if not steps and not place.only:
    # Not the newest, which nobody means to lose.
    example = min(place.names(), default=100)
    raise errors.UsageError(
      f'Which steps of {place.directory}? For example: paxlike ckpt {command} '
      f'{place.directory} {example}'
    )
  if not steps:
    name = fs.base_name(place.pick())
    step = _layout.parse_step(name)
    assert step is not None
    return {step: name}
  return {step: fs.base_name(place.pick(step)) for step in steps}


def _refuse_precious(
  place: _places.Place,
  chosen: dict[int, str],
  *,
  every: Collection[int],
  now_s: float,
) -> None:
  held = _following.held(place.file_system, place.directory, every, now_s=now_s)
  problems = []
  for step, name in sorted(chosen.items()):
    path = fs.join(place.directory, name)
    if place.file_system.exists(fs.join(path, _layout.PIN)):
      problems.append(f'step {step} is pinned')
    elif _sweep.is_held(place.file_system, path, now_s=now_s):
      problems.append(f'step {step} is being read')
    elif step in held:
      problems.append(f'a follower waits for step {step}')
    if step == max(every):
      problems.append(f'step {step} is the newest complete one')
  if problems:
    raise errors.UsageError(
      f'Nothing was removed from {place.directory}: {", ".join(problems)}. To '
      'remove it all the same, add --force.'
    )


def pin(path: str | os.PathLike[str], steps: Sequence[int] = ()) -> list[int]:
  """Keeps steps whatever the keep policy says, until they are unpinned.

  Args:
    path: A job_log_dir, its directory of checkpoints, or one step.
    steps: Which ones; may be left out where the path is one step.

  Returns:
    The steps.

  Raises:
    UsageError: No step is named.
    CheckpointNotFoundError: A step is not there; nothing was pinned.
  """

  def mark(file_system: fs.FileSystem, step_path: str) -> None:
    file_system.write_new(fs.join(step_path, _layout.PIN), b'')
    file_system.sync_dir(step_path)

  return _for_each(path, steps, 'pin', mark)


def unpin(path: str | os.PathLike[str], steps: Sequence[int] = ()) -> list[int]:
  """Leaves steps to the keep policy again; one not pinned is fine.

  Args:
    path: A job_log_dir, its directory of checkpoints, or one step.
    steps: Which ones; may be left out where the path is one step.

  Returns:
    The steps.

  Raises:
    UsageError: No step is named.
    CheckpointNotFoundError: A step is not there.
  """

  def unmark(file_system: fs.FileSystem, step_path: str) -> None:
    file_system.remove(fs.join(step_path, _layout.PIN))
    file_system.sync_dir(step_path)

  return _for_each(path, steps, 'unpin', unmark)


def _for_each(
  path: str | os.PathLike[str],
  steps: Sequence[int],
  command: str,
  change: Callable[[fs.FileSystem, str], None],
) -> list[int]:
  place = _places.find(path)
  chosen = _choose(place, steps, command)
  for name in chosen.values():
    change(place.file_system, fs.join(place.directory, name))
  return sorted(chosen)
