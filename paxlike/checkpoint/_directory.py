"""What process 0 does to the directory of all steps, apart from saving.

Every function gives the history as bytes, to be sent to the other processes.
"""

from collections.abc import Collection, Sequence

from absl import logging

from paxlike.checkpoint import _history, _jobs, _layout, _sweep
from paxlike.core import disks, errors, fs


def look(place: _jobs.Place) -> bytes:
  """Lists what is committed; changes nothing.

  Looks again where the only step that was there was swept in between: a newer
  one came before it went.
  """
  before: set[str] = set()
  while True:
    names = _history.committed_names(place.file_system, place.directory)
    records = _history.load(place.file_system, place.directory, names)
    there = set() if records else _step_names(place)
    if there <= before:
      return _history.encode(records)
    before = there


def _step_names(place: _jobs.Place) -> set[str]:
  """Names of all that may be steps, whole or not."""
  try:
    names = place.file_system.list_dir(place.directory)
  except (FileNotFoundError, NotADirectoryError):
    return set()
  return {name for name in names if _layout.parse_step(name) is not None}


def take_over(place: _jobs.Place) -> bytes:
  """Makes the directory ours: claims it, clears litter.

  Raises:
    CheckpointBusyError: Somebody else writes there.
    ConfigError: It is the directory of one step.
    SaveError: Nothing can be written there.
    CheckpointDamagedError: The newest step has lost its MANIFEST.
  """
  file_system, directory = place.file_system, place.directory
  wrong = _layout.explain_bad_directory(file_system, directory)
  if wrong and _layout.parse_step(fs.base_name(directory)) is not None:
    raise errors.ConfigError(wrong)
  _claim(place)
  names = _history.committed_names(file_system, directory)
  if not place.config.fallback:
    _history.check_newest(file_system, directory, names)
  for path in _history.without_manifest(file_system, directory, names):
    _set_aside(place, path)
  temporary, deleting = _sweep.litter(file_system, directory)
  for path in temporary:
    logging.warning('%s was left by a save that never ended; removed.', path)
  _sweep.remove(file_system, [*temporary, *deleting])
  data = look(place)
  records = _history.decode(data, path=directory)
  ahead_s = records[-1].timestamp_s - place.clock.now_s() if records else 0.0
  if ahead_s > 0:
    logging.warning(
      'The clock went back: step %d was saved %.0f s in the future.',
      records[-1].step,
      ahead_s,
    )
  return data


def set_aside(
  place: _jobs.Place,
  damaged: Collection[int],
  kept: Sequence[_history.Record],
) -> bytes:
  """Renames damaged steps, so that training can save those steps again.

  Nothing of them is deleted: what can be saved of them is the user's to judge.
  """
  place.claim.check()
  names = _history.committed_names(place.file_system, place.directory)
  for step in damaged:
    if step in names and place.file_system.atomic_rename:
      _set_aside(place, fs.join(place.directory, names[step]))
  _history.store(place.file_system, place.directory, kept)
  return _history.encode(kept)


def _set_aside(place: _jobs.Place, path: str) -> None:
  step = _layout.parse_step(fs.base_name(path))
  assert step is not None
  name = _layout.damaged_name(step, now_s=place.clock.now_s())
  target = fs.join(place.directory, name)
  place.file_system.rename(path, target)
  logging.warning('%s is damaged; it was set aside as %s.', path, target)


def _claim(place: _jobs.Place) -> None:
  """Makes the directory, and no other writer's; tells whether we can write."""
  try:
    place.file_system.make_dirs(place.directory)
    place.claim.take()
  except OSError as e:
    raise errors.SaveError(
      f'Checkpoints cannot be written to {place.directory}: {e}. Nothing has '
      f'been trained. {disks.remedy(e) or "See that it can be reached"}, or '
      'choose another --job_log_dir.'
    ) from e


def delete(
  place: _jobs.Place,
  doomed: Collection[int],
  kept: Sequence[_history.Record],
) -> bytes:
  """Deletes steps, the newest first, and writes down those that are kept."""
  place.claim.check()
  names = _history.committed_names(place.file_system, place.directory)
  hidden = _sweep.hide(
    place.file_system,
    place.directory,
    [names[step] for step in sorted(doomed, reverse=True) if step in names],
    clock=place.clock,
  )
  _history.store(place.file_system, place.directory, kept)
  _sweep.remove(place.file_system, hidden)
  return _history.encode(kept)
