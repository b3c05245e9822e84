"""What happened to a job and when: `status/goodput.jsonl`, one event a line.

    {"time": 1793300000.1, "event": "time", "generation": 0, "step": 120,
     "totals_s": {"": 41.0, "compile": 6.2, "input": 0.4, "save": 0.3}}

`totals_s` is what `sync.Progress.totals_s` says at that step: seconds in each
phase of one process since it joined, '' for the steps themselves. An elastic
job adds what its lighthouse decides: formed, fault, first step, end, ...
"""

import json
from typing import IO, Any

from absl import logging

from paxlike.core import clock as clocks
from paxlike.core import fs

_FILE = 'goodput.jsonl'


def path(job_log_dir: str) -> str:
  """Where the events of a job are."""
  return fs.join(job_log_dir, 'status', _FILE)


class GoodputLog:
  """Adds events; a disk that is full or gone never ends a job for it."""

  def __init__(self, job_log_dir: str, *, clock: clocks.Clock = clocks.SYSTEM):
    self._clock = clock
    self._file: IO[bytes] | None = None
    where = path(job_log_dir)
    files = fs.for_path(where)
    try:
      files.make_dirs(fs.parent_dir(where))
      self._file = files.open_append(where)
    except OSError as error:
      logging.warning('%s cannot be written: %s', where, error)

  def event(self, fields: dict[str, Any]) -> None:
    """Adds one event."""
    if self._file is None:
      return
    line = json.dumps({'time': self._clock.now_s(), **fields})
    try:
      self._file.write(f'{line}\n'.encode())
      self._file.flush()
    except OSError as error:
      logging.warning('An event was not written: %s', error)

  def close(self) -> None:
    """Closes the file."""
    if self._file is not None:
      file, self._file = self._file, None
      try:
        file.close()
      except OSError as error:  # what is left of a line that was told above
        logging.warning('The last event was not written: %s', error)


def read(job_log_dir: str) -> list[dict[str, Any]]:
  """All events of a job, oldest first; a torn last line is left out.

  Raises:
    FileNotFoundError: There are none.
  """
  where = path(job_log_dir)
  events = []
  for line in fs.for_path(where).read_bytes(where).split(b'\n'):
    try:
      event = json.loads(line)
    except ValueError:
      continue
    if isinstance(event, dict) and 'event' in event and 'time' in event:
      events.append(event)
  return events
