"""Which steps a directory holds: the file `checkpoints.pb`, and the truth.

The directories of the steps are the truth; the file adds when each was taken,
why it is kept and its metrics, and is rebuilt from the directories where it
is missing, empty or torn.
"""

import dataclasses
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging
from google.protobuf import message

from paxlike.checkpoint import _integrity, _layout, _manifest
from paxlike.core import errors, fs
from paxlike.protos import checkpoint_pb2 as pb

KEEP_INTERVAL = 'interval'
KEEP_BEST = 'best'
# The message's last field is the checksum of all before it, so that the file
# is plain protobuf for every reader and still proves itself to this one.
_CRC = struct.Struct('<BI')
_CRC_TAG = pb.CheckpointHistory.CRC32C_FIELD_NUMBER << 3 | 5


@dataclasses.dataclass(frozen=True)
class Record:
  """What is known of one committed step.

  Attributes:
    step: Number of completed updates.
    timestamp_s: When it was saved, seconds since 1970 UTC, by the clock of
      process 0.
    type: 'GDA', 'FLAX' or 'MULTI_HOST_FLAX'.
    keep_reason: 'interval' once the keep interval has preserved it, for good;
      'best' while it is one of the best; else ''.
    metrics: What `save` was given, for the best.
  """

  step: int
  timestamp_s: float
  type: str = ''
  keep_reason: str = ''
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


def encode(records: Iterable[Record]) -> bytes:
  """The bytes of `checkpoints.pb`, also what process 0 sends to the others."""
  history = pb.CheckpointHistory()
  for record in records:
    history.checkpoints.add(
      global_step_id=record.step,
      timestamp_sec=record.timestamp_s,
      type=record.type,
      keep_reason=record.keep_reason,
      metrics=dict(record.metrics),
    )
  payload = history.SerializeToString(deterministic=True)
  return payload + _CRC.pack(_CRC_TAG, _integrity.crc32c(payload))


def decode(data: bytes, *, path: str) -> list[Record]:
  """Reads what `encode` wrote.

  Raises:
    CheckpointDamagedError: It is empty, torn or not ours.
  """
  payload, end = data[: -_CRC.size], data[-_CRC.size :]
  if end != _CRC.pack(_CRC_TAG, _integrity.crc32c(payload)):
    raise errors.CheckpointDamagedError(
      f'{path} is damaged: its {len(data)} bytes do not end in their checksum.'
    )
  history = pb.CheckpointHistory()
  try:
    history.ParseFromString(payload)
  except message.DecodeError as e:
    raise errors.CheckpointDamagedError(f'{path} is damaged: {e}.') from e
  return [
    Record(
      step=c.global_step_id,
      timestamp_s=c.timestamp_sec,
      type=c.type,
      keep_reason=c.keep_reason,
      metrics=dict(c.metrics),
    )
    for c in history.checkpoints
  ]


def committed_names(
  file_system: fs.FileSystem, directory: str
) -> dict[int, str]:
  """Directory name of every committed step, by step, in their order.

  A name counts only if it is exactly ours and MANIFEST is in it. Where two
  names give one step, as after a change of the padding, the one that this
  version would write is taken, else the shortest.
  """
  try:
    names = file_system.list_dir(directory)
  except (FileNotFoundError, NotADirectoryError):
    return {}
  found: dict[int, list[str]] = {}
  for name in names:
    step = _layout.parse_step(name)
    if step is None:
      continue
    if file_system.exists(fs.join(directory, name, _layout.MANIFEST)):
      found.setdefault(step, []).append(name)
  return {
    step: min(found[step], key=lambda n: (n != _layout.step_name(step), n))
    for step in sorted(found)
  }


def load(
  file_system: fs.FileSystem, directory: str, names: Mapping[int, str]
) -> list[Record]:
  """The records of all committed steps, whatever became of the file.

  Args:
    file_system: Where to read.
    directory: The directory of all steps.
    names: What `committed_names` gave.

  Returns:
    One record a committed step, in the order of the steps.
  """
  known = {r.step: r for r in _read(file_system, directory, bool(names))}
  records = []
  for step, name in names.items():
    record = known.get(step)
    if record is None:
      record = _adopt(file_system, fs.join(directory, name), step)
    records.append(record)
  gone = sorted(set(known) - set(names))
  if gone:
    logging.warning(
      'Steps %s are in %s but not on disk; forgotten.',
      gone,
      fs.join(directory, _layout.HISTORY),
    )
  return records


def listed(file_system: fs.FileSystem, directory: str) -> set[int] | None:
  """The steps that the file lists; None where it is lost or damaged.

  Raises:
    StorageError: The store gives no answer, so nobody knows.
  """
  path = fs.join(directory, _layout.HISTORY)
  try:
    return {r.step for r in decode(file_system.read_bytes(path), path=path)}
  except errors.StorageError:
    raise
  except (errors.CheckpointDamagedError, OSError):
    return None


def without_manifest(
  file_system: fs.FileSystem, directory: str, names: Mapping[int, str]
) -> list[str]:
  """Directories of steps that were committed last and have lost MANIFEST.

  A step is listed once MANIFEST is in it and as long as it has: whoever takes
  one away takes it off the list first (`_directory.delete`, `_publishing`), or
  moves its directory in one. Without it, somebody has damaged the step.

  Args:
    file_system: Where to read.
    directory: The directory of all steps.
    names: What `committed_names` gave; none of them, to find all such steps.

  Returns:
    Paths of those newer than all of these steps, the newest first.
  """
  newest = max(names, default=-1)
  steps = listed(file_system, directory) or set()
  steps = {step for step in steps if step > newest}
  if not steps:
    return []
  found = [
    (_layout.parse_step(name), fs.join(directory, name))
    for name in file_system.list_dir(directory)
  ]
  lost = [
    (step, path)
    for step, path in sorted(f for f in found if f[0] in steps)[::-1]
    if not file_system.exists(fs.join(path, _layout.MANIFEST))
  ]
  if lost:  # and was not just swept
    there = set(file_system.list_dir(directory))
    lost = [(step, path) for step, path in lost if fs.base_name(path) in there]
  if lost and not file_system.atomic_rename:
    # One that is being swept is off the list by now.
    steps = listed(file_system, directory) or set()
  return [path for step, path in lost if step in steps]


def check_newest(
  file_system: fs.FileSystem,
  directory: str,
  names: Mapping[int, str],
  *,
  fallback: bool,
) -> None:
  """Refuses to pass over a newer step only because its MANIFEST is gone.

  Args:
    file_system: Where to read.
    directory: The directory of all steps.
    names: What `committed_names` gave.
    fallback: Whether to say so and let it pass.

  Raises:
    CheckpointDamagedError: There is one.
  """
  for path in without_manifest(file_system, directory, names):
    what = (
      f'{fs.join(path, _layout.MANIFEST)} is missing, though the step was '
      'committed: it is damaged.'
    )
    if not fallback:
      raise errors.CheckpointDamagedError(
        f'{what} Bring the file back, or go on from an older step with --set '
        'checkpoint_p.fallback=true.'
      )
    logging.warning('%s Falling back to the step before.', what)


def _read(
  file_system: fs.FileSystem, directory: str, is_expected: bool
) -> list[Record]:
  path = fs.join(directory, _layout.HISTORY)
  try:
    return decode(file_system.read_bytes(path), path=path)
  except FileNotFoundError:
    if is_expected:
      logging.warning('%s is missing; rebuilt from the steps there.', path)
  except (errors.CheckpointDamagedError, OSError) as e:
    logging.warning('%s; rebuilt from the steps there.', e)
  return []


def _adopt(file_system: fs.FileSystem, path: str, step: int) -> Record:
  try:
    manifest: Any = _manifest.read(file_system, path)
  except (errors.CheckpointError, OSError) as e:
    # It stays listed: who restores it is told what is wrong with it.
    logging.warning('%s', e)
    return Record(step, _mtime_s(file_system, path))
  logging.info('Step %d in %s is taken into the history.', step, path)
  return Record(
    step, manifest.timestamp_sec, manifest.type, '', dict(manifest.metrics)
  )


def _mtime_s(file_system: fs.FileSystem, path: str) -> float:
  try:
    return file_system.mtime_s(fs.join(path, _layout.MANIFEST))
  except OSError:
    return 0.0


def store(
  file_system: fs.FileSystem, directory: str, records: Iterable[Record]
) -> None:
  """Replaces `checkpoints.pb`; a reader sees the old or the new one."""
  path = fs.join(directory, _layout.HISTORY)
  file_system.write_atomic(path, encode(records))
