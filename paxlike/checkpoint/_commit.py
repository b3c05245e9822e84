"""Publishes a staged state so that readers see all of it or nothing.

Promises: after `Commit.run` returns, on any process, the step is durable and
every process can restore it; where it raises, it raises on every process, the
step does not exist and the ones before are untouched; a crash at any point
leaves the old steps or the old steps and the new one. Which steps to keep is
`_sweep`'s.

The protocol, three meetings whatever the number of processes:

The first save of a manager begins with one more: all have called it.

1. begin: process 0 makes the directory and tells its name and the attempt id.
2. Each process writes its files durably. gather: their names, sizes and sums,
   or the error of the one that failed.
3. Process 0 writes MANIFEST and moves the directory to its name. outcome: the
   history as it now is, or the error.
"""

import base64
import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import logging

from paxlike import sync
from paxlike.checkpoint import (
  _boxes,
  _claims,
  _config,
  _following,
  _history,
  _integrity,
  _layout,
  _manifest,
  _state,
  _stores,
  _sweep,
)
from paxlike.core import clock as clocks
from paxlike.core import errors, fs
from paxlike.protos import checkpoint_pb2 as pb


@dataclasses.dataclass(frozen=True)
class Place:
  """Where steps are written and by whom.

  Attributes:
    directory: Of all steps.
    file_system: That serves it.
    world: The processes that write together.
    clock: Of this process; only that of process 0 is ever looked at.
    config: How to write.
    keep_policy: What to keep.
    claim: On the directory; held by process 0 as long as it may write.
  """

  directory: str
  file_system: fs.FileSystem
  world: sync.World
  clock: clocks.Clock
  config: _config.CheckpointConfig
  keep_policy: _config.KeepPolicy
  claim: _claims.Claim


@dataclasses.dataclass(frozen=True)
class Job:
  """One step to be committed.

  Attributes:
    step: Its number.
    name: What its meetings are called; serves once.
    staged: The state being copied.
    state: Its structure.
    layouts: How each array is cut.
    items: Further items, encoded: name to (encoding, bytes).
    metrics: For the best.
    records: The history so far.
    overwrite: Replace a step of this number.
  """

  step: int
  name: str
  staged: _stores.Staged
  state: _state.State
  layouts: Sequence[_boxes.Layout]
  items: Mapping[str, tuple[str, bytes]]
  metrics: Mapping[str, float]
  records: Sequence[_history.Record]
  overwrite: bool


@dataclasses.dataclass(frozen=True)
class Committed:
  """A step that exists.

  Attributes:
    records: The history after it, on every process the same.
    hidden: On process 0, what is to be removed from the disk.
  """

  records: tuple[_history.Record, ...]
  hidden: tuple[str, ...]


def encode_item(name: str, value: Any) -> tuple[str, bytes]:
  """The encoding and the bytes of an item.

  Raises:
    ConfigError: The name is not allowed, or the value is not JSON.
  """
  _layout.check_item_name(name)
  if isinstance(value, (bytes, bytearray, memoryview)):
    return 'bytes', bytes(value)
  try:
    return 'json', json.dumps(value, sort_keys=True).encode()
  except (TypeError, ValueError) as e:
    raise errors.ConfigError(
      f'Item {name!r} of a checkpoint must be bytes or JSON: {e}.'
    ) from e


def decode_item(encoding: str, payload: bytes) -> Any:
  """What `encode_item` was given."""
  return json.loads(payload) if encoding == 'json' else payload


def announce(
  place: Place, name: str, state: Any, *, step: int, meets: bool
) -> None:
  """Says that this process calls a save, which every process must call.

  Args:
    place: Where.
    name: Of the save's meetings.
    state: What is saved.
    step: Its step.
    meets: Whether to wait until all have called it. A program that saves on
      one process alone would go on, and be found out only at its end: here it
      stands, and is told within seconds. Once is enough, for it is the program
      that has the call right or wrong.

  Raises:
    SaveError: Some process does not come; it is named, and where it is.
  """
  if place.world.process_count == 1:
    return
  # From now on, who waits for a device waits for one that waits here.
  with contextlib.suppress(RuntimeError):  # what is wrong, saving it will say
    jax.block_until_ready(state)
  place.world.announce(name)
  if not meets:
    return
  try:
    place.world.barrier(f'{name}/called', timeout_s=place.config.timeout_s)
  except errors.SyncError as e:
    raise errors.SaveError(
      f'Step {step} was not saved in {place.directory}: {e}'
    ) from e


class Commit:
  """One attempt to make one step exist."""

  def __init__(self, place: Place, job: Job):
    self._place = place
    self._job = job
    self._fs = place.file_system
    self._is_first = place.world.process_index == 0
    self._directory = ''
    self._attempt = b''
    self._tag = ''
    self._timestamp_s = 0.0

  def run(self) -> Committed:
    """Writes, meets the other processes and publishes.

    Raises:
      SaveError: Some process could not write; the message says which and why.
    """
    try:
      self._begin()
      files = self._write_and_gather()
      return self._publish(files)
    except errors.SaveError:
      self._clean_up()
      raise
    except errors.SyncError as e:
      # Another process may still be writing there: it is left to the next
      # save or start.
      raise errors.SaveError(
        f'Step {self._job.step} was not saved in {self._place.directory}: {e}'
      ) from e
    finally:
      # Who copies may be waiting for room that nobody will make.
      self._job.staged.abandon()

  def _broadcast(self, what: str, message: Mapping[str, Any] | None) -> Any:
    data = self._place.world.broadcast(
      f'{self._job.name}/{what}',
      None if message is None else json.dumps(message).encode(),
      timeout_s=self._place.config.timeout_s,
    )
    answer = json.loads(data)
    if 'error' in answer:
      raise errors.SaveError(answer['error'])
    return answer

  def _failed(self, process: int, error: BaseException) -> str:
    return (
      f'Step {self._job.step} was not saved in {self._place.directory}: '
      f'process {process} failed with {_describe(error)}. The steps before '
      'are untouched.'
    )

  # 1.

  def _begin(self) -> None:
    message = None
    if self._is_first:
      try:
        message = self._make_directory()
      except Exception as e:  # noqa: BLE001 (told to every process)
        message = {'error': self._failed(0, e)}
    answer = self._broadcast('begin', message)
    self._directory = fs.join(self._place.directory, answer['directory'])
    self._attempt = bytes.fromhex(answer['attempt'])
    self._tag = answer['tag']
    self._timestamp_s = answer['timestamp_s']

  def _make_directory(self) -> dict[str, Any]:
    self._place.claim.check()
    step, now_s = self._job.step, self._place.clock.now_s()
    attempt = os.urandom(16)
    temporary, _ = _sweep.litter(self._fs, self._place.directory)
    for path in temporary:
      logging.warning('%s was left by a save that never ended; removed.', path)
    _sweep.remove(self._fs, temporary)
    if self._fs.atomic_rename:
      name, tag = _layout.temporary_name(step, now_s=now_s), ''
    else:
      # Written in place: the names tell this attempt's objects from those of
      # an earlier one whose writer may still be alive.
      name, tag = _layout.step_name(step), f'-{attempt.hex()[:8]}'
    self._fs.make_dirs(fs.join(self._place.directory, name))
    return {
      'directory': name,
      'attempt': attempt.hex(),
      'tag': tag,
      'timestamp_s': now_s,
    }

  # 2.

  def _write_and_gather(self) -> list[pb.ProcessFiles]:
    world = self._place.world
    error: BaseException | None = None
    message: dict[str, str] = {}
    try:
      written = self._job.staged.write(
        self._fs,
        self._directory,
        process=world.process_index,
        attempt=self._attempt,
        tag=self._tag,
      )
      if written is not None:
        data = written.SerializeToString()
        message['files'] = base64.b64encode(data).decode()
    except Exception as e:  # noqa: BLE001 (told to every process)
      error = e
      message['error'] = self._failed(world.process_index, e)
    answers = [
      json.loads(data)
      for data in world.gather(
        f'{self._job.name}/written',
        json.dumps(message).encode(),
        timeout_s=self._place.config.timeout_s,
      )
    ]
    for answer in answers:
      if 'error' in answer:
        raise errors.SaveError(answer['error']) from error
    return [
      pb.ProcessFiles.FromString(base64.b64decode(answer['files']))
      for answer in answers
      if 'files' in answer
    ]

  # 3.

  def _publish(self, files: list[pb.ProcessFiles]) -> Committed:
    message, surplus = None, []
    error: BaseException | None = None
    if self._is_first:
      try:
        self._write_manifest(files)
        records, surplus = self._new_history()
        message = {
          'records': base64.b64encode(_history.encode(records)).decode()
        }
      except Exception as e:  # noqa: BLE001 (told to every process)
        error = e
        message = {'error': self._failed(0, e)}
    try:
      answer = self._broadcast('outcome', message)
    except errors.SaveError as e:
      raise e from error
    kept = tuple(
      _history.decode(base64.b64decode(answer['records']), path='outcome')
    )
    return Committed(kept, tuple(self._hide(surplus)))

  def _write_manifest(self, files: list[pb.ProcessFiles]) -> None:
    job = self._job
    manifest = _manifest.build(
      step=job.step,
      attempt=self._attempt,
      kind=self._place.config.type,
      timestamp_s=self._timestamp_s,
      state=job.state,
      layouts=job.layouts,
      files=files,
      items=[self._write_item(name) for name in sorted(job.items)],
      metrics=job.metrics,
    )
    path = fs.join(self._directory, _layout.MANIFEST)
    # Whoever has taken over meanwhile may have a step of this number by now.
    self._place.claim.check()
    if not self._fs.atomic_rename:
      self._fs.write_atomic(path, _manifest.pack(manifest))
      self._drop_replaced()
      return
    self._fs.write_new(path, _manifest.pack(manifest))
    self._fs.sync_dir(self._directory)
    # Rename last: a reader takes the final name as the commit mark.
    # (commit_test.py::test_a_crash_at_any_call_leaves_a_whole_step)
    self._move_into_place()
    self._fs.sync_dir(self._place.directory)

  def _drop_replaced(self) -> None:
    """Removes files of a step that was overwritten in place."""
    if not self._job.overwrite:
      return
    try:
      self._drop_replaced_in(self._directory)
    except OSError as e:
      # The new version is there; the manifest does not name the old files.
      logging.warning('Step %d: old files stay: %s', self._job.step, e)

  def _drop_replaced_in(self, directory: str) -> None:
    for name in self._fs.list_dir(directory):
      path = fs.join(directory, name)
      if self._fs.is_dir(path):  # of one process
        self._drop_replaced_in(path)
      elif not (_layout.is_mark(name) or self._tag in name):
        self._fs.remove(path)

  def _write_item(self, name: str) -> pb.Item:
    encoding, payload = self._job.items[name]
    data = _integrity.pack(
      payload,
      kind=_integrity.Kind.ITEM,
      step=self._job.step,
      attempt=self._attempt,
    )
    file = f'{name}{self._tag}'
    self._fs.write_new(fs.join(self._directory, file), data)
    return pb.Item(
      name=name,
      file=file,
      encoding=encoding,
      size=len(data),
      crc32c=_integrity.crc32c(data),
    )

  def _move_into_place(self) -> None:
    final = fs.join(self._place.directory, _layout.step_name(self._job.step))
    if self._fs.exists(final):
      self._make_way(final)
      if not self._fs.exists(self._directory):
        return
    self._fs.rename(self._directory, final)

  def _make_way(self, final: str) -> None:
    """Takes away what has the name: a step to overwrite, or a broken one."""
    if self._fs.exists(fs.join(final, _layout.PIN)):
      # The pin is on the step, whatever version of it is there.
      self._fs.write_new(fs.join(self._directory, _layout.PIN), b'')
      self._fs.sync_dir(self._directory)
    if self._fs.exchange(self._directory, final):
      old = self._directory
      name = _layout.step_name(self._job.step)
      target = fs.join(
        self._place.directory,
        _layout.deleting_name(
          name, now_s=self._place.clock.now_s(), count=9999
        ),
      )
      self._fs.rename(old, target)
      _sweep.remove(self._fs, [target])
      return
    _sweep.remove(
      self._fs,
      _sweep.hide(
        self._fs,
        self._place.directory,
        [fs.base_name(final)],
        clock=self._place.clock,
      ),
    )

  def _new_history(self) -> tuple[list[_history.Record], list[str]]:
    """The history with this step, written down, and what it has no more."""
    place, job = self._place, self._job
    reasons = {r.step: r.keep_reason for r in job.records}
    record = _history.Record(
      job.step,
      self._timestamp_s,
      place.config.type,
      # What was preserved for good stays so when it is overwritten.
      reasons.get(job.step, ''),
      dict(job.metrics),
    )
    records = sorted(
      [*(r for r in job.records if r.step != job.step), record],
      key=lambda r: r.step,
    )
    # The step exists, whatever fails from here on.
    kept, surplus = records, []
    try:
      kept, surplus = apply_policy(place, records, spare=job.step)
    except OSError as e:
      logging.warning('Step %d: old steps stay for now: %s', job.step, e)
    try:
      _history.store(self._fs, place.directory, kept)
    except OSError as e:
      # The next start rebuilds the file.
      logging.warning('Step %d: history not written: %s', job.step, e)
    return kept, surplus

  def _hide(self, surplus: Sequence[str]) -> list[str]:
    """Takes surplus steps out of sight, now that the new one is durable."""
    try:
      return _sweep.hide(
        self._fs, self._place.directory, surplus, clock=self._place.clock
      )
    except OSError as e:
      logging.warning('Old steps not removed, left for later: %s', e)
      return []

  def _clean_up(self) -> None:
    # Written in place, what is there may be the step that it was to replace.
    if self._is_first and self._directory and self._fs.atomic_rename:
      with contextlib.suppress(OSError):
        self._fs.remove_tree(self._directory)


def apply_policy(
  place: Place, records: Sequence[_history.Record], *, spare: int
) -> tuple[list[_history.Record], list[str]]:
  """Decides what goes; a pinned or leased step, and `spare`, never do.

  Steps that somebody removed by hand are forgotten and count for nothing.

  Returns:
    The records that stay and the names of the directories that go.
  """
  names = _history.committed_names(place.file_system, place.directory)
  records = [record for record in records if record.step in names]
  decision = _sweep.decide(records, place.keep_policy)
  now_s = place.clock.now_s()
  held = _following.held(
    place.file_system, place.directory, decision.surplus, now_s=now_s
  )
  surplus = {}
  for step in decision.surplus:
    path = fs.join(place.directory, names[step])
    if step not in (spare, *held) and not _sweep.is_held(
      place.file_system, path, now_s=now_s
    ):
      surplus[step] = names[step]
  marked = {record.step: record for record in decision.kept}
  kept = [marked.get(r.step, r) for r in records if r.step not in surplus]
  return kept, list(surplus.values())


def _describe(error: BaseException) -> str:
  return f'{type(error).__name__}: {error}'
