"""What agents tell the lighthouse, and what it tells them.

Both always tell the whole: an agent all that is true of its host, the
lighthouse all that it wants. So a message that is lost, late or repeated
changes nothing, and either end may be restarted at any time.
"""

import dataclasses
import enum
import types
import typing
from typing import Any, TypeVar, cast

from paxlike.core import errors
from paxlike.elastic import _messages

_Facts = TypeVar('_Facts')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """How a job wants to be kept alive; all its agents are started with one.

  Attributes:
    min_hosts: With fewer the job holds until more come.
    max_hosts: More than this wait as spares.
    start_wait_s: How long to wait, at the very start, for `max_hosts`.
    replacement_wait_s: How long to wait for a lost host to be replaced before
      going on with fewer.
    snapshot_steps: Steps from one snapshot in memory to the next.
    watchdog_s: The least time without a step after which a worker counts as
      stuck; slow steps stretch it.
    watchdog_factor: How many median steps may pass without one.
    silence_s: After how long without a word a host counts as lost.
    max_futile: Formations in a row that may fail without a new step.
  """

  min_hosts: int = 1
  max_hosts: int = 4096
  start_wait_s: float = 30.0
  replacement_wait_s: float = 0.0
  snapshot_steps: int = 10
  watchdog_s: float = 60.0
  watchdog_factor: float = 10.0
  silence_s: float = 3.0
  max_futile: int = 5

  def __post_init__(self) -> None:
    if not 1 <= self.min_hosts <= self.max_hosts:
      raise errors.UsageError(
        f'Hosts {self.min_hosts}:{self.max_hosts}: give LEAST:MOST with '
        '1 <= LEAST <= MOST.'
      )
    for name in ('snapshot_steps', 'max_futile'):
      if getattr(self, name) < 1:
        raise errors.UsageError(f'{name} is {getattr(self, name)}, not >= 1.')
    for name in ('watchdog_s', 'watchdog_factor', 'silence_s'):
      if getattr(self, name) <= 0:
        raise errors.UsageError(f'{name} is {getattr(self, name)}, not > 0.')


class End(enum.StrEnum):
  """How a worker ended."""

  FINISHED = 'finished'  # all steps are done and saved
  DRAINED = 'drained'  # stopped at the agreed step, with a snapshot
  PREEMPTED = 'preempted'  # stopped on request, with a checkpoint
  FATAL = 'fatal'  # an error that would come again
  DAMAGED = 'damaged'  # the snapshot cannot be read
  CRASHED = 'crashed'  # an error of its own that may pass
  KILLED = 'killed'  # without a word: by a signal, say
  ABORTED = 'aborted'  # without a word by SIGABRT, which may be a peer's doing
  BROKEN = 'broken'  # an error in what it does together with others
  ALONG = 'along'  # by its agent, together with its generation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
  """One process's part of one snapshot, as one host holds it.

  Attributes:
    step: Completed steps.
    generation: In which it was taken.
    process: Whose part.
    count: Of how many processes.
    files: The names and sums of its files (checkpoint.pieces).
  """

  step: int
  generation: int
  process: int
  count: int
  files: str

  @property
  def name(self) -> str:
    """The name of its directory."""
    return (
      f's{self.step:010d}-g{self.generation:06d}-p{self.process:05d}-'
      f'n{self.count:05d}'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worker:
  """The trainer of a host in one generation.

  Attributes:
    generation: Which.
    rank: Its process index.
    pid: Its process number.
    phase: What it does.
    step: Completed steps, -1 before the first is known.
    idle_s: Seconds since the last step, or since an untimed phase ended.
    is_timed: Whether a step is due.
    median_step_s: How long recent steps took.
    silent_s: Seconds since it said anything.
    end: How it ended; None while it runs.
    text: The error that it ended with.
    exit_status: What it ended with.
    legal_hosts: The numbers of hosts that its mesh can be laid over, if it
      has said so.
  """

  generation: int
  rank: int
  pid: int
  phase: str = ''
  step: int = -1
  idle_s: float = 0.0
  is_timed: bool = False
  median_step_s: float = 0.0
  silent_s: float = 0.0
  end: End | None = None
  text: str = ''
  exit_status: int = 0
  legal_hosts: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent:
  """All that is true of one host.

  Attributes:
    name: Stable over restarts of the agent.
    incarnation: Differs after a restart.
    host: The name by which others reach it.
    address: HOST:PORT where it gives out its snapshots.
    is_ready: Whether a standby waits for a plan.
    port: A free port for the coordinator, should its worker be rank 0.
    worker: Its last worker; None before the first.
    pieces: The snapshots in its memory.
    is_leaving: Whether it was asked to go.
    wants_stop: Whether it was asked to stop the whole job.
    is_broken: Whether its standbys fail before they are ready.
    plan: The plan of its last worker; told once, to a lighthouse it meets.
  """

  name: str
  incarnation: str
  host: str
  address: str
  is_ready: bool = False
  port: int = 0
  worker: Worker | None = None
  pieces: tuple[Piece, ...] = ()
  is_leaving: bool = False
  wants_stop: bool = False
  is_broken: bool = False
  plan: 'Plan | None' = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """Where one piece of the snapshot to restore can be had."""

  piece: Piece
  address: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """One generation.

  Attributes:
    generation: Its number.
    members: Names of agents by rank.
    coordinator: HOST:PORT of rank 0.
    buddies: By rank, where its snapshots are copied to; '' for nowhere.
    sources: The snapshot to restore; none: the newest checkpoint.
  """

  generation: int
  members: tuple[str, ...]
  coordinator: str
  buddies: tuple[str, ...] = ()
  sources: tuple[Source, ...] = ()

  @property
  def restored(self) -> tuple[int, int] | None:
    """Step and generation of the snapshot; None without one."""
    if not self.sources:
      return None
    return self.sources[0].piece.step, self.sources[0].piece.generation

  @property
  def restored_step(self) -> int:
    """Completed steps of the snapshot; -1 without one."""
    return max((source.piece.step for source in self.sources), default=-1)


class Wish(enum.StrEnum):
  """What the lighthouse wants of all agents."""

  HOLD = 'hold'  # no worker of this generation or before may live
  RUN = 'run'
  DRAIN = 'drain'  # stop at an agreed step, with a snapshot
  PREEMPT = 'preempt'  # stop at an agreed step, with a checkpoint
  END = 'end'  # the job is over


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
  """All that the lighthouse wants.

  Attributes:
    wish: What.
    generation: The one that it is about.
    plan: That generation's plan where there is one.
    released: Agents that were asked to go and may now.
    dump: Whether workers shall write down their Python stacks.
    stuck: Agents whose worker is stuck and shall be ended, alone.
    exit_status: With `END`, how the job ended.
    reason: In words.
  """

  wish: Wish
  generation: int
  plan: Plan | None = None
  released: tuple[str, ...] = ()
  dump: bool = False
  stuck: tuple[str, ...] = ()
  exit_status: int = 0
  reason: str = ''


def to_message(facts: Any) -> dict[str, Any]:
  """Facts as JSON has them."""
  return dataclasses.asdict(facts)


def from_message(kind: type[_Facts], message: Any) -> _Facts:
  """Reads what `to_message` gave.

  Raises:
    MessageError: It is something else.
  """
  try:
    return _read(kind, message)
  except (TypeError, ValueError, KeyError, AttributeError) as error:
    raise _messages.MessageError(
      f'This is no {kind.__name__}: {error}.'
    ) from error


def _read(kind: Any, value: Any) -> Any:
  if isinstance(kind, types.UnionType):  # only `X | None` is used
    inner = [k for k in typing.get_args(kind) if k is not types.NoneType]
    return None if value is None else _read(inner[0], value)
  if typing.get_origin(kind) is tuple:
    if not isinstance(value, list | tuple):
      raise TypeError(f'{value!r} is no list')
    return tuple(_read(typing.get_args(kind)[0], item) for item in value)
  if dataclasses.is_dataclass(kind):
    if not isinstance(value, dict):
      raise TypeError(f'{value!r} is no object')
    hints = typing.get_type_hints(kind)
    read: Any = {name: _read(hints[name], v) for name, v in value.items()}
    return cast('Any', kind)(**read)
  if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
    return kind(value)
  if kind is float and type(value) is int:
    return float(value)
  if type(value) is not kind:
    raise TypeError(f'{value!r} is no {kind.__name__}')
  return value
