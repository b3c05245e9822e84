"""The ways in which the arrays of one step are laid out in files.

A store stages a state (`Staged`: copied by the thread that owns it, written by
another) and reads boxes of a committed one (`Reader`).
"""

from typing import Protocol, runtime_checkable

import numpy as np

from paxlike.checkpoint import _boxes, _config, _staging, _state
from paxlike.checkpoint._stores import flax_file, plans, requests, sharded
from paxlike.checkpoint._stores import sharded_reader as sharded_reader
from paxlike.core import fs
from paxlike.protos import checkpoint_pb2 as pb


@runtime_checkable
class Staged(Protocol):
  """A state on its way from the devices to files."""

  def fill(self) -> None:
    """Copies it; when this returns the state may change or vanish."""
    ...

  def abandon(self) -> None:
    """Says that it will not be written, whoever waits for that."""
    ...

  def write(
    self,
    file_system: fs.FileSystem,
    directory: str,
    *,
    process: int,
    attempt: bytes,
    tag: str,
  ) -> pb.ProcessFiles | None:
    """Writes the files of this process durably; None if it has none."""
    ...


@runtime_checkable
class Reader(Protocol):
  """The arrays of a committed step."""

  bytes_read: int

  def read(self, wanted: list[requests.Request]) -> None:
    """Fills the memory of every request."""
    ...

  def close(self) -> None:
    """Closes all files."""
    ...


def stage(
  kind: _config.CheckpointType,
  state: _state.State,
  arena: _staging.Arena,
  *,
  step: int,
  process: int,
  file_system: fs.FileSystem,
) -> tuple[Staged, list[_boxes.Layout]]:
  """Prepares the copy of a state; nothing is copied yet.

  Args:
    kind: How it is laid out.
    state: The state, taken apart.
    arena: Where the copy goes.
    step: Its number, for the files.
    process: This process.
    file_system: What will be written to.

  Returns:
    The copy to be, and how each array is cut.

  Raises:
    ConfigError: It needs more memory at once than the arena may hold.
    SaveError: The host has not the memory.
  """
  if kind is _config.CheckpointType.GDA:
    layouts = plans.layouts_of(state)
    plan, memory = _plan(state, layouts, arena, process, file_system)
    values = plans.shard_values(state, plan)
    return sharded.Staged(plan, values, memory, step=step), layouts
  is_per_process = kind is _config.CheckpointType.MULTI_HOST_FLAX
  layouts = [_boxes.single_layout(info.shape) for info in state.arrays]
  return (
    flax_file.Staged(
      state,
      arena,
      step=step,
      process=process,
      is_per_process=is_per_process,
    ),
    layouts,
  )


def reserve(
  kind: _config.CheckpointType,
  state: _state.State,
  arena: _staging.Arena,
  *,
  process: int,
  file_system: fs.FileSystem,
) -> None:
  """Has the arena hold what `stage` will take for such a state.

  Raises:
    ConfigError: As `stage`.
    SaveError: As `stage`.
  """
  if kind is _config.CheckpointType.GDA:
    layouts = plans.layouts_of(state)
    _plan(state, layouts, arena, process, file_system)
    return
  is_per_process = kind is _config.CheckpointType.MULTI_HOST_FLAX
  flax_file.take(state, arena, is_writer=is_per_process or process == 0)


def _plan(
  state: _state.State,
  layouts: list[_boxes.Layout],
  arena: _staging.Arena,
  process: int,
  file_system: fs.FileSystem,
) -> tuple[plans.Plan, np.ndarray]:
  plan, size_bytes = plans.window_of(
    plans.make_plan(
      state, layouts, process=process, part_bytes=file_system.part_bytes
    ),
    max_bytes=arena.max_bytes,
    whole_parts=file_system.whole_parts,
  )
  if size_bytes < plan.image_bytes:
    arena.tell_window(plan.image_bytes)
  return plan, arena.take(size_bytes)


class Unstaged:
  """Stands for a state that could not be staged, and says why."""

  def __init__(self, error: Exception):
    self._error = error

  def fill(self) -> None:
    """Raises what was raised when it was to be staged."""
    raise self._error

  def abandon(self) -> None:
    """Nobody waits."""

  def write(
    self,
    file_system: fs.FileSystem,
    directory: str,
    *,
    process: int,
    attempt: bytes,
    tag: str,
  ) -> pb.ProcessFiles | None:
    """Raises the same."""
    del file_system, directory, process, attempt, tag
    raise self._error


def open_step(
  file_system: fs.FileSystem,
  directory: str,
  manifest: pb.Manifest,
  *,
  process: int,
  verify: bool = True,
) -> Reader:
  """Opens the arrays of a committed step for one process."""
  if manifest.type == _config.CheckpointType.GDA:
    return sharded_reader.ShardedReader(
      file_system, directory, manifest, verify=verify
    )
  return flax_file.FlaxReader(
    file_system, directory, manifest, process=process, verify=verify
  )


__all__ = [
  'Reader',
  'Staged',
  'Unstaged',
  'open_step',
  'reserve',
  'stage',
]
