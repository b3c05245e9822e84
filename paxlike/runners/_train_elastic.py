"""The training job as the worker of an elastic agent; loaded only then."""

import dataclasses
import functools
from typing import Any

import jax

from paxlike import checkpoint, elastic, inputs, parallel, programs, tasks
from paxlike.runners import _train_start
from paxlike.runners import session as sessions

Worker = elastic.worker.Worker


def join(task: tasks.Task, source: inputs.Input, mesh_p: Any) -> Worker:
  """This process as a worker of its generation.

  Raises:
    HostCountError: The mesh or the batch does not allow this many hosts.
  """
  worker = elastic.worker.current()
  worker.check_hosts(
    elastic.legal_hosts(
      _mesh_config(mesh_p),
      devices_per_host=jax.local_device_count(),
      max_hosts=worker.max_hosts,
      batch_size=source.batch_size,
      num_micro_batches=task.learner.num_micro_batches,
    )
  )
  return worker


def generation(worker: Worker) -> checkpoint.Generation:
  """Which life of its job this is: it takes over from the one before."""
  return checkpoint.Generation(job=worker.job_id, number=worker.plan.generation)


def rebuild(
  worker: Worker,
  session: sessions.Session,
  mesh_p: Any,
  manager: checkpoint.CheckpointManager,
  begin: _train_start.Begin,
) -> tuple[sessions.Session, programs.TrainProgram, _train_start.Start]:
  """Everything for the hosts that are there now, from the newest snapshot."""
  rebuilt = elastic.elastic_handler(
    jax.devices(),
    mesh_config=_mesh_config(mesh_p),
    segment=functools.partial(programs.TrainProgram, session.task),
    manager=manager,
    snapshot=worker.snapshot,
    resume=begin.resume,
    otherwise=begin,
  )
  worker.begin(rebuilt.start.state, rebuilt.start.step)
  session = dataclasses.replace(session, partitioner=rebuilt.partitioner)
  return session, rebuilt.program, rebuilt.start


def _mesh_config(mesh_p: Any) -> parallel.MeshConfig:
  return sessions.built(mesh_p) or parallel.MeshConfig()
