"""Building a training run anew for the devices that are there now."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from absl import logging

from paxlike import checkpoint, parallel
from paxlike.core import errors

_Program = TypeVar('_Program', bound='Program')
_Start = TypeVar('_Start')


@runtime_checkable
class Program(Protocol):
  """What a runner makes for a partitioner: it knows the shape of its state."""

  abstract_state: Any


@runtime_checkable
class Snapshot(Protocol):
  """A state that outlived the devices it was on.

  Attributes:
    step: Completed steps.
  """

  step: int

  def restore(self, target: Any) -> checkpoint.Restored:
    """Puts it into the shapes and shardings of `target`."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rebuilt(Generic[_Program, _Start]):
  """A training run, ready for its next step.

  Attributes:
    partitioner: Where arrays live now.
    program: The steps for it.
    start: The state and whatever else the runner begins with.
    from_snapshot: Whether it comes from memory.
  """

  partitioner: parallel.Partitioner
  program: _Program
  start: _Start
  from_snapshot: bool


def elastic_handler(
  devices: Sequence[Any],
  *,
  mesh_config: parallel.MeshConfig,
  segment: Callable[[parallel.Partitioner], _Program],
  manager: checkpoint.CheckpointManager,
  snapshot: Snapshot | None,
  resume: Callable[[checkpoint.Restored], _Start],
  otherwise: Callable[[_Program], _Start],
) -> Rebuilt[_Program, _Start]:
  """Makes mesh, partitioner, program and state anew.

  How anybody found out that the devices have changed is not its business, nor
  does it wait, retry or talk: it may be called for any devices at any time.

  Args:
    devices: All devices of the job as it is now.
    mesh_config: How the job is split.
    segment: Makes the runner's program.
    manager: The job's checkpoints. Those newer than what is restored belong
      to steps that were lost; it forgets them, so that they are taken again.
    snapshot: The newest one in memory, if there is any.
    resume: Turns what was restored into what the runner begins with.
    otherwise: Begins without a snapshot: from the newest checkpoint, or new.

  Returns:
    All that was built.

  Raises:
    ConfigError: The mesh cannot be laid over these devices.
  """
  partitioner = parallel.Partitioner(
    parallel.make_mesh(mesh_config, devices), mesh_config.rules
  )
  program = segment(partitioner)
  newest = manager.latest_step()
  # A committed checkpoint is whole by itself: where it is newer, less is lost.
  if snapshot is None or (newest is not None and newest > snapshot.step):
    return Rebuilt(
      partitioner=partitioner,
      program=program,
      start=otherwise(program),
      from_snapshot=False,
    )
  restored = snapshot.restore(program.abstract_state)
  logging.info(
    'Going on from the snapshot of step %d on %d devices.',
    restored.step,
    len(devices),
  )
  manager.forget_above(restored.step)
  return Rebuilt(
    partitioner=partitioner,
    program=program,
    start=resume(restored),
    from_snapshot=True,
  )


def legal_hosts(
  mesh_config: parallel.MeshConfig,
  *,
  devices_per_host: int,
  max_hosts: int,
  batch_size: int,
  num_micro_batches: int,
) -> tuple[int, ...]:
  """The numbers of hosts over which a job can be laid without other numbers.

  The global batch stays what it is: rows that do not divide are padded, but
  micro-batches must divide what comes of it.

  Returns:
    The legal numbers, ascending; empty if all up to `max_hosts` are.
  """
  legal = []
  for count in range(1, max_hosts + 1):
    try:
      replica, data, _ = mesh_config.resolve(count * devices_per_host)
    except errors.ConfigError:
      continue
    shards = replica * data
    rows = -(-batch_size // shards) * shards
    if rows % num_micro_batches == 0:
      legal.append(count)
  return () if len(legal) == max_hosts else tuple(legal)
