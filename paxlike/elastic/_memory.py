"""The snapshots in one host's memory: names, what is whole, what goes.

    <root>/                          e.g. /dev/shm/paxlike-<job>-<host>
      lock                           held by the agent while it lives
      step                           completed steps, written by the worker
      own/s...-g...-p...-n.../       a whole piece of this host's worker
      own/w...                       one being written
      held/s...-g...-p...-n.../      a whole piece of another host
      held/w...                      one being received
      own_disk, held_disk            links to the same on a local disk, if one
                                     is to be used where memory is too small

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
from collections.abc import Iterable, Iterator

from absl import logging

from paxlike.core import errors
from paxlike.elastic import _facts, _messages

PIECE = 'PIECE'
_PREFIX = 'paxlike-'
_STEP = struct.Struct('<q')
_KEPT = 2
_OWN = ('own', 'own_disk')
_HELD = ('held', 'held_disk')
PLACES = (*_OWN, *_HELD)
Mark = tuple[int, int]  # step and generation of a snapshot


class Memory:
  """The directory of one host; used by its agent."""

  def __init__(self, root: str, *, spill_root: str | None = None):
    """Takes the directory for as long as this process lives.

    Args:
      root: In shared memory, or wherever snapshots shall go first.
      spill_root: On a local disk, for what has no room in `root`; may be None.

    Raises:
      UsageError: Another agent has it, or it cannot be made.
    """
    self.root = root
    self.own = os.path.join(root, 'own')
    self.held = os.path.join(root, 'held')
    self.step_file = os.path.join(root, 'step')
    self._spill_root = spill_root
    self._locks = [_make(root)]
    if spill_root is not None:
      self._locks.append(_make(spill_root))
      for kind in ('own', 'held'):
        link = os.path.join(root, f'{kind}_disk')
        with contextlib.suppress(FileNotFoundError):
          os.remove(link)  # of an agent that was killed here
        os.symlink(os.path.join(spill_root, kind), link)
    with open(self.step_file, 'wb') as file:
      file.write(_STEP.pack(-1))
    self._clear(PLACES)

  def clear_own(self) -> None:
    """Removes what the worker was writing; only while there is none."""
    self._clear(_OWN)

  def _clear(self, places: Iterable[str]) -> None:
    for name, path in self._listed(places):
      if name.startswith('w'):
        shutil.rmtree(path, ignore_errors=True)

  def _listed(self, places: Iterable[str]) -> Iterator[tuple[str, str]]:
    for place in places:
      parent = os.path.join(self.root, place)
      with contextlib.suppress(FileNotFoundError):  # no disk is used
        for name in os.listdir(parent):
          yield name, os.path.join(parent, name)

  @property
  def receiving(self) -> str:
    """Where pieces of others go: beside those of this host's worker."""
    is_spilling = any(True for _ in self._listed(['own_disk']))
    return os.path.join(self.root, 'held_disk' if is_spilling else 'held')

  def pieces(self) -> list[tuple[_facts.Piece, str]]:
    """Every whole piece with its directory, the oldest first."""
    found = []
    for name, path in self._listed(PLACES):
      piece = read_piece(path)
      if piece is not None and piece.name == name:
        found.append((piece, path))
    return sorted(found, key=lambda f: (f[0].step, f[0].generation))

  def newest_own(
    self, generation: int, process: int
  ) -> tuple[_facts.Piece, str] | None:
    """The newest piece of this host's worker, and its directory."""
    found = [
      (piece, path)
      for piece, path in self.pieces()
      if piece.generation == generation
      and piece.process == process
      and _is_own(path)
    ]
    return found[-1] if found else None

  def begin(self) -> None:
    """Makes room for a new worker, of which nothing is known yet."""
    self.clear_own()
    with open(self.step_file, 'r+b') as file:
      file.write(_STEP.pack(-1))

  def find(self, name: str) -> str | None:
    """The directory of a whole piece, by the name of the piece."""
    return find(self.root, name)

  def prune(self, generation: int, restored: Mark | None) -> None:
    """Removes what nobody will restore; see `superfluous`."""
    for path in superfluous(self.pieces(), generation, restored):
      remove(path)

  def completed_steps(self) -> int:
    """What the worker has last written down."""
    with open(self.step_file, 'rb') as file:
      return _STEP.unpack(file.read(_STEP.size))[0]

  def remove(self) -> None:
    """Gives all of the memory back."""
    shutil.rmtree(self.root, ignore_errors=True)
    if self._spill_root is not None:
      shutil.rmtree(self._spill_root, ignore_errors=True)


def find(root: str, name: str) -> str | None:
  """The directory of a whole piece in a host's memory, by its name."""
  for place in PLACES:
    path = os.path.join(root, place, name)
    if os.path.exists(os.path.join(path, PIECE)):
      return path
  return None


class StepCell:
  """Where a worker writes its completed steps; costs no system call."""

  def __init__(self, path: str):
    with open(path, 'r+b') as file:
      self._memory = mmap.mmap(file.fileno(), _STEP.size)

  def set(self, step: int) -> None:
    """Says that so many steps are done."""
    _STEP.pack_into(self._memory, 0, step)


def superfluous(
  pieces: Iterable[tuple[_facts.Piece, str]],
  generation: int,
  restored: Mark | None,
) -> list[str]:
  """Directories of pieces that nobody will restore.

  Of the current generation the worker itself overwrites its oldest; a buddy's
  are kept to two here. Of those before it stays, until there are two of the
  current one, what it has gone on from and the one older than that, should it
  be damaged: however fast generations follow each other, no more adds up.

  Args:
    pieces: All there are, the oldest first.
    generation: The current one.
    restored: Step and generation of what it went on from; None: a checkpoint,
      as no snapshot was whole.
  """
  current: dict[tuple[bool, int], list[str]] = {}
  earlier: dict[Mark, list[str]] = {}
  for piece, path in pieces:
    if piece.generation == generation:
      key = (_is_own(path), piece.process)
      current.setdefault(key, []).append(path)
    elif piece.generation < generation:
      mark = (piece.step, piece.generation)
      earlier.setdefault(mark, []).append(path)
  gone = []
  for (is_own, _), paths in current.items():
    if not is_own:
      gone += paths[:-_KEPT]
  num_whole = min((len(paths) for paths in current.values()), default=0)
  kept: list[Mark] = []
  if num_whole < _KEPT and restored is not None:
    kept = sorted(mark for mark in earlier if mark <= restored)[-_KEPT:]
  for mark, paths in earlier.items():
    gone += [] if mark in kept else paths
  return gone


def _is_own(path: str) -> bool:
  return os.path.basename(os.path.dirname(path)) in _OWN


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


def budget_bytes(root: str, *, job_id: str) -> int:
  """What this host may hold: its share of what is free or the job's already.

  Hosts of one job that share a directory, as those played on one machine do,
  get equal shares.
  """
  parent, own = os.path.split(root)
  prefix = f'{_PREFIX}{job_id}-'
  names = {own, *(n for n in os.listdir(parent) if n.startswith(prefix))}
  found = os.statvfs(root)
  total = found.f_bavail * found.f_frsize
  total += sum(size_bytes(os.path.join(parent, name)) for name in names)
  return total // len(names)


def size_bytes(root: str) -> int:
  """What a host's files take."""
  total = 0
  for parent, _, names in os.walk(root):
    for name in names:
      with contextlib.suppress(OSError):  # just removed
        total += os.lstat(os.path.join(parent, name)).st_size
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


def _make(root: str) -> int:
  """Makes a host's directory, and holds its lock."""
  try:
    for kind in ('own', 'held'):
      os.makedirs(os.path.join(root, kind), mode=0o700, exist_ok=True)
  except OSError as error:
    raise errors.UsageError(
      f'{root} cannot be made: {error}. Give another --snapshot_dir or '
      '--snapshot_spill_dir.'
    ) from error
  lock = _locked(os.path.join(root, 'lock'))
  if lock is None:
    raise errors.UsageError(
      f'Another agent uses {root}. Give each agent of a host its own --name.'
    )
  return lock


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
