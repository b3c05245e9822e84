"""Tells why a checkpoint does not fit: what of the config is another one.

What a job trained with is written in config/train.json beside its checkpoints.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import fiddle as fdl
from absl import logging

from paxlike import config
from paxlike.core import errors, fs
from paxlike.runners import session as sessions

_MAX_LINES = 10
# Of the variables that differ: they follow from the config.
_MAX_LEAVES = 5
# Where training itself goes on, which changes no shape.
_TRAIN = 'task_p.train'
_MODEL = 'task_p.model'


@contextlib.contextmanager
def explained(
  session: sessions.Session, task_p: Any, directory: str | None
) -> Iterator[Callable[[], None]]:
  """Puts before a mismatch what differs from the config of the training job.

  Args:
    session: The job.
    task_p: Config of its task; a task that is built tells nothing.
    directory: Directory of checkpoints; None: the job's own.

  Yields:
    What to call once a checkpoint did fit: it may be of another model all the
    same, and that is told, once.
  """

  @functools.cache
  def fits() -> None:
    _tell_other_model(session, task_p, directory)

  try:
    yield fits
  except errors.RestoreMismatchError as error:
    path = _record_of(session, directory)
    lines = _changes(task_p, path)
    if not lines:
      raise
    more = len(lines) - _MAX_LINES
    shown = lines[:_MAX_LINES] + ([f'and {more} more'] if more > 0 else [])
    text = ''.join(f'\n  {line}' for line in shown)
    raise errors.RestoreMismatchError(
      f'The config is not the one that was trained with, {path}:{text}\n'
      f'{_shortened(str(error))}'
    ) from error


def _shortened(message: str) -> str:
  """The message of a mismatch with the first few of its indented lines."""
  lines = message.splitlines()
  leaves = [line for line in lines if line.startswith('  ')]
  if len(leaves) <= _MAX_LEAVES:
    return message
  more = len(leaves) - _MAX_LEAVES
  if unsaid := re.fullmatch(r'  and (\d+) more', leaves[-1]):
    more += int(unsaid[1]) - 1
  first = lines.index(leaves[0])
  return '\n'.join(
    [
      *lines[:first],
      *leaves[:_MAX_LEAVES],
      f'  and {more} more',
      *lines[first + len(leaves) :],
    ]
  )


def _tell_other_model(
  session: sessions.Session, task_p: Any, directory: str | None
) -> None:
  """Warns of a model that fits the parameters and computes something else."""
  path = _record_of(session, directory)
  lines = [line for line in _changes(task_p, path) if line.startswith(_MODEL)]
  if lines:
    logging.warning(
      'The model is not the one that was trained with, %s: %s. The results '
      'are those of the model as it is now.',
      path,
      '; '.join(lines[:_MAX_LINES]),
    )


def _record_of(session: sessions.Session, directory: str | None) -> str:
  where = directory or session.checkpoint_dir
  return fs.join(fs.parent_dir(where), 'config', 'train.json')


def _changes(task_p: Any, path: str) -> list[str]:
  """Lines 'path: before -> now' for what differs in the task."""
  if not isinstance(task_p, fdl.Buildable):
    return []
  try:
    record = fs.for_path(path).read_bytes(path).decode()
    before = config.dump.from_json(record).get('task_p')
  except (OSError, ValueError, errors.PaxlikeError):
    return []
  texts = [config.dump.to_text({'task_p': each}) for each in (before, task_p)]
  return [
    line for line in config.dump.changes(*texts) if not line.startswith(_TRAIN)
  ]
