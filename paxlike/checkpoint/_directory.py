"""What process 0 does to the directory of all steps, apart from saving.

Every function gives the history as bytes, to be sent to the other processes.
"""

from collections.abc import Collection, Sequence

from absl import logging

from paxlike.checkpoint import _history, _jobs, _layout, _manifest, _sweep
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
    _history.check_newest(file_system, directory, names, fallback=False)
  for path in _history.without_manifest(file_system, directory, names):
    _sweep.set_aside(file_system, path, now_s=place.clock.now_s())
  _sweep.remove(file_system, clear(place).deleting)
  if names:
    _clear_other_attempts(file_system, fs.join(directory, names[max(names)]))
  data = look(place)
  records = _history.decode(data, path=directory)
  _write_down(place, records)
  ahead_s = records[-1].timestamp_s - place.clock.now_s() if records else 0.0
  if ahead_s > 0:
    logging.warning(
      'The clock went back: step %d was saved %.0f s in the future.',
      records[-1].step,
      ahead_s,
    )
  return data


def clear(place: _jobs.Place) -> _sweep.Litter:
  """Removes saves that never ended, and sets aside what is in their place."""
  found = _sweep.litter(place.file_system, place.directory)
  for path in found.damaged:
    _sweep.set_aside(place.file_system, path, now_s=place.clock.now_s())
  for path in found.unfinished:
    told = logging.warning
    why = 'a save that never ended'
    if not place.file_system.atomic_rename:  # where deleting takes long
      told = logging.info
      why += ', or by a deletion'
    told('%s was left by %s; removed.', path, why)
  _sweep.remove(place.file_system, found.unfinished)
  return found


def _clear_other_attempts(file_system: fs.FileSystem, path: str) -> None:
  """Removes what is left of attempts to overwrite a step in place.

  A committed step that was found damaged has left its mark, and is spared.
  """
  if file_system.atomic_rename or _sweep.hides_damage(file_system, path):
    return
  try:
    manifest = _manifest.read(file_system, path)
  except (errors.CheckpointError, OSError):
    return  # who restores it is told
  own = _layout.attempt_tag(manifest.attempt)
  # MULTI_HOST_FLAX has a directory a process.
  below = [n for n in file_system.list_dir(path) if n.isdecimal()]
  for directory in (path, *(fs.join(path, name) for name in below)):
    for name in file_system.list_dir(directory):
      if _layout.tag_of_state_file(name) not in ('', own):
        file = fs.join(directory, name)
        logging.warning('%s was left by a failed overwrite; removed.', file)
        file_system.remove(file)


def _write_down(place: _jobs.Place, records: Sequence[_history.Record]) -> None:
  """Brings the history up to date where it alone tells what is damaged.

  A directory of a step that lost MANIFEST looks like one of a save that never
  ended, but that the step is listed.
  """
  if place.file_system.atomic_rename:
    return
  listed = _history.listed(place.file_system, place.directory)
  if listed == {r.step for r in records} or not (listed or records):
    return
  try:
    _history.store(place.file_system, place.directory, records)
  except OSError as e:
    logging.warning('History not written: %s', e)  # the next save does it


def set_aside(
  place: _jobs.Place,
  damaged: Collection[int],
  kept: Sequence[_history.Record],
) -> bytes:
  """Renames damaged steps, so that training can save those steps again.

  Nothing of them is deleted: what can be saved of them is the user's to judge.
  """
  place.claim.check()
  file_system = place.file_system
  names = _history.committed_names(file_system, place.directory)
  paths = [
    fs.join(place.directory, names[step]) for step in damaged if step in names
  ]
  for path in paths:
    _sweep.set_aside(file_system, path, now_s=place.clock.now_s())
  _history.store(file_system, place.directory, kept)
  if not file_system.atomic_rename:
    for path in paths:
      file_system.remove(fs.join(path, _layout.MANIFEST))
  return _history.encode(kept)


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
  """Writes down the steps that are kept and deletes the others.

  The newest first, so that a crash leaves no gap. What is listed has MANIFEST
  (`_history.without_manifest`): so the list is first.
  """
  place.claim.check()
  names = _history.committed_names(place.file_system, place.directory)
  _history.store(place.file_system, place.directory, kept)
  hidden = _sweep.hide(
    place.file_system,
    place.directory,
    [names[step] for step in sorted(doomed, reverse=True) if step in names],
    clock=place.clock,
  )
  _sweep.remove(place.file_system, hidden)
  return _history.encode(kept)
