"""status/<mode>.json: how a job is doing, for those that follow it."""

import dataclasses
import json
import os
import socket
from typing import Any

from paxlike.core import clock as clocks
from paxlike.core import disks, errors, fs
from paxlike.reporting import _jsonable

STATES = ('running', 'done', 'failed', 'preempted')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
  """What a job last said of itself.

  Attributes:
    state: 'running', 'done', 'failed' or 'preempted'.
    step: Updates done.
    reason: Why it is in that state, for people; may be empty.
    pid: Process that said so.
    host: Machine that said so.
    updated_s: When, in seconds since 1970 UTC. A job that is 'running' says
      so again and again: an old time means that it died without a word.
  """

  state: str
  step: int
  reason: str
  pid: int
  host: str
  updated_s: float

  @property
  def is_over(self) -> bool:
    """Whether the job has said that it ended."""
    return self.state != 'running'


def write_status(
  job_log_dir: str,
  mode: str,
  *,
  state: str,
  step: int,
  reason: str = '',
  clock: clocks.Clock = clocks.SYSTEM,
) -> None:
  """Replaces status/<mode>.json atomically.

  Args:
    job_log_dir: The job's directory.
    mode: 'train', 'eval', 'decode'.
    state: One of 'running', 'done', 'failed', 'preempted'.
    step: Updates done.
    reason: Why, for people.
    clock: Where `updated_s` comes from.
  """
  if state not in STATES:
    raise ValueError(f'State {state!r} must be one of {STATES}.')
  status = Status(
    state=state,
    step=int(step),
    reason=reason,
    pid=os.getpid(),
    host=socket.gethostname(),
    updated_s=clock.now_s(),
  )
  put_status(job_log_dir, mode, status)


def put_status(job_log_dir: str, mode: str, status: Status) -> None:
  """Replaces status/<mode>.json by what was read from there before."""
  path = _path(job_log_dir, mode)
  file_system = fs.for_path(path)
  file_system.make_dirs(fs.parent_dir(path))
  data = f'{_jsonable.dumps(status)}\n'.encode()
  try:
    file_system.write_atomic(path, data)
  except OSError as error:
    if not disks.is_full(error):
      raise
    # What ended a job must be told even so, or others would wait for it.
    file_system.write_over(path, data)


def read_status(job_log_dir: str, mode: str) -> Status | None:
  """What the job of that mode last said; None if it never said anything.

  Raises:
    ReportingError: The file is not one that `write_status` wrote.
  """
  path = _path(job_log_dir, mode)
  try:
    content = fs.for_path(path).read_bytes(path)
  except (FileNotFoundError, NotADirectoryError):
    return None
  try:
    fields: dict[str, Any] = json.loads(content)
    names = [field.name for field in dataclasses.fields(Status)]
    # Fields of a later version are none of our business.
    return Status(**{name: fields[name] for name in names})
  except (ValueError, KeyError, TypeError) as error:
    raise errors.ReportingError(
      f'{path} is no status: {content[:80]!r}.'
    ) from error


def _path(job_log_dir: str, mode: str) -> str:
  return fs.join(job_log_dir, 'status', f'{mode}.json')
