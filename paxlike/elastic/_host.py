"""What runs on one host: a worker, a warm standby, and their snapshots.

It knows nothing of the lighthouse: it is told what to do, and says what is so.
"""

import collections
import dataclasses
import os
import signal
import socket
import time
from collections.abc import Callable

from absl import logging

from paxlike.core import errors, fs
from paxlike.elastic import (
  _children,
  _copying,
  _facts,
  _memory,
  _messages,
  _serving,
  _transfer,
)

AGENT_VARIABLE = 'PAXLIKE_AGENT'
SECRET_VARIABLE = 'PAXLIKE_SECRET'  # noqa: S105 - the variable's name
_STANDBY_AFTER_S = 20.0
_END_S = 10.0
_MOST_BROKEN = 3
_ORDERLY = (_facts.End.FINISHED, _facts.End.PREEMPTED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """What an agent is started with.

  Attributes:
    lighthouse: HOST:PORT of the lighthouse.
    host: The name of this host for others, and what to listen on.
    name: Of this agent in the job, stable over restarts.
    job_id: Of the job; agents and snapshots of other jobs are left alone.
    job_log_dir: Of the job.
    command: The training command, as the workers are started.
    policy: How the job is kept alive.
    secret: Of the job.
    snapshot_dir: Where snapshots go: shared memory, or a local disk.
    snapshot_spill_dir: Where they go if there is no room; None: nowhere.
    parent_pid: The launcher without which it ends; None: it has none.
  """

  lighthouse: str
  host: str
  name: str
  job_id: str
  job_log_dir: str
  command: tuple[str, ...]
  policy: _facts.Policy
  secret: bytes
  snapshot_dir: str = '/dev/shm'  # noqa: S108 - a directory of our own in it
  snapshot_spill_dir: str | None = None
  parent_pid: int | None = None

  def root_in(self, parent: str) -> str:
    """The directory of this host in one of the two."""
    return _memory.root_of(parent, job_id=self.job_id, name=self.name)


class Host:
  """The processes and the memory of one host.

  Attributes:
    address: HOST:PORT where its snapshots are given out.
    worker: The last worker; None before the first.
    events: What happened here, for the job's log; whoever tells it removes it.
  """

  def __init__(
    self, options: Options, inbox: _serving.Inbox, tell: Callable[[], None]
  ):
    """Nothing runs yet.

    Args:
      options: Of the agent.
      inbox: Where children and copies are heard of.
      tell: Called when something has changed that others should know.
    """
    self._options = options
    self._inbox = inbox
    self._tell = tell
    spill_dir = options.snapshot_spill_dir
    self._memory = memory = _memory.Memory(
      options.root_in(options.snapshot_dir),
      spill_root=options.root_in(spill_dir) if spill_dir else None,
    )
    self.address = _serving.listen(
      f'{options.host}:0',
      options.secret,
      lambda connection: _transfer.serve(memory, connection),
    )
    self.worker: _children.Child | None = None
    self.events: collections.deque[_messages.Message] = collections.deque(
      maxlen=1000
    )
    self._pusher = _copying.Pusher(options.secret, inbox)
    self._standby: _children.Child | None = None
    self._port = 0
    self._num_broken = 0
    self._pieces: tuple[_facts.Piece, ...] = ()
    self.scan()

  def close(self) -> None:
    """Ends all children and gives the memory back."""
    for child in (self.worker, self._standby):
      if child is not None:
        child.kill()
    self._pusher.close()
    self._memory.remove()

  # --- what is true here

  @property
  def generation(self) -> int:
    """Of the last worker; -1 before the first."""
    worker = self.worker
    return worker.plan.generation if worker and worker.plan else -1

  @property
  def is_idle(self) -> bool:
    """Whether no worker runs."""
    return self.worker is None or self.worker.end is not None

  @property
  def is_ending_well(self) -> bool:
    """Whether a worker has said that it is done, and still lives."""
    worker = self.worker
    return worker is not None and worker.end in _ORDERLY and worker.is_alive()

  def scan(self) -> None:
    """Looks which pieces are here; others may have put some."""
    self._pieces = tuple(piece for piece, _ in self._memory.pieces())

  def has_begun(self) -> bool:
    """Whether the worker has just done its first step; true once."""
    worker = self.worker
    if worker is None or worker.is_settled or worker.plan is None:
      return False
    begun = max(0, worker.plan.restored_step)
    worker.is_settled = self._memory.completed_steps() > begun
    return worker.is_settled

  def facts(
    self,
    *,
    incarnation: str,
    is_leaving: bool,
    wants_stop: bool,
    with_plan: bool,
  ) -> _facts.Agent:
    """All that is true of this host."""
    standby, child = self._standby, self.worker
    return _facts.Agent(
      name=self._options.name,
      incarnation=incarnation,
      host=self._options.host,
      address=self.address,
      is_ready=standby is not None and standby.is_ready,
      port=self._port,
      worker=self._worker_facts(child) if child is not None else None,
      pieces=self._pieces,
      is_leaving=is_leaving,
      wants_stop=wants_stop,
      is_broken=self._num_broken > _MOST_BROKEN,
      plan=child.plan if with_plan and child is not None else None,
    )

  def _worker_facts(self, child: _children.Child) -> _facts.Worker:
    assert child.plan is not None
    beat = child.beat
    return _facts.Worker(
      generation=child.plan.generation,
      rank=child.plan.members.index(self._options.name),
      pid=child.pid,
      phase=str(beat.get('phase', '')),
      step=self._memory.completed_steps(),
      idle_s=float(beat.get('idle_s', 0.0)),
      is_timed=bool(beat.get('is_timed', False)),
      median_step_s=float(beat.get('median_step_s', 0.0)),
      silent_s=time.monotonic() - child.heard_s,
      end=child.end,
      text=child.text,
      exit_status=child.exit_status,
      legal_hosts=tuple(beat.get('legal_hosts', ())),
    )

  # --- what is done here

  def start_standby(self) -> None:
    """Keeps one process warm, but not beside a worker that starts up."""
    if self._standby is not None or self._num_broken > _MOST_BROKEN:
      return
    if not self.is_idle and not self._is_settled():
      return
    options = self._options
    self._standby = _children.Child(
      options.command,
      env={
        **os.environ,
        SECRET_VARIABLE: options.secret.decode(),
      },
      setting={
        'root': self._memory.root,
        'address': self.address,
        'name': options.name,
        'job_id': options.job_id,
        'snapshot_steps': options.policy.snapshot_steps,
        'max_hosts': options.policy.max_hosts,
        'stack_dir': _local(fs.join(options.job_log_dir, 'status', 'stacks')),
      },
      variable=AGENT_VARIABLE,
      secret=options.secret,
      inbox=self._inbox,
    )

  def _is_settled(self) -> bool:
    """Whether the worker has done a step, or takes very long to."""
    assert self.worker is not None
    waited_s = time.monotonic() - self.worker.planned_s
    return self.worker.is_settled or waited_s > _STANDBY_AFTER_S

  def take_up(self, plan: _facts.Plan) -> None:
    """Makes the standby the worker of a plan, if it is ready."""
    standby = self._standby
    if standby is None or not standby.is_ready or not standby.is_alive():
      return
    self._memory.begin()
    standby.plan = plan
    standby.planned_s = standby.heard_s = time.monotonic()
    standby.send({'kind': 'plan', 'plan': _facts.to_message(plan)})
    self.worker, self._standby = standby, None
    self._tell()

  def end_worker(
    self, text: str, *, end: _facts.End = _facts.End.ALONG
  ) -> None:
    """Ends the worker if one lives; `text` is why."""
    worker = self.worker
    if worker is None:
      return
    # One that was faster may be the cause: `reap` finds out, in an instant.
    if worker.end is None and worker.is_alive() and not worker.has_hung_up():
      worker.end, worker.text = end, text
      self._tell()
    if worker.is_alive():
      worker.kill()
      self._memory.clear_own()
      self.scan()
      self._tell()

  # --- what children say

  def hear(self, child: _children.Child, message: _messages.Message) -> None:
    """Takes note of what a child says."""
    child.heard_s = time.monotonic()
    kind = message.get('kind')
    if kind == 'ready':
      child.is_ready = True
      self._num_broken = 0
      self._port = _free_port()
      self._tell()
    elif kind == 'beat':
      child.beat = message
    elif kind == 'snapshot':
      self._hear_snapshot(child, message)
    elif kind == 'end' and child.end is None:
      child.end = _facts.End(message.get('end', _facts.End.CRASHED))
      child.text = str(message.get('text', ''))
      child.exit_status = int(message.get('exit_status', 1))
      child.beat = {**child.beat, 'legal_hosts': message.get('legal_hosts', ())}
      self._tell()

  def _hear_snapshot(
    self, child: _children.Child, message: _messages.Message
  ) -> None:
    assert child.plan is not None
    plan = child.plan
    rank = plan.members.index(self._options.name)
    if rank < len(plan.buddies) and plan.buddies[rank]:
      self._pusher.push(plan.buddies[rank], self._memory, plan.generation, rank)
    self._memory.prune(plan.generation, plan.restored)
    self.scan()
    self._tell()
    if rank == 0:
      self.events.append(
        {
          'event': 'snapshot',
          'generation': plan.generation,
          'step': message.get('step'),
          'blocked_s': message.get('blocked_s'),
        }
      )

  def copied(self, copied: _copying.Copied) -> None:
    """Tells the worker that a copy has ended: another may be made."""
    if self.worker is not None and self.generation == copied.piece.generation:
      self.worker.send({'kind': 'copied', 'step': copied.piece.step})

  def reap(self, child: _children.Child) -> None:
    """Takes note of the end of a child.

    Raises:
      UsageError: The training command itself is wrong.
    """
    if child.end in _ORDERLY:
      child.wait(_END_S)
    status = child.wait(0.5 if child.end is None else 0.0)
    child.kill()
    if child is self._standby:
      self._standby = None
      self._num_broken += 1
      logging.warning('A standby ended with status %s.', status)
      if status == errors.EXIT_USAGE:
        raise errors.UsageError(
          'The training command is refused; its error is printed above.'
        )
    elif child is self.worker:
      if child.end is None:
        _note_status(child, status)
      self._memory.clear_own()
      self.scan()
    self._tell()


def _note_status(child: _children.Child, status: int | None) -> None:
  """Takes note of an end without a word."""
  is_aborted = status == -signal.SIGABRT
  child.end = _facts.End.ABORTED if is_aborted else _facts.End.KILLED
  child.exit_status = errors.EXIT_FAILED
  if status is None:
    child.text = 'closed its connection without a word'
  elif status < 0:
    child.text = f'was ended by {signal.Signals(-status).name}'
  else:
    child.text = f'ended with status {status} without a word'


def _free_port() -> int:
  with socket.socket() as sock:
    sock.bind(('', 0))
    return sock.getsockname()[1]


def _local(path: str) -> str:
  """The path, if it is on this machine: stacks are written by the kernel."""
  return '' if fs.is_remote(path) else path
