"""The ways in which the arrays of one step are laid out in files.

A store stages a state (`Staged`: copied by the thread that owns it, written by
another) and reads boxes of a committed one (`Reader`).
"""

from typing import Protocol, runtime_checkable

from paxlike.checkpoint import _boxes, _config, _staging, _state
from paxlike.checkpoint._stores import flax_file, requests, sharded
from paxlike.checkpoint._stores import sharded_reader as sharded_reader
from paxlike.core import fs
from paxlike.protos import checkpoint_pb2 as pb


@runtime_checkable
class Staged(Protocol):
  """A state on its way from the devices to files."""

  def fill(self) -> None:
    """Copies it; when this returns the state may change or vanish."""
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
  part_bytes: int,
) -> tuple[Staged, list[_boxes.Layout]]:
  """Prepares the copy of a state; nothing is copied yet.

  Args:
    kind: How it is laid out.
    state: The state, taken apart.
    arena: Where the copy goes.
    step: Its number, for the files.
    process: This process.
    part_bytes: How much one data file may hold.

  Returns:
    The copy to be, and how each array is cut.
  """
  if kind is _config.CheckpointType.GDA:
    layouts = sharded.layouts_of(state)
    plan = sharded.make_plan(
      state, layouts, process=process, part_bytes=part_bytes
    )
    memory = arena.take(plan.image_bytes)
    values = sharded.shard_values(state, plan)
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


def staging_bytes(
  kind: _config.CheckpointType,
  state: _state.State,
  *,
  process: int,
  part_bytes: int,
) -> int:
  """Host memory that `stage` takes from the arena for such a state."""
  if kind is _config.CheckpointType.GDA:
    layouts = sharded.layouts_of(state)
    return sharded.make_plan(
      state, layouts, process=process, part_bytes=part_bytes
    ).image_bytes
  return flax_file.staging_bytes(state)


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
  return flax_file.FlaxReader(file_system, directory, manifest, process=process)


__all__ = [
  'Reader',
  'Staged',
  'open_step',
  'stage',
  'staging_bytes',
]
