"""Which hosts are there, and for how long one that keeps dying is kept out."""

import dataclasses
from collections.abc import Collection, Iterable

from paxlike.elastic import _facts

_RECONNECT_S = 0.5  # before a closed connection is a lost host
# A first failure costs a host nothing; from the second on it is kept out for
# 1, 2, 4, ... seconds, and what lies further back than this is forgotten.
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 300.0
_FORGIVEN_S = 60.0
_FORGIVEN_FACTOR = 4.0


@dataclasses.dataclass(frozen=True)
class _Record:
  count: int
  last_s: float

  @property
  def delay_s(self) -> float:
    if self.count < 2:
      return 0.0
    doubled = _FIRST_DELAY_S * 2.0 ** min(self.count - 2, 30)
    return min(doubled, _LONGEST_DELAY_S)

  @property
  def forgiven_s(self) -> float:
    longest_s = max(_FORGIVEN_S, _FORGIVEN_FACTOR * self.delay_s)
    return self.last_s + longest_s


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

  def hear(self, agent: _facts.Agent, *, now_s: float) -> bool:
    """Takes note of all that an agent tells; whether it is new."""
    known = self.agents.get(agent.name)
    self.agents[agent.name] = agent
    self._heard_s[agent.name] = now_s
    self._closed_s.pop(agent.name, None)
    if known is not None and known.incarnation != agent.incarnation:
      self.blame(agent.name, now_s=now_s)
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
      if not agent.is_leaving and not agent.is_broken and name not in without
    }

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
        self.blame(name, now_s=now_s)
      del self.agents[name], self._heard_s[name]
      self._closed_s.pop(name, None)
    return lost

  def blame(self, name: str, *, now_s: float) -> None:
    """Counts a failure that is this host's own."""
    before = self._records.get(name)
    is_first = before is None or now_s > before.forgiven_s
    count = 1 if is_first or before is None else before.count + 1
    self._records[name] = _Record(count, now_s)

  def failures(self, name: str) -> int:
    """How often a host has failed of late."""
    record = self._records.get(name)
    return record.count if record is not None else 0

  def kept_out_s(self, name: str, *, now_s: float) -> float:
    """For how much longer a host is left out where others suffice."""
    record = self._records.get(name)
    if record is None:
      return 0.0
    return max(0.0, record.last_s + record.delay_s - now_s)
