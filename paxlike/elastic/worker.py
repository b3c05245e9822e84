"""The worker's side: it waits for its plan, reports, snapshots and stops.

A worker is crash-only: whatever goes wrong, the process ends and a fresh one
takes its place. It outlives its agent by no more than milliseconds.
"""

import contextlib
import dataclasses
import faulthandler
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from absl import logging

from paxlike import sync
from paxlike.core import errors, processes
from paxlike.elastic import _facts, _memory, _messages, _transfer, snapshots

VARIABLE = 'PAXLIKE_AGENT'
SECRET_VARIABLE = 'PAXLIKE_SECRET'  # noqa: S105 - the variable's name
_BEAT_S = 0.2
_HANDSHAKE_S = 120.0
_JOIN_S = 60.0
_COPY_WAIT_S = 30.0
_HICCUP_S = 1.0  # not worth a word
_ORPHAN_STATUS = 70
_DRAIN = 'the hosts of the job change'


class DrainedError(errors.PreemptedError):
  """This generation stopped, with a snapshot, so that another may begin."""


class HostCountError(errors.PaxlikeError):
  """The mesh cannot be laid over this number of hosts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """What an agent tells its workers when it starts them.

  Attributes:
    fd: Of the socket to the agent.
    root: The host's directory of snapshots.
    address: HOST:PORT where the agent gives them out.
    name: The agent's.
    job_id: Which job.
    snapshot_steps: Steps from one snapshot to the next.
    max_hosts: The most that the job may have.
    stack_dir: Where Python stacks are written on request.
  """

  fd: int
  root: str
  address: str
  name: str
  job_id: str
  snapshot_steps: int
  max_hosts: int
  stack_dir: str


def setting() -> Setting:
  """What the agent that started this process says."""
  return Setting(**json.loads(os.environ[VARIABLE]))


class Worker:
  """This process as the worker of an agent.

  Attributes:
    plan: The generation that this worker is of.
    rank: Its process index.
  """

  def __init__(
    self,
    connection: _messages.Connection,
    setting: Setting,
    plan: _facts.Plan,
    *,
    secret: bytes,
  ):
    self.plan = plan
    self.rank = plan.members.index(setting.name)
    self._connection = connection
    self._setting = setting
    self._secret = secret
    self._world: sync.World | None = None
    self._asked: str | None = None
    self._lock = threading.Lock()
    self._ended = False
    self._legal: tuple[int, ...] = ()
    self._cell = _memory.StepCell(os.path.join(setting.root, 'step'))
    self._taker = snapshots.Taker(
      setting.root,
      job_id=setting.job_id,
      generation=plan.generation,
      process=self.rank,
      count=len(plan.members),
    )
    self._snapshot_step = -1
    self._has_buddy = any(plan.buddies[self.rank : self.rank + 1])
    self._is_copied = threading.Event()
    self._is_copied.set()
    self._begun_step = 0
    self._building = contextlib.ExitStack()
    _enable_stacks(setting, plan.generation, self.rank)

  @property
  def place(self) -> dict[str, Any]:
    """This process's place in its generation, for `sync.bootstrap`."""
    return {
      'coordinator_address': self.plan.coordinator,
      'num_processes': len(self.plan.members),
      'process_id': self.rank,
      'timeout_s': _JOIN_S,
    }

  @property
  def snapshot(self) -> snapshots.Planned | None:
    """The snapshot to go on from; None: the newest checkpoint."""
    if not self.plan.sources:
      return None
    return snapshots.Planned(
      self.plan.sources,
      secret=self._secret,
      own_address=self._setting.address,
      own_root=self._setting.root,
    )

  @contextlib.contextmanager
  def running(self, world: sync.World) -> Iterator[None]:
    """Reports what this process does, for the time of the block."""
    with self._lock:
      self._world = world
      asked = self._asked
    if asked is not None:
      world.stop.ask(asked)
    over = threading.Event()
    thread = threading.Thread(
      target=self._beat, args=(world, over), name='elastic-beat', daemon=True
    )
    thread.start()
    try:
      with self._building:
        self._building.enter_context(world.progress.phase('restore'))
        yield
      self._finish_snapshot()
    except BaseException as error:
      self.tell_end(error)
      raise
    finally:
      over.set()
      thread.join()

  def begin(self, state: Any, step: int) -> None:
    """Says that training begins with a state, after `step` completed steps.

    Raises:
      ConfigError: There is no room for snapshots of such a state.
    """
    self._taker.prepare(state)
    self._building.close()
    self._begun_step = step
    self._snapshot_step = step if self.plan.sources else -1
    self._cell.set(step)

  def after_step(self, state: Any, step: int, items: Mapping[str, Any]) -> None:
    """Takes a snapshot if one is due, and says that `step` is done.

    Called by the main thread between two steps. A step whose snapshot is due
    counts as done, and the next one may, only once that is whole: what counts
    is never newer by a whole interval than what is in memory.
    """
    self._finish_snapshot()
    if step % self._setting.snapshot_steps == 0:
      self._take(state, step, items)
    else:
      self._cell.set(step)

  def stop(self, state: Any, step: int, items: Mapping[str, Any]) -> None:
    """Ends this generation if that is why all processes stop here.

    Called once `world.stop.poll()` is true; it returns where the whole job is
    to stop, with a checkpoint.

    Raises:
      DrainedError: A snapshot of `step` was taken; another generation follows.
    """
    assert self._world is not None
    # The reasons may differ between processes; that of the first one counts.
    reason = self._world.broadcast(
      'elastic/stop', self._world.stop.requested().encode()
    ).decode()
    if not reason.startswith(_DRAIN):
      return
    if self._snapshot_step != step:
      self._take(state, step, items)
    self._finish_snapshot()
    self._cell.set(step)
    raise DrainedError(f'Stopped after step {step}: {reason}.')

  def check_hosts(self, legal: tuple[int, ...]) -> None:
    """Tells which numbers of hosts make a mesh; refuses others.

    Raises:
      HostCountError: This generation has another number.
    """
    self._legal = legal
    if legal and len(self.plan.members) not in legal:
      raise HostCountError(
        f'{len(self.plan.members)} hosts; the mesh and the batch allow '
        f'{", ".join(map(str, legal))}.'
      )

  @property
  def job_id(self) -> str:
    """The job that this worker is of, in all its generations."""
    return self._setting.job_id

  @property
  def max_hosts(self) -> int:
    """The most hosts that the job may have."""
    return self._setting.max_hosts

  def goes_on_after(self, error: BaseException) -> bool:
    """Whether the job goes on in another generation after `error`."""
    return _end_of(error) in (
      _facts.End.CRASHED,
      _facts.End.BROKEN,
      _facts.End.DRAINED,
      _facts.End.DAMAGED,
    )

  def tell_end(self, error: BaseException | None) -> None:
    """Says how this worker ends; only the first time counts."""
    if self._ended:
      return
    self._ended = True
    status = 0 if error is None else getattr(error, 'exit_status', 1)
    self._send(
      kind='end',
      end=_end_of(error),
      text='' if error is None else f'{type(error).__name__}: {error}'[:2000],
      exit_status=status,
      legal_hosts=self._legal,
    )

  def _take(self, state: Any, step: int, items: Mapping[str, Any]) -> None:
    assert self._world is not None
    snapshots.wait(state)  # the steps that led to it are no cost of it
    started_s = time.perf_counter()
    with self._world.progress.phase('snapshot'):
      self._wait_for_copy(step)
      self._snapshot_step = step
      if self._has_buddy:
        self._is_copied.clear()

      def then(copied_s: float) -> None:
        self._cell.set(step)
        blocked_s = copied_s - started_s
        self._send(kind='snapshot', step=step, blocked_s=blocked_s)

      self._taker.take(state, step, items=items, then=then)

  def _finish_snapshot(self) -> None:
    """Waits until the last snapshot is whole, which it mostly is already."""
    if self._taker.is_busy:
      assert self._world is not None
      with self._world.progress.phase('snapshot'):
        self._taker.wait()

  def _wait_for_copy(self, step: int) -> None:
    """Lets the copy of the snapshot before this one end.

    So that with a host's memory never more than two intervals are lost,
    however slow the network is; where it is fast enough nothing is waited for.
    """
    if self._is_copied.wait(_HICCUP_S):
      return
    logging.log_every_n_seconds(
      logging.WARNING,
      'Step %d waits until the snapshot before it is copied to another host: '
      '--snapshot_steps=%d is too few for this state and network.',
      30,
      step,
      self._setting.snapshot_steps,
    )
    if not self._is_copied.wait(_COPY_WAIT_S):
      logging.warning('It is not copied after %.0f s.', _COPY_WAIT_S)

  def _beat(self, world: sync.World, over: threading.Event) -> None:
    while True:
      mark = world.progress.mark()
      self._send(
        kind='beat',
        phase=mark.phase,
        idle_s=mark.idle_s,
        is_timed=mark.is_timed,
        median_step_s=mark.median_step_s,
        legal_hosts=self._legal,
        totals_s=world.progress.totals_s(),
        first_step=self._begun_step,
      )
      if over.wait(_BEAT_S):
        return

  def _send(self, **message: Any) -> None:
    # An agent that is gone ends this process by another way.
    with contextlib.suppress(_messages.ClosedError):
      self._connection.send(message)

  def hear(self, message: _messages.Message) -> None:
    """Does what the agent asks; called in the listening thread."""
    # One that was passed over is of an earlier step.
    if message.get('kind') == 'copied':
      if message.get('step') == self._snapshot_step:
        self._is_copied.set()
      return
    wish = message.get('wish')
    if wish not in (_facts.Wish.DRAIN, _facts.Wish.PREEMPT):
      return
    reason = str(message.get('reason', ''))
    if wish == _facts.Wish.DRAIN:
      reason = f'{_DRAIN}: {reason}'
    with self._lock:
      self._asked = reason
      world = self._world
    if world is not None:
      with contextlib.suppress(errors.SyncError):
        world.stop.ask(reason)


_worker: Worker | None = None


def current() -> Worker:
  """The worker that this process is."""
  assert _worker is not None, 'not attached to an agent'
  return _worker


@contextlib.contextmanager
def attached() -> Iterator[Worker]:
  """Waits for a plan and is its worker for the time of the block.

  To be called when everything that needs no device is loaded.
  """
  global _worker
  told = setting()
  processes.end_with_parent(signal.SIGKILL)
  os.set_inheritable(told.fd, False)
  secret = os.environ[SECRET_VARIABLE].encode()
  connection = _messages.call(
    socket.socket(fileno=told.fd), secret, timeout_s=_HANDSHAKE_S
  )
  connection.send({'kind': 'ready'})
  _worker = Worker(connection, told, _wait_for_plan(connection), secret=secret)
  threading.Thread(
    target=_listen,
    args=(connection, _worker),
    name='elastic-listen',
    daemon=True,
  ).start()
  try:
    yield _worker
  except BaseException as error:
    _worker.tell_end(error)
    raise
  _worker.tell_end(None)


def _wait_for_plan(connection: _messages.Connection) -> _facts.Plan:
  try:
    while True:
      message, _ = connection.receive()
      if message.get('kind') == 'plan':
        return _facts.from_message(_facts.Plan, message['plan'])
  except _messages.ClosedError:
    os._exit(0)  # The agent needs no standby any more.


def _listen(connection: _messages.Connection, worker: Worker) -> None:
  try:
    while True:
      message, _ = connection.receive()
      worker.hear(message)
  except errors.PaxlikeError:
    os._exit(_ORPHAN_STATUS)


def _end_of(error: BaseException | None) -> _facts.End:
  if error is None:
    return _facts.End.FINISHED
  if isinstance(error, DrainedError):
    return _facts.End.DRAINED
  if isinstance(error, errors.PreemptedError):
    return _facts.End.PREEMPTED
  if isinstance(error, snapshots.UnreadableError):
    return _facts.End.DAMAGED
  # A peer's death makes these, be it in a save or a reader that then fails.
  passing = (
    errors.SyncError,
    _transfer.TransferError,
    HostCountError,
    jax.errors.JaxRuntimeError,
  )
  if any(isinstance(cause, passing) for cause in _causes(error)):
    return _facts.End.BROKEN
  # Any other error of ours would come again.
  is_ours = isinstance(error, errors.PaxlikeError)
  return _facts.End.FATAL if is_ours else _facts.End.CRASHED


def _causes(error: BaseException | None) -> Iterator[BaseException]:
  """An error, and what it was raised from."""
  while error is not None:
    yield error
    error = error.__cause__


def _enable_stacks(told: Setting, generation: int, rank: int) -> None:
  """SIGUSR1 writes all Python stacks, even with the interpreter stuck in C."""
  if not told.stack_dir:
    return
  with contextlib.suppress(OSError):
    os.makedirs(told.stack_dir, exist_ok=True)
    name = f'generation_{generation}_rank_{rank}.txt'
    file = open(os.path.join(told.stack_dir, name), 'w')  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
