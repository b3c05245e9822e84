"""Snapshots of the train state in shared memory, taken by the worker.

Promises: when `take` returns, this process's piece of the state is copied, and
the state may change; soon after, in the background, the piece is whole in
memory that outlives the process. The two before it stay whole until it is.
"""

import contextlib
import hashlib
import mmap
import os
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import jax
import numpy as np
from absl import logging

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
    root: str,
    *,
    job_id: str,
    generation: int,
    process: int,
    count: int,
  ):
    """Nothing is taken yet.

    Args:
      root: The host's directory of snapshots.
      job_id: Which job.
      generation: Of this worker.
      process: Its process index.
      count: How many processes there are.
    """
    self._root = root
    self._directory = ''
    self._job_id = job_id
    self._generation = generation
    self._process = process
    self._count = count
    self._cutter: checkpoint.pieces.Cutter | None = None
    self._slots: list[tuple[str, np.ndarray]] = []
    self._num_taken = 0
    # One thread for all: to begin one waits for whatever frees memory.
    self._thread = futures.ThreadPoolExecutor(1, 'elastic-snapshot')
    self._unfinished: futures.Future[_facts.Piece] | None = None

  def prepare(self, state: Any) -> None:
    """Chooses where snapshots of such a state go; to be called at the start.

    In memory if all that this host may come to hold fits: three of its own,
    as many of another host, and those of the generation before. Else on the
    local disk that the agent was given.

    Raises:
      ConfigError: There is no room for them.
    """
    if self._cutter is not None:
      return
    cutter = checkpoint.pieces.Cutter(state, process=self._process)
    needed_bytes = 3 * _SLOTS * cutter.data_bytes
    budget_bytes = _memory.budget_bytes(self._root, job_id=self._job_id)
    directory = os.path.join(self._root, 'own')
    if needed_bytes > budget_bytes:
      directory = os.path.join(self._root, 'own_disk')
      self._check_disk(directory, needed_bytes, budget_bytes)
      logging.warning(
        'Snapshots need up to %s and %s has %s for this host: they go to %s.',
        _mib(needed_bytes),
        self._root,
        _mib(budget_bytes),
        os.path.realpath(directory),
      )
    self._cutter, self._directory = cutter, directory
    self._thread.submit(int).result()  # it has begun before the first step

  def take(
    self,
    state: Any,
    step: int,
    *,
    items: Mapping[str, Any],
    then: Callable[[float], None] | None = None,
  ) -> None:
    """Copies a state; its piece is whole a little later.

    Args:
      state: Its arrays; always of the same shapes and shardings.
      step: Completed steps.
      items: Further values as JSON has them, the data position among them.
      then: Called by another thread once the piece is whole, with the time at
        which the copy was done, of `time.perf_counter`.

    Raises:
      OSError: The one before could not be made whole.
    """
    self.prepare(state)
    self.wait()
    assert self._cutter is not None
    directory, memory = self._free_slot()
    copy = self._cutter.copy(state, memory, step=step)
    copied_s = time.perf_counter()

    def finish() -> _facts.Piece:
      piece = self._make_whole(copy, directory, memory, items)
      if then is not None:
        then(copied_s)
      return piece

    self._unfinished = self._thread.submit(finish)

  def wait(self) -> _facts.Piece | None:
    """Waits until what was taken is whole.

    Returns:
      The last piece if it was not waited for yet.
    """
    unfinished, self._unfinished = self._unfinished, None
    return None if unfinished is None else unfinished.result()

  @property
  def is_busy(self) -> bool:
    """Whether a piece is not whole yet, or failed to be."""
    return self._unfinished is not None

  def _make_whole(
    self,
    copy: checkpoint.pieces.Copy,
    directory: str,
    memory: np.ndarray,
    items: Mapping[str, Any],
  ) -> _facts.Piece:
    piece = _facts.Piece(
      step=copy.step,
      generation=self._generation,
      process=self._process,
      count=self._count,
      files=copy.write(
        directory,
        attempt=_attempt(self._job_id, copy.step, self._generation),
        items=items,
      ),
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
      try:
        os.posix_fallocate(file.fileno(), 0, size)
      except OSError as error:
        raise errors.ConfigError(
          f'{_mib(size)} for a snapshot, which were free when the '
          f'job started, are not in {directory}: {error}.'
        ) from error
      return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)

  def _check_disk(
    self, directory: str, needed_bytes: int, budget_bytes: int
  ) -> None:
    """Refuses a state for which there is no room at all."""
    shape = (
      f'Snapshots need up to {_mib(needed_bytes)} (three of this '
      'host, as many of another, and those of the generation before), but '
      f'{self._root} has {_mib(budget_bytes)} for this host'
    )
    if not os.path.isdir(directory):
      raise errors.ConfigError(
        f'{shape}. Give --snapshot_spill_dir=DIR on a local disk, enlarge '
        f'{os.path.dirname(self._root)}, or shard the state over more hosts.'
      )
    spill_root = os.path.dirname(os.path.realpath(directory))
    disk_bytes = _memory.budget_bytes(spill_root, job_id=self._job_id)
    if needed_bytes > disk_bytes:
      raise errors.ConfigError(
        f'{shape}, and {spill_root} {_mib(disk_bytes)}. Make room '
        'there, or shard the state over more hosts.'
      )


def _mib(num_bytes: int) -> str:
  digits = 0 if num_bytes >= 10 * 2**20 else 2
  return f'{num_bytes / 2**20:.{digits}f} MiB'


def _attempt(job_id: str, step: int, generation: int) -> bytes:
  """The same 16 bytes on all processes, and for no other snapshot."""
  text = f'{job_id}/{generation}/{step}'
  return hashlib.sha256(text.encode()).digest()[:16]


class Planned:
  """The snapshot that a plan says to go on from, wherever its pieces lie.

  Attributes:
    step: Its completed steps.
  """

  def __init__(
    self,
    sources: tuple[_facts.Source, ...],
    *,
    secret: bytes,
    own_address: str,
    own_root: str,
  ):
    """Nothing is read yet.

    Args:
      sources: Where each piece is.
      secret: The job's.
      own_address: Where this host gives out its memory, to read in place.
      own_root: That memory.
    """
    self.step = sources[0].piece.step
    self._sources = sources
    self._secret = secret
    self._own_address = own_address
    self._own_root = own_root

  def restore(self, target: Any) -> checkpoint.Restored:
    """Reads what this process needs of it.

    Args:
      target: Shapes, dtypes and shardings on the new mesh.

    Raises:
      UnreadableError: Bytes are not those that were written.
      TransferError: A host that has a piece is gone.
    """
    with contextlib.closing(
      _transfer.PieceFiles(
        self._sources,
        self._secret,
        own_address=self._own_address,
        own_root=self._own_root,
      )
    ) as files:
      try:
        return checkpoint.pieces.read(
          target,
          [source.piece.files for source in self._sources],
          file_system=files,
          directory='snapshot',
        )
      except errors.CheckpointDamagedError as error:
        raise UnreadableError(str(error)) from error
