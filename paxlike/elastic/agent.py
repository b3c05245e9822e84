"""The agent: one a host, it keeps a worker running and its snapshots safe.

It decides nothing: it tells the lighthouse what is true here and does what
the lighthouse wants. It imports no array library, so it starts in an instant
and nothing that goes wrong in training can reach it.
"""

import collections
import contextlib
import dataclasses
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from paxlike.core import errors, fs
from paxlike.elastic import (
  _children,
  _facts,
  _memory,
  _messages,
  _serving,
  _transfer,
)

AGENT_VARIABLE = 'PAXLIKE_AGENT'
SECRET_VARIABLE = 'PAXLIKE_SECRET'  # noqa: S105 - the variable's name
_TICK_S = 0.05
_TELL_S = 0.25
_RETRY_S = 0.2
_STANDBY_AFTER_S = 20.0
_LEAVE_S = 25.0
_END_S = 10.0
_MOST_BROKEN = 3
_NO_LIGHTHOUSE_S = 600.0


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


@dataclasses.dataclass(frozen=True)
class _Linked:
  connection: _messages.Connection


@dataclasses.dataclass(frozen=True)
class _Signalled:
  number: int


def run(options: Options) -> int:
  """Serves one job on this host until it is over; returns the exit status."""
  _memory.sweep(options.snapshot_dir, job_id=options.job_id)
  root = _memory.root_of(
    options.snapshot_dir, job_id=options.job_id, name=options.name
  )
  agent = _Agent(options, _memory.Memory(root))
  try:
    return agent.run()
  finally:
    agent.close()


class _Agent:
  """The state of an agent; all of it belongs to the main thread."""

  def __init__(self, options: Options, memory: _memory.Memory):
    self._options = options
    self._memory = memory
    self._inbox: _serving.Inbox = queue.SimpleQueue()
    self._incarnation = secrets.token_hex(8)
    self._address = _serving.listen(
      f'{options.host}:0',
      options.secret,
      lambda connection: _transfer.serve(memory, connection),
    )
    self._pusher = _Pusher(options.secret)
    self._link: _messages.Connection | None = None
    self._linked_s = time.monotonic()
    self._order: _facts.Order | None = None
    self._worker: _children.Child | None = None
    self._standby: _children.Child | None = None
    self._port = 0
    self._pieces: tuple[_facts.Piece, ...] = ()
    self._num_broken = 0
    self._leaving_s: float | None = None
    self._wants_stop = False
    self._ended_s: float | None = None
    self._dumped = -1
    self._asked: set[tuple[int, str]] = set()
    self._told_s = 0.0
    self._events: collections.deque[_messages.Message] = collections.deque(
      maxlen=1000
    )
    self._scan()

  # --- the loop

  def run(self) -> int:
    """Handles what happens, one thing at a time."""
    for number in (signal.SIGTERM, signal.SIGINT):
      signal.signal(number, lambda n, _: self._inbox.put(_Signalled(n)))
    threading.Thread(
      target=self._keep_linked, name='elastic-link', daemon=True
    ).start()
    while True:
      self._start_standby()
      with contextlib.suppress(queue.Empty):
        self._handle(self._inbox.get(timeout=_TICK_S))
        while True:
          self._handle(self._inbox.get_nowait())
      status = self._obey()
      if status is not None:
        return status
      if self._is_news() or time.monotonic() - self._told_s > _TELL_S:
        self._tell()

  def _is_news(self) -> bool:
    """Whether the worker has just done its first step."""
    worker = self._worker
    if worker is None or worker.is_settled or worker.plan is None:
      return False
    worker.is_settled = self._memory.completed_steps() > _begun(worker.plan)
    return worker.is_settled

  def close(self) -> None:
    """Ends all children and gives the memory back."""
    for child in (self._worker, self._standby):
      if child is not None:
        child.kill()
    self._pusher.close()
    self._memory.remove()

  def _keep_linked(self) -> None:
    """Connects to the lighthouse, again and again (a thread of its own)."""
    while True:
      try:
        connection = _messages.dial(
          self._options.lighthouse, self._options.secret
        )
      except errors.PaxlikeError as error:
        logging.log_every_n_seconds(
          logging.INFO, 'No lighthouse: %s', 10, error
        )
        time.sleep(_RETRY_S)
        continue
      self._inbox.put(_Linked(connection))
      _serving.read_into(self._inbox, connection)
      connection.close()

  def _handle(self, event: Any) -> None:
    if isinstance(event, _Linked):
      self._link, self._linked_s = event.connection, time.monotonic()
      self._tell(is_first=True)
    elif isinstance(event, _Signalled):
      self._hear_signal(event.number)
    elif isinstance(event, _serving.Heard):
      self._hear_lighthouse(event)
    elif isinstance(event, _children.ChildSaid):
      self._hear_child(event.child, event.message)
    elif isinstance(event, _children.ChildEnded):
      self._reap(event.child)

  def _hear_signal(self, number: int) -> None:
    if number == signal.SIGINT:
      logging.warning('Asked to stop the job.')
      self._wants_stop = True
    elif self._leaving_s is None:
      logging.warning('Asked to leave the job.')
      self._leaving_s = time.monotonic()
    self._tell()

  def _hear_lighthouse(self, event: _serving.Heard) -> None:
    if event.message is None:
      if event.connection is self._link:
        self._link, self._linked_s = None, time.monotonic()
      return
    try:
      self._order = _facts.from_message(
        _facts.Order, event.message.get('order')
      )
    except _messages.MessageError as error:
      logging.warning('Not understood: %s', error)

  # --- children

  def _start_standby(self) -> None:
    """Keeps one process warm, but not beside a worker that starts up."""
    if self._standby is not None or self._is_over():
      return
    if self._num_broken > _MOST_BROKEN:
      return
    worker = self._worker
    if worker is not None and worker.end is None and not self._is_settled():
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
        'address': self._address,
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
    assert self._worker is not None
    waited_s = time.monotonic() - self._worker.planned_s
    return self._worker.is_settled or waited_s > _STANDBY_AFTER_S

  def _hear_child(
    self, child: _children.Child, message: _messages.Message
  ) -> None:
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
    self._scan()
    rank = child.plan.members.index(self._options.name)
    if rank < len(child.plan.buddies) and child.plan.buddies[rank]:
      self._pusher.push(
        child.plan.buddies[rank], self._memory, child.plan.generation, rank
      )
    self._memory.prune(child.plan.generation)
    self._scan()
    self._tell()
    if rank == 0:
      self._events.append(
        {
          'event': 'snapshot',
          'generation': child.plan.generation,
          'step': message.get('step'),
          'blocked_s': message.get('blocked_s'),
        }
      )

  def _reap(self, child: _children.Child) -> None:
    """Takes note of the end of a child."""
    if child.end in (_facts.End.FINISHED, _facts.End.PREEMPTED):
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
    elif child is self._worker:
      if child.end is None:
        child.end = _facts.End.CRASHED
        child.text = f'ended with status {status}'
        child.exit_status = errors.EXIT_FAILED
      self._memory.clear_unfinished(self._memory.own)
      self._scan()
    self._tell()

  # --- what the lighthouse wants

  def _obey(self) -> int | None:
    """Brings this host closer to the order; the exit status at the end."""
    self._give_up_if_late()
    order = self._order
    if self._leaving_s is not None and (
      self._is_late_to_leave()
      or (order and self._options.name in order.released)
    ):
      return errors.EXIT_DONE
    if order is None:
      return None
    if order.wish is _facts.Wish.END:
      return self._end(order)
    worker = self._worker
    generation = worker.plan.generation if worker and worker.plan else -1
    if order.wish is _facts.Wish.HOLD:
      if generation <= order.generation:
        self._kill_worker()
    elif order.generation > generation:
      self._kill_worker()
      if order.plan and self._options.name in order.plan.members:
        self._take_up(order.plan)
    elif order.generation == generation and worker is not None:
      self._pass_on(order, worker)
    return None

  def _is_late_to_leave(self) -> bool:
    assert self._leaving_s is not None
    if time.monotonic() - self._leaving_s < _LEAVE_S:
      return False
    logging.warning('Leaving; nobody has let this host go in time.')
    return True

  def _give_up_if_late(self) -> None:
    away_s = time.monotonic() - self._linked_s
    is_idle = self._worker is None or self._worker.end is not None
    if self._link is None and is_idle and away_s > _NO_LIGHTHOUSE_S:
      raise errors.SyncError(
        f'No lighthouse at {self._options.lighthouse} for {away_s:.0f} s.'
      )

  def _kill_worker(self) -> None:
    worker = self._worker
    if worker is None:
      return
    if worker.end is None:
      worker.end = _facts.End.CRASHED
      worker.text = 'ended together with its generation'
      self._tell()
    if worker.is_alive():
      worker.kill()
      self._memory.clear_unfinished(self._memory.own)
      self._scan()
      self._tell()

  def _take_up(self, plan: _facts.Plan) -> None:
    standby = self._standby
    if standby is None or not standby.is_ready or not standby.is_alive():
      return
    self._memory.clear_unfinished(self._memory.own)
    with open(self._memory.step_file, 'r+b') as file:
      file.write(b'\xff' * 8)  # -1: nothing is known of the new worker
    standby.plan = plan
    standby.planned_s = standby.heard_s = time.monotonic()
    standby.send({'kind': 'plan', 'plan': _facts.to_message(plan)})
    self._worker, self._standby = standby, None
    self._tell()

  def _pass_on(self, order: _facts.Order, worker: _children.Child) -> None:
    if order.dump and self._dumped != order.generation:
      self._dumped = order.generation
      worker.write_stacks()
    if order.wish in (_facts.Wish.DRAIN, _facts.Wish.PREEMPT):
      key = (order.generation, str(order.wish))
      if key not in self._asked and worker.connection is not None:
        self._asked.add(key)
        worker.send({'wish': order.wish, 'reason': order.reason})

  def _is_over(self) -> bool:
    return self._leaving_s is not None or (
      self._order is not None and self._order.wish is _facts.Wish.END
    )

  def _end(self, order: _facts.Order) -> int | None:
    """Lets a worker that ends in good order do so, for a while."""
    now_s = time.monotonic()
    self._ended_s = self._ended_s or now_s
    worker = self._worker
    is_orderly = worker is not None and worker.end in (
      _facts.End.FINISHED,
      _facts.End.PREEMPTED,
    )
    is_waited_for = worker is not None and is_orderly and worker.is_alive()
    if is_waited_for and now_s - self._ended_s < _END_S:
      return None
    if order.exit_status:
      print(f'paxlike: {order.reason}', file=sys.stderr)
    return order.exit_status

  # --- what is told

  def _scan(self) -> None:
    self._pieces = tuple(piece for piece, _ in self._memory.pieces())

  def _tell(self, *, is_first: bool = False) -> None:
    """Tells the lighthouse all that is true here."""
    self._told_s = time.monotonic()
    if self._link is None:
      return
    if not is_first:  # others may have put pieces here meanwhile
      self._scan()
    message: _messages.Message = {'kind': 'agent'}
    if is_first:
      message = {
        'kind': 'hello',
        'policy': _facts.to_message(self._options.policy),
        'job_id': self._options.job_id,
        'job_log_dir': self._options.job_log_dir,
      }
    message['facts'] = _facts.to_message(self._facts(with_plan=is_first))
    if self._worker is not None:
      for name in ('totals_s', 'first_step'):
        message[name] = self._worker.beat.get(name)
    try:
      while self._events:
        self._link.send({'kind': 'event', 'fields': self._events[0]})
        self._events.popleft()
      self._link.send(message)
    except _messages.ClosedError:
      self._link = None

  def _facts(self, *, with_plan: bool) -> _facts.Agent:
    standby, child = self._standby, self._worker
    worker = None
    if child is not None and child.plan is not None:
      beat = child.beat
      worker = _facts.Worker(
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
    return _facts.Agent(
      name=self._options.name,
      incarnation=self._incarnation,
      host=self._options.host,
      address=self._address,
      is_ready=standby is not None and standby.is_ready,
      port=self._port,
      worker=worker,
      pieces=self._pieces,
      is_leaving=self._leaving_s is not None,
      wants_stop=self._wants_stop,
      is_broken=self._num_broken > _MOST_BROKEN,
      plan=child.plan if with_plan and child is not None else None,
    )


class _Pusher:
  """Copies the newest piece of this host to its buddy, in the background."""

  def __init__(self, secret: bytes):
    self._secret = secret
    self._wake = threading.Condition()
    self._next: tuple[str, _facts.Piece, str] | None = None
    self._is_closed = False
    self._thread = threading.Thread(
      target=self._run, name='elastic-push', daemon=True
    )
    self._thread.start()

  def push(
    self, address: str, memory: _memory.Memory, generation: int, rank: int
  ) -> None:
    """Pushes this worker's newest piece; one not begun yet is passed over."""
    found = [
      (piece, path)
      for piece, path in memory.pieces()
      if piece.generation == generation
      and piece.process == rank
      and path.startswith(memory.own)
    ]
    if not found:
      return
    with self._wake:
      self._next = (address, *found[-1])
      self._wake.notify()

  def close(self) -> None:
    """Stops; does not wait for a transfer under way."""
    with self._wake:
      self._is_closed = True
      self._wake.notify()

  def _run(self) -> None:
    peers: dict[str, _transfer.Peer] = {}
    while True:
      with self._wake:
        self._wake.wait_for(lambda: self._next or self._is_closed)
        if self._is_closed:
          return
        assert self._next is not None
        (address, piece, path), self._next = self._next, None
      try:
        if address not in peers:
          peers[address] = _transfer.Peer(address, self._secret)
        if not _transfer.push(peers[address], piece, path):
          logging.info('Snapshot %s was overwritten on its way.', piece.name)
          peers.pop(address).close()
      except (errors.PaxlikeError, OSError) as error:
        logging.info('Snapshot %s was not copied: %s', piece.name, error)
        if address in peers:
          peers.pop(address).close()


def _begun(plan: _facts.Plan) -> int:
  """The step from which a generation goes on, as far as the plan tells."""
  return max((source.piece.step for source in plan.sources), default=0)


def _free_port() -> int:
  with socket.socket() as sock:
    sock.bind(('', 0))
    return sock.getsockname()[1]


def _local(path: str) -> str:
  """The path, if it is on this machine: stacks are written by the kernel."""
  return '' if fs.is_remote(path) else path


def command_of(arguments: Sequence[str]) -> tuple[str, ...]:
  """The worker's command for the flags of a training job."""
  return (sys.executable, '-m', 'paxlike.main', *arguments)
