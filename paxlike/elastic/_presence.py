"""Which hosts are there, and for how long one that keeps dying is kept out."""

import collections
import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

from paxlike.elastic import _facts

_RECONNECT_S = 0.5  # before a closed connection is a lost host
# A first failure costs a host nothing; from the second on it is kept out for
# 1, 2, 4, ... seconds, and what lies further back than this is forgotten.
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 300.0
_FORGIVEN_S = 60.0
_FORGIVEN_FACTOR = 4.0
# A worker may end once or twice anywhere; this often at one place has a reason.
# To try again costs all others a pause, and takes them longer than a second.
_MOST_AT_ONE_PLACE = 3
_FIRST_DELAY_OF_WORKERS_S = 30.0


@dataclasses.dataclass(frozen=True)
class _Record:
  """How often a host has failed of late, and how long it is kept out for it."""

  count: int
  last_s: float
  delay_s: float
  why: str

  @property
  def forgiven_s(self) -> float:
    longest_s = max(_FORGIVEN_S, _FORGIVEN_FACTOR * self.delay_s)
    return self.last_s + longest_s


def _delay_s(first_s: float, num_before: int) -> float:
  """Twice as long each time."""
  if num_before < 0:
    return 0.0
  return min(first_s * 2.0 ** min(num_before, 30), _LONGEST_DELAY_S)


class Presence:
  """The agents of a job.

  Attributes:
    agents: What is known of each that is there, by name.
  """

  def __init__(self, *, silence_s: float):
    self.agents: dict[str, _facts.Agent] = {}
    self._silence_s = silence_s
    self._heard_s: dict[str, float] = {}
    self._closed_s: dict[str, float] = {}
    self._records: dict[str, _Record] = {}
    self._in_a_row: collections.Counter[str] = collections.Counter()
    self._planned: dict[str, str] = {}  # incarnations at the time of the plan
    self._kept_out: set[str] = set()

  def hear(self, agent: _facts.Agent, *, now_s: float) -> bool:
    """Takes note of all that an agent tells; whether it is new."""
    known = self.agents.get(agent.name)
    self.agents[agent.name] = agent
    self._heard_s[agent.name] = now_s
    self._closed_s.pop(agent.name, None)
    if known is not None and known.incarnation != agent.incarnation:
      self.blame(agent.name, now_s=now_s, why='its agent was started again')
    return known is None

  def close(self, name: str, *, now_s: float) -> None:
    """Takes note that an agent's connection has ended."""
    self._closed_s.setdefault(name, now_s)

  @property
  def all_broken(self) -> bool:
    """Whether there are hosts, and none of them can start a worker."""
    agents = self.agents.values()
    return bool(agents) and all(agent.is_broken for agent in agents)

  def ready(self) -> list[_facts.Agent]:
    """Those that could begin a generation now."""
    return [
      agent
      for name, agent in sorted(self.agents.items())
      if agent.is_ready
      and not agent.is_leaving
      and not agent.is_broken
      and name not in self._closed_s
      and (agent.worker is None or agent.worker.end is not None)
    ]

  def are_warm(self, names: Iterable[str]) -> bool:
    """Whether all have a standby, as far as they can have one."""
    agents = [self.agents[name] for name in names if name in self.agents]
    return all(agent.is_ready or agent.is_broken for agent in agents)

  def may_come(self, without: Collection[str]) -> set[str]:
    """Names of all others that may be ready before long."""
    return {
      name
      for name, agent in self.agents.items()
      if not agent.is_leaving
      and not agent.is_broken
      and name not in without
      and name not in self._kept_out
    }

  def begin(self, plan: _facts.Plan) -> None:
    """Remembers who begins a generation."""
    self._planned = {
      name: self.agents[name].incarnation
      for name in plan.members
      if name in self.agents
    }

  def lost(self, plan: _facts.Plan) -> list[str]:
    """Members of the generation that are gone, or were started again."""
    return [
      name
      for name in plan.members
      if name not in self.agents
      or self._planned.get(name) != self.agents[name].incarnation
    ]

  def workers(
    self, plan: _facts.Plan
  ) -> list[tuple[_facts.Agent, _facts.Worker]]:
    """The workers of a generation that are known, by rank."""
    agents = [self.agents[name] for name in plan.members if name in self.agents]
    return [
      (agent, agent.worker)
      for agent in agents
      if agent.worker and agent.worker.generation == plan.generation
    ]

  def forget_lost(self, *, now_s: float) -> dict[str, str]:
    """Forgets who is gone; how, by name."""
    lost = {}
    for name, heard_s in list(self._heard_s.items()):
      closed_s = self._closed_s.get(name)
      if closed_s is not None and now_s - closed_s >= _RECONNECT_S:
        lost[name] = 'its connection ended'
      elif now_s - heard_s > self._silence_s:
        lost[name] = 'it fell silent'
      else:
        continue
      if not self.agents[name].is_leaving:
        self.blame(name, now_s=now_s, why=lost[name])
      del self.agents[name], self._heard_s[name]
      self._kept_out.discard(name)
      self._closed_s.pop(name, None)
    return lost

  def blame(self, name: str, *, now_s: float, why: str) -> None:
    """Counts a failure that is this host's own."""
    before = self._records.get(name)
    is_first = before is None or now_s > before.forgiven_s
    count = 1 if is_first or before is None else before.count + 1
    delay_s = _delay_s(_FIRST_DELAY_S, count - 2)
    self._records[name] = _Record(count, now_s, delay_s, why)

  def blame_worker(self, name: str, *, now_s: float, why: str) -> None:
    """Counts a worker that ended by itself.

    Any may do so once or twice; one that does it again and again, with no
    snapshot in between, does not do it by chance.
    """
    self._in_a_row[name] += 1
    count = self._in_a_row[name]
    if count >= _MOST_AT_ONE_PLACE:
      delay_s = _delay_s(_FIRST_DELAY_OF_WORKERS_S, count - _MOST_AT_ONE_PLACE)
      self._records[name] = _Record(count, now_s, delay_s, why)

  def did_well(self, names: Iterable[str]) -> None:
    """Takes note that these have done what is not lost any more."""
    for name in names:
      self._in_a_row.pop(name, None)

  def failures(self, name: str) -> int:
    """How often a host has failed of late."""
    record = self._records.get(name)
    return record.count if record is not None else 0

  def told_apart(
    self, agents: Iterable[_facts.Agent], *, now_s: float
  ) -> tuple[list[_facts.Agent], list[dict[str, Any]]]:
    """Those that are not kept out, and who has just come to be, and why."""
    steady, told = [], []
    for agent in agents:
      left_s = self.kept_out_s(agent.name, now_s=now_s)
      if left_s == 0.0:
        steady.append(agent)
        self._kept_out.discard(agent.name)
      elif agent.name not in self._kept_out:
        self._kept_out.add(agent.name)
        record = self._records[agent.name]
        told.append(
          {
            'agent': agent.name,
            'for_s': left_s,
            'failures': record.count,
            'why': record.why,
          }
        )
    return steady, told

  def kept_out_s(self, name: str, *, now_s: float) -> float:
    """For how much longer a host is left out where others suffice."""
    record = self._records.get(name)
    if record is None:
      return 0.0
    return max(0.0, record.last_s + record.delay_s - now_s)
