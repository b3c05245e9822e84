"""From what a user typed to the steps that were meant."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from paxlike.checkpoint import _history, _layout
from paxlike.core import disks, errors, fs, suggest

# Where a job keeps its steps, below its job_log_dir.
_CHECKPOINTS = 'checkpoints'


@dataclasses.dataclass(frozen=True)
class Place:
  """A directory of steps, or one step of it.

  Attributes:
    directory: Of all steps.
    file_system: That serves it.
    only: Name of the one step's directory where the path named a step, else ''.
  """

  directory: str
  file_system: fs.FileSystem
  only: str = ''

  @property
  def path(self) -> str:
    """What the place is, for a message: the step, or the directory."""
    return fs.join(self.directory, self.only) if self.only else self.directory

  def names(self) -> dict[int, str]:
    """Directory name of each complete step that is meant, by step."""
    names = _history.committed_names(self.file_system, self.directory)
    if not self.only:
      return names
    # Two names may give one step; the one that was typed is meant.
    step = _layout.parse_step(self.only)
    is_complete = self.file_system.exists(
      fs.join(self.directory, self.only, _layout.MANIFEST)
    )
    return {step: self.only} if is_complete and step is not None else {}

  def pick(self, step: int | None = None) -> str:
    """The path of the step that is meant: the given one, else the newest.

    Raises:
      CheckpointNotFoundError: It is not there, or not complete.
      UsageError: The path is one step and another one is asked for.
    """
    own = _layout.parse_step(self.only) if self.only else None
    if step is not None and own is not None and step != own:
      raise errors.UsageError(
        f'{self.path} is step {own}, and step {step} is asked for. Give '
        f'{self.directory} instead.'
      )
    names = self.names()
    if not names and self.only:
      raise errors.CheckpointNotFoundError(
        f'{self.path} holds no complete checkpoint: it has no '
        f'{_layout.MANIFEST}. Complete ones: paxlike ckpt ls {self.directory}'
      )
    if not names:
      raise errors.CheckpointNotFoundError(
        f'{self.directory} holds no complete step. What is there: paxlike '
        f'ckpt ls {self.directory}'
      )
    wanted = max(names) if step is None else step
    if wanted not in names:
      raise errors.CheckpointNotFoundError(
        f'There is no complete step {wanted} in {self.directory}. It has '
        f'{_some(list(names))}.'
      )
    return fs.join(self.directory, names[wanted])


def find(path: str | os.PathLike[str]) -> Place:
  """Finds the steps that a path leads to.

  Args:
    path: A job_log_dir, its directory of checkpoints, or one step.

  Raises:
    UsageError: It leads to none; the message says what to type instead.
  """
  full = fs.expand(os.fspath(path))
  file_system = fs.for_path(full)
  with _readable(full):
    if fs.base_name(full) == _layout.MANIFEST:
      full = fs.parent_dir(full)
    name = fs.base_name(full)
    if _layout.parse_step(name) is not None and file_system.is_dir(full):
      return Place(fs.parent_dir(full), file_system, name)
    below = fs.join(full, _CHECKPOINTS)
    for candidate in (full, below):
      if _has_steps(file_system, candidate):
        return Place(candidate, file_system)
    # A job that has not saved yet.
    for candidate in (below, full):
      if fs.base_name(candidate) == _CHECKPOINTS and file_system.is_dir(
        candidate
      ):
        return Place(candidate, file_system)
    raise errors.UsageError(_explain(file_system, full))


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
  """Tells in a line why a path cannot be looked at."""
  try:
    yield
  except errors.PaxlikeError:
    raise
  except PermissionError as e:
    raise disks.unreadable(path, e) from e
  except OSError as e:
    raise errors.UsageError(
      f'{path} cannot be read: {type(e).__name__}: {e}'
    ) from e


def _has_steps(file_system: fs.FileSystem, path: str) -> bool:
  try:
    names = file_system.list_dir(path)
  except (FileNotFoundError, NotADirectoryError):
    return False
  return any(
    name == _layout.HISTORY
    or _layout.parse_step(name) is not None
    or _layout.is_temporary(name)
    for name in names
  )


def _explain(file_system: fs.FileSystem, path: str) -> str:
  """Why a path leads to no steps, and what to type next."""
  if file_system.is_dir(path):
    names = file_system.list_dir(path)
    near = [n for n in names if _leads_to_steps(file_system, path, n)]
    next_step = (
      f'Did you mean {fs.join(path, near[0])}?'
      if near
      else 'Give a job_log_dir, its checkpoints directory, or one '
      'checkpoint_<step>.'
    )
    return f'{path} holds no checkpoints. {next_step}'
  if file_system.exists(path):
    return (
      f'{path} is a file, not a directory of checkpoints. Other formats are '
      f'read by: paxlike ckpt convert {path} TARGET'
    )
  parent = fs.parent_dir(path)
  if not file_system.is_dir(parent):
    return f'There is no {path}, nor is there {parent}.'
  near = suggest.nearest(fs.base_name(path), file_system.list_dir(parent))
  next_step = (
    f'Did you mean {fs.join(parent, near[0])}?'
    if near
    else f'See what is there: ls {parent}'
  )
  return f'There is no {path}. {next_step}'


def _leads_to_steps(file_system: fs.FileSystem, path: str, name: str) -> bool:
  below = fs.join(path, name)
  return file_system.is_dir(below) and (
    _has_steps(file_system, below)
    or _has_steps(file_system, fs.join(below, _CHECKPOINTS))
  )


def _some(steps: list[int]) -> str:
  if len(steps) <= 8:
    return ', '.join(map(str, steps))
  return f'{len(steps)} steps from {steps[0]} to {steps[-1]}'
