"""Snapshots of the train state in shared memory, taken by the worker.

Promises: when `take` returns, this process's piece of the state is whole in
memory that outlives the process; the two before it stay whole until it is.
So whatever step has been reported as done, the snapshot that was due at or
before it is there on every host.
"""

import contextlib
import hashlib
import mmap
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from paxlike import checkpoint
from paxlike.core import errors
from paxlike.elastic import _facts, _memory, _transfer

_SLOTS = 3


class UnreadableError(errors.PaxlikeError):
  """A snapshot is damaged; an older one, or a checkpoint, has to do."""


def wait(state: Any) -> None:
  """Waits until a state is computed."""
  jax.block_until_ready(state)


class Taker:
  """Takes the snapshots of one worker."""

  def __init__(
    self,
    directory: str,
    *,
    job_id: str,
    generation: int,
    process: int,
    count: int,
  ):
    """Nothing is taken yet.

    Args:
      directory: The host's directory of its worker's own pieces.
      job_id: Which job.
      generation: Of this worker.
      process: Its process index.
      count: How many processes there are.
    """
    self._directory = directory
    self._job_id = job_id
    self._generation = generation
    self._process = process
    self._count = count
    self._cutter: checkpoint.pieces.Cutter | None = None
    self._slots: list[tuple[str, np.ndarray]] = []
    self._num_taken = 0

  def take(
    self, state: Any, step: int, *, items: Mapping[str, Any]
  ) -> _facts.Piece:
    """Copies a state; returns when its piece is whole.

    Args:
      state: Its arrays; always of the same shapes and shardings.
      step: Completed steps.
      items: Further values as JSON has them, the data position among them.
    """
    if self._cutter is None:
      self._cutter = checkpoint.pieces.Cutter(state, process=self._process)
      self._check_room(3 * _SLOTS * self._cutter.data_bytes)
    directory, memory = self._free_slot()
    files = self._cutter.cut(
      state,
      directory,
      memory,
      step=step,
      attempt=_attempt(self._job_id, step, self._generation),
      items=items,
    )
    piece = _facts.Piece(
      step=step,
      generation=self._generation,
      process=self._process,
      count=self._count,
      files=files,
    )
    place = self._num_taken % _SLOTS
    self._slots[place] = (_memory.write_piece(directory, piece), memory)
    self._num_taken += 1
    return piece

  def _free_slot(self) -> tuple[str, np.ndarray]:
    """The oldest memory, taken out of sight; new one for the first three."""
    assert self._cutter is not None
    place = self._num_taken % _SLOTS
    writing = os.path.join(self._directory, f'w-{os.getpid()}-{place}')
    if place < len(self._slots):
      old, memory = self._slots[place]
      with contextlib.suppress(FileNotFoundError):
        os.rename(old, writing)
      if os.path.isdir(writing):
        return writing, memory
      self._slots[place] = (writing, self._new_memory(writing))
    else:
      self._slots.append((writing, self._new_memory(writing)))
    return self._slots[place]

  def _new_memory(self, directory: str) -> np.ndarray:
    assert self._cutter is not None
    os.makedirs(directory, mode=0o700, exist_ok=True)
    size = self._cutter.data_bytes
    if not size:  # other processes hold all of the state
      return np.empty(0, np.uint8)
    path = os.path.join(directory, self._cutter.data_name)
    with open(path, 'w+b') as file:
      # Reserved now: a write into memory that is not there ends the process.
      os.posix_fallocate(file.fileno(), 0, size)
      return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)

  def _check_room(self, needed_bytes: int) -> None:
    found = os.statvfs(self._directory)
    # What this host holds of earlier generations is counted in.
    held_bytes = _memory.size_bytes(os.path.dirname(self._directory))
    free_bytes = found.f_bavail * found.f_frsize + held_bytes
    if needed_bytes > free_bytes:
      raise errors.ConfigError(
        f'Snapshots need up to {needed_bytes / 2**20:.0f} MiB in '
        f'{self._directory} (three of this host, as many of another, and '
        f'those of the generation before), but {free_bytes / 2**20:.0f} MiB '
        'are free. Give --snapshot_dir=DIR on a local disk, enlarge /dev/shm, '
        'or shard the state over more hosts.'
      )


def _attempt(job_id: str, step: int, generation: int) -> bytes:
  """The same 16 bytes on all processes, and for no other snapshot."""
  text = f'{job_id}/{generation}/{step}'
  return hashlib.sha256(text.encode()).digest()[:16]


def restore(
  target: Any,
  sources: tuple[_facts.Source, ...],
  *,
  secret: bytes,
  own_address: str,
  own_root: str,
) -> checkpoint.Restored:
  """Reads what this process needs of a snapshot, wherever its pieces lie.

  Args:
    target: Shapes, dtypes and shardings on the new mesh.
    sources: Where each piece is.
    secret: The job's.
    own_address: Where this host gives out its memory, to read in place.
    own_root: That memory.

  Raises:
    UnreadableError: Bytes are not those that were written.
    TransferError: A host that has a piece is gone.
  """
  with contextlib.closing(
    _transfer.PieceFiles(
      sources, secret, own_address=own_address, own_root=own_root
    )
  ) as files:
    try:
      return checkpoint.pieces.read(
        target,
        [source.piece.files for source in sources],
        file_system=files,
        directory='snapshot',
      )
    except errors.CheckpointDamagedError as error:
      raise UnreadableError(str(error)) from error
