"""metrics/<name>.jsonl: the scalars of each step, a JSON object a line.

Promises: no step twice after a resume, and no torn line in the middle. A line
has `step` and `wall_time`; NaN and infinities are strings (`_jsonable`).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from paxlike.core import fs
from paxlike.reporting import _jsonable


def path_of(job_log_dir: str, name: str) -> str:
  """Where the metrics of that name are."""
  return fs.join(job_log_dir, 'metrics', f'{name}.jsonl')


def read_metrics(job_log_dir: str, name: str) -> list[dict[str, Any]]:
  """All whole lines of metrics/<name>.jsonl; empty if there is no file.

  A 'NaN', 'Infinity' or '-Infinity' is a float again.
  """
  path = path_of(job_log_dir, name)
  if not fs.for_path(path).exists(path):
    return []
  return [
    {tag: _read_number(value) for tag, value in fields.items()}
    for _, fields in _lines(fs.for_path(path).read_bytes(path), path)
  ]


def encode(
  step: int,
  wall_time_s: float,
  values: Mapping[str, int | float],
  facts: Mapping[str, Any] | None = None,
) -> bytes:
  """One line.

  Args:
    step: Updates done.
    wall_time_s: Seconds since 1970 UTC.
    values: The scalars.
    facts: What the line says besides and TensorBoard is not told.
  """
  head = {'step': step, 'wall_time': wall_time_s}
  fields = {**head, **(facts or {}), **values, **head}
  return f'{_jsonable.dumps(fields)}\n'.encode()


class Table:
  """A file in which a new line takes the place of the one of its step.

  The file is replaced atomically at each `flush`, so at any moment it has one
  line a step; for what is written rarely, such as evaluations.
  """

  def __init__(self, path: str):
    self._path = path
    self._new: dict[int, bytes] = {}

  def write(self, line: bytes) -> None:
    """Takes a line that `encode` made; an empty one is nothing."""
    if line:
      self._new[json.loads(line)['step']] = line

  def flush(self) -> None:
    """Puts the lines taken into the file."""
    if not self._new:
      return
    file_system = fs.for_path(self._path)
    content = b''
    if file_system.exists(self._path):
      content = file_system.read_bytes(self._path)
    lines = [
      self._new.pop(fields['step'], line)
      for line, fields in _lines(content, self._path)
    ]
    lines += self._new.values()
    file_system.write_atomic(self._path, b''.join(lines))
    self._new = {}

  def __enter__(self) -> 'Table':
    return self

  def __exit__(self, *exception: object) -> None:
    self.flush()


def rewind(path: str, *, purge_step: int | None) -> None:
  """Drops lines of `purge_step` and later ones, and a torn last line.

  The file is replaced atomically, and only if anything is dropped.

  Args:
    path: The file; nothing happens if there is none.
    purge_step: First step to drop; None drops only what is torn.
  """
  file_system = fs.for_path(path)
  if not file_system.exists(path):
    return
  content = file_system.read_bytes(path)
  kept = b''.join(
    line
    for line, fields in _lines(content, path)
    if purge_step is None or fields['step'] < purge_step
  )
  if kept != content:
    file_system.write_atomic(path, kept)


def _lines(content: bytes, path: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
  """Each whole line and what it says; others are dropped with a warning."""
  for number, line in enumerate(content.splitlines(keepends=True), start=1):
    try:
      fields = json.loads(line)
      is_whole = line.endswith(b'\n') and isinstance(fields['step'], int)
    except (ValueError, KeyError, TypeError):
      is_whole, fields = False, {}
    if is_whole:
      yield line, fields
    else:
      logging.warning('Dropping line %d of %s: it is torn.', number, path)


def _read_number(value: Any) -> Any:
  return float(value) if value in ('NaN', 'Infinity', '-Infinity') else value
