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
import json
import os
from collections.abc import Mapping
from typing import Any

import jax

from paxlike.checkpoint import (
  _directory,
  _history,
  _jobs,
  _layout,
  _publishing,
)
from paxlike.core import disks, errors, fs
from paxlike.protos import checkpoint_pb2 as pb


def announce(
  place: _jobs.Place, name: str, state: Any, *, step: int, meets: bool
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

  def __init__(self, place: _jobs.Place, job: _jobs.Job):
    self._place = place
    self._job = job
    self._fs = place.file_system
    self._is_first = place.world.process_index == 0

  def run(self) -> _jobs.Committed:
    """Writes, meets the other processes and publishes.

    Raises:
      SaveError: Some process could not write; the message says which and why.
    """
    attempt = None
    try:
      attempt = self._begin()
      files = self._write_and_gather(attempt)
      return self._publish(attempt, files)
    except errors.SaveError:
      self._clean_up(attempt)
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

  def _broadcast(
    self,
    what: str,
    message: Mapping[str, Any] | None,
    *,
    cause: BaseException | None,
  ) -> Any:
    data = self._place.world.broadcast(
      f'{self._job.name}/{what}',
      None if message is None else json.dumps(message).encode(),
      timeout_s=self._place.config.timeout_s,
    )
    answer = json.loads(data)
    if 'error' in answer:
      raise errors.SaveError(answer['error']) from cause
    return answer

  def _failed(self, process: int, error: BaseException) -> str:
    return (
      f'Step {self._job.step} was not saved in {self._place.directory}: '
      f'process {process} failed with {_describe(error)}. The steps before '
      f'are untouched.{_advice(error)}'
    )

  # 1.

  def _begin(self) -> _jobs.Attempt:
    message = None
    error: BaseException | None = None
    if self._is_first:
      try:
        message = self._make_directory()
      except Exception as e:  # noqa: BLE001 (told to every process)
        error = e
        message = {'error': self._failed(0, e)}
    answer = self._broadcast('begin', message, cause=error)
    return _jobs.Attempt(
      directory=fs.join(self._place.directory, answer['directory']),
      id=bytes.fromhex(answer['attempt']),
      tag=answer['tag'],
      timestamp_s=answer['timestamp_s'],
    )

  def _make_directory(self) -> dict[str, Any]:
    self._place.claim.check()
    step, now_s = self._job.step, self._place.clock.now_s()
    attempt = os.urandom(16)
    _directory.clear(self._place)
    if self._fs.atomic_rename:
      name, tag = _layout.temporary_name(step, now_s=now_s), ''
    else:
      # Written in place: the names tell this attempt's objects from those of
      # an earlier one whose writer may still be alive.
      name, tag = _layout.step_name(step), _layout.attempt_tag(attempt)
    self._fs.make_dirs(fs.join(self._place.directory, name))
    return {
      'directory': name,
      'attempt': attempt.hex(),
      'tag': tag,
      'timestamp_s': now_s,
    }

  # 2.

  def _write_and_gather(self, attempt: _jobs.Attempt) -> list[pb.ProcessFiles]:
    world = self._place.world
    error: BaseException | None = None
    message: dict[str, str] = {}
    try:
      written = self._job.staged.write(
        self._fs,
        attempt.directory,
        process=world.process_index,
        attempt=attempt.id,
        tag=attempt.tag,
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

  def _publish(
    self, attempt: _jobs.Attempt, files: list[pb.ProcessFiles]
  ) -> _jobs.Committed:
    publication = _publishing.Publication(self._place, self._job, attempt)
    message, surplus = None, []
    error: BaseException | None = None
    if self._is_first:
      try:
        publication.write_manifest(files)
        records, surplus = publication.new_history()
        message = {
          'records': base64.b64encode(_history.encode(records)).decode()
        }
      except Exception as e:  # noqa: BLE001 (told to every process)
        error = e
        message = {'error': self._failed(0, e)}
    answer = self._broadcast('outcome', message, cause=error)
    kept = tuple(
      _history.decode(base64.b64decode(answer['records']), path='outcome')
    )
    return _jobs.Committed(kept, tuple(publication.hide(surplus)))

  def _clean_up(self, attempt: _jobs.Attempt | None) -> None:
    # Written in place, what is there may be the step that it was to replace.
    if self._is_first and attempt is not None and self._fs.atomic_rename:
      with contextlib.suppress(OSError):
        self._fs.remove_tree(attempt.directory)


def _advice(error: BaseException) -> str:
  remedy = disks.remedy(error)
  return f' {remedy}.' if remedy else ''


def _describe(error: BaseException) -> str:
  return f'{type(error).__name__}: {error}'
