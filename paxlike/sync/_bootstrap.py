"""Joining the other processes of the job, and leaving them in good order."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator

from absl import logging

from paxlike.core import errors
from paxlike.sync import (
  _clusters,
  _ending,
  _lifeline,
  _signals,
  _store_world,
  _world,
)

_LAST_WORDS_WAIT_S = 0.3
_LEAVE_WAIT_S = 10.0


@contextlib.contextmanager
def bootstrap(
  *,
  coordinator_address: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  timeout_s: float = 300.0,
  barrier_timeout_s: float = _store_world.DEFAULT_TIMEOUT_S,
  silence_s: float = _lifeline.DEFAULT_SILENCE_S,
  grace_s: float = _ending.LONGEST_GRACE_S,
) -> Iterator[_world.World]:
  """Makes this process one of its job for the time of the `with` block.

  To be entered before anything touches a device. At the normal end of the
  block the processes wait for each other and leave together. When the block
  raises, the others are told and end within seconds, non-zero, naming this
  process and its error; when another process fails, the block should raise,
  and the process is ended if it does not. SIGTERM and Ctrl-C inside the block
  ask the job to stop (`world.stop`), whichever process they reach.

  Args:
    coordinator_address: HOST:PORT of process 0. What is None is detected:
      JAX_COORDINATOR_ADDRESS and the like, Slurm, MPI, Kubernetes, TPU;
      with nothing to detect the process is alone, and nothing is started.
    num_processes: How many processes the job has.
    process_id: Which one this is.
    timeout_s: How long to wait for all processes to start.
    barrier_timeout_s: For meetings that are given no timeout of their own.
    silence_s: After how long a process that neither ends nor answers counts
      as lost.
    grace_s: How long the main thread has to get out of the block, once
      another process has failed, before the process is ended.

  Yields:
    The world, which `sync.world()` returns inside the block.

  Raises:
    SyncError: Not all processes came; the message names them.
    PeerFailedError: In place of the error that a failed peer caused here.
  """
  cluster = _clusters.find(
    coordinator_address=coordinator_address,
    num_processes=num_processes,
    process_id=process_id,
    timeout_s=timeout_s,
  )
  if cluster is None or cluster.num_processes == 1:
    with _as_current(_world.SoloWorld()) as world:
      yield world
    return
  member = _join(
    cluster,
    timeout_s=timeout_s,
    barrier_timeout_s=barrier_timeout_s,
    silence_s=silence_s,
    grace_s=grace_s,
  )
  with _as_current(member.world) as world:
    try:
      yield world
    except BaseException as error:
      if _is_orderly(error):
        member.leave_together()
        raise
      told = member.leave_failed(error)
      if told is error:
        raise
      raise told from error
    member.leave_together()


@contextlib.contextmanager
def _as_current(world: _world.World) -> Iterator[_world.World]:
  before = _world.set_world(world)
  try:
    with _signals.asking(world.stop.ask):
      yield world
  finally:
    _world.set_world(before)


def _join(
  cluster: _clusters.Cluster,
  *,
  timeout_s: float,
  barrier_timeout_s: float,
  silence_s: float,
  grace_s: float,
) -> '_Member':
  from paxlike.sync import _kv  # JAX is loaded only where it is needed

  if _kv.is_connected():
    raise errors.SyncError(
      'jax.distributed is already initialised in this process; let '
      'sync.bootstrap do it.'
    )
  started_s = time.monotonic()
  lifeline = _lifeline.join(
    cluster.address,
    num_processes=cluster.num_processes,
    process_id=cluster.process_id,
    timeout_s=timeout_s,
    silence_s=silence_s,
  )
  store = _kv.connect(
    lifeline.service_address,
    num_processes=cluster.num_processes,
    process_id=cluster.process_id,
    timeout_s=max(30.0, timeout_s),
    local_device_ids=cluster.local_device_ids,
  )
  reaper = _ending.Reaper(grace_s=grace_s)

  world = _store_world.StoreWorld(
    store,
    process_index=cluster.process_id,
    process_count=cluster.num_processes,
    default_timeout_s=barrier_timeout_s,
    on_failure=lambda failure: reaper.arm(failure.error()),
  )
  lifeline.watch(
    lambda index, what: _on_lost(world, index, what),
    where=lambda: str(world.progress.mark()),
  )
  logging.info(
    'Process %d of %d (%s) joined at %s after %.1f s.',
    cluster.process_id,
    cluster.num_processes,
    cluster.origin,
    cluster.address,
    time.monotonic() - started_s,
  )
  return _Member(
    world=world,
    lifeline=lifeline,
    main_is_out=reaper.main_is_out,
    disconnect=_kv.disconnect,
    allow_aborts=_ending.delay_aborts(),
  )


def _on_lost(world: _store_world.StoreWorld, index: int, what: str) -> None:
  # Who fails says so and then ends: let its words come first.
  if world.wait_for_failure(_LAST_WORDS_WAIT_S):
    return
  failure = _store_world.Failure(process_index=index, what=what)
  if index == 0:
    world.note_failure(failure)  # The store went with it.
  else:
    world.post_failure(failure)


def _is_orderly(error: BaseException) -> bool:
  """Whether every process is leaving in the same way."""
  if isinstance(error, SystemExit):
    return not error.code
  return isinstance(error, errors.PreemptedError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Member:
  """All that being one of many processes takes."""

  world: _store_world.StoreWorld
  lifeline: _lifeline.Hub | _lifeline.Spoke
  main_is_out: Callable[[], None]
  disconnect: Callable[[], None]
  allow_aborts: Callable[[], None]

  def leave_together(self) -> None:
    """Meets at the end; process 0, whose service all use, goes last."""
    try:
      self.world.barrier('end of the job')
    except errors.SyncError as error:
      self.leave_failed(error)
      raise
    self.world.close()
    if self.world.process_index == 0:
      self.lifeline.leave(timeout_s=_LEAVE_WAIT_S)
    self.disconnect()
    self.world.join(_LEAVE_WAIT_S)
    if self.world.process_index != 0:
      self.lifeline.leave(timeout_s=_LEAVE_WAIT_S)
    self.allow_aborts()

  def leave_failed(self, error: BaseException) -> BaseException:
    """Tells the others; returns the error to end with, naming the culprit."""
    self.main_is_out()
    error = self.world.explain(error)
    self.world.report_failure(error)
    _ending.end_at_exit(getattr(error, 'exit_status', errors.EXIT_FAILED))
    if self.world.process_index == 0:
      # The others learn of the failure through the service that ends with us.
      self.lifeline.leave(timeout_s=_ending.LONGEST_GRACE_S + 1.0)
    return error
