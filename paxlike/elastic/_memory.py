"""The snapshots in one host's memory: names, what is whole, what goes.

    <root>/                          e.g. /dev/shm/paxlike-<job>-<host>
      lock                           held by the agent while it lives
      step                           completed steps, written by the worker
      own/s...-g...-p...-n.../       a whole piece of this host's worker
      own/w...                       one being written
      held/s...-g...-p...-n.../      a whole piece of another host
      held/w...                      one being received

A piece is whole once its directory has its name: it is renamed last, and
renamed away before its memory is used again. `PIECE` in it says what it is.
"""

import contextlib
import dataclasses
import fcntl
import json
import mmap
import os
import shutil
import struct
from collections.abc import Iterable

from absl import logging

from paxlike.core import errors
from paxlike.elastic import _facts, _messages

PIECE = 'PIECE'
_PREFIX = 'paxlike-'
_STEP = struct.Struct('<q')
_KEPT = 2


class Memory:
  """The directory of one host; used by its agent."""

  def __init__(self, root: str):
    self.root = root
    self.own = os.path.join(root, 'own')
    self.held = os.path.join(root, 'held')
    self.step_file = os.path.join(root, 'step')
    for path in (self.own, self.held):
      os.makedirs(path, mode=0o700, exist_ok=True)
    self._lock = _locked(os.path.join(root, 'lock'))
    if self._lock is None:
      raise errors.UsageError(
        f'Another agent uses {root}. Give each agent of a host its own --name.'
      )
    with open(self.step_file, 'wb') as file:
      file.write(_STEP.pack(-1))
    self.clear_unfinished(self.own)
    self.clear_unfinished(self.held)

  def clear_unfinished(self, parent: str) -> None:
    """Removes what was being written; only while nobody does."""
    for name in os.listdir(parent):
      if name.startswith('w'):
        shutil.rmtree(os.path.join(parent, name), ignore_errors=True)

  def pieces(self) -> list[tuple[_facts.Piece, str]]:
    """Every whole piece with its directory, the oldest first."""
    found = []
    for parent in (self.own, self.held):
      for name in os.listdir(parent):
        piece = read_piece(os.path.join(parent, name))
        if piece is not None and piece.name == name:
          found.append((piece, os.path.join(parent, name)))
    return sorted(found, key=lambda f: (f[0].step, f[0].generation))

  def find(self, name: str) -> str | None:
    """The directory of a whole piece, by the name of the piece."""
    for parent in (self.own, self.held):
      path = os.path.join(parent, name)
      if os.path.exists(os.path.join(path, PIECE)):
        return path
    return None

  def prune(self, generation: int) -> None:
    """Removes what is too old to be restored.

    Args:
      generation: The current one; snapshots of earlier ones are kept until it
        has two of its own.
    """
    for path in superfluous(self.pieces(), generation, own=self.own):
      remove(path)

  def completed_steps(self) -> int:
    """What the worker has last written down."""
    with open(self.step_file, 'rb') as file:
      return _STEP.unpack(file.read(_STEP.size))[0]

  def remove(self) -> None:
    """Gives all of the memory back."""
    shutil.rmtree(self.root, ignore_errors=True)


class StepCell:
  """Where a worker writes its completed steps; costs no system call."""

  def __init__(self, path: str):
    with open(path, 'r+b') as file:
      self._memory = mmap.mmap(file.fileno(), _STEP.size)

  def set(self, step: int) -> None:
    """Says that so many steps are done."""
    _STEP.pack_into(self._memory, 0, step)


def superfluous(
  pieces: Iterable[tuple[_facts.Piece, str]], generation: int, *, own: str
) -> list[str]:
  """Directories of pieces that nobody will restore.

  Of the current generation the worker itself overwrites its oldest; a buddy's
  are kept to two here. Those of earlier generations go once there are two of
  the current one.
  """
  current: dict[tuple[bool, int], list[str]] = {}
  earlier: list[str] = []
  for piece, path in pieces:
    if piece.generation == generation:
      key = (path.startswith(own), piece.process)
      current.setdefault(key, []).append(path)
    elif piece.generation < generation:
      earlier.append(path)
  gone = []
  for (is_own, _), paths in current.items():
    if not is_own:
      gone += paths[:-_KEPT]
  num_whole = min((len(paths) for paths in current.values()), default=0)
  return gone + (earlier if num_whole >= _KEPT else [])


def read_piece(directory: str) -> _facts.Piece | None:
  """What a directory holds; None if it is no whole piece."""
  try:
    with open(os.path.join(directory, PIECE), encoding='utf-8') as file:
      return _facts.from_message(_facts.Piece, json.load(file))
  except (OSError, ValueError, _messages.MessageError):
    return None


def write_piece(directory: str, piece: _facts.Piece) -> str:
  """Makes a piece whole: says what it is and gives it its name."""
  with open(os.path.join(directory, PIECE), 'w', encoding='utf-8') as file:
    json.dump(dataclasses.asdict(piece), file)
  final = os.path.join(os.path.dirname(directory), piece.name)
  if os.path.isdir(final):  # the same bytes, received before
    shutil.rmtree(final)
  os.rename(directory, final)
  return final


def size_bytes(root: str) -> int:
  """What a host's files take."""
  total = 0
  for parent, _, names in os.walk(root):
    for name in names:
      with contextlib.suppress(OSError):  # just removed
        total += os.path.getsize(os.path.join(parent, name))
  return total


def remove(directory: str) -> None:
  """Takes a piece out of sight, then away."""
  parent, name = os.path.split(directory)
  hidden = os.path.join(parent, f'w-gone-{os.getpid()}-{name}')
  with contextlib.suppress(OSError):  # just being written anew
    os.rename(directory, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def root_of(parent: str, *, job_id: str, name: str) -> str:
  """The directory of a host in shared memory."""
  return os.path.join(parent, f'{_PREFIX}{job_id}-{name}')


def sweep(parent: str, *, job_id: str) -> None:
  """Removes what agents of other jobs left that are no longer alive."""
  with contextlib.suppress(OSError):
    for name in os.listdir(parent):
      if name.startswith(_PREFIX) and not name.startswith(
        f'{_PREFIX}{job_id}-'
      ):
        path = os.path.join(parent, name)
        lock = _locked(os.path.join(path, 'lock'))
        if lock is not None:
          logging.info('%s was left by a job that is gone; removed.', path)
          shutil.rmtree(path, ignore_errors=True)
          os.close(lock)


def remove_job(parent: str, *, job_id: str) -> None:
  """Removes all memory of one job on this machine."""
  with contextlib.suppress(OSError):
    for name in os.listdir(parent):
      if name.startswith(f'{_PREFIX}{job_id}-'):
        shutil.rmtree(os.path.join(parent, name), ignore_errors=True)


def _locked(path: str) -> int | None:
  """A lock that ends with the process; None if somebody else has it.

  The kernel lets go of it when its holder dies, so nothing waits for the dead.
  """
  try:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
  except OSError:
    return None
  try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    os.close(fd)
    return None
  return fd
