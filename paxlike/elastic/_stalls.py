"""Finds workers that are alive but stuck, and says which ones.

A worker that waits for another in a collective looks stuck as well: what gives
the culprit away is that it is not where the others are.
"""

import collections
import dataclasses
from collections.abc import Sequence

from paxlike.elastic import _facts

Pair = tuple[_facts.Agent, _facts.Worker]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stall:
  """No step is done any more.

  Attributes:
    what: In words, with all the evidence there is.
    culprits: Agents whose worker is stuck, which the others wait for; empty
      if nothing tells them apart.
  """

  what: str
  culprits: tuple[str, ...]


def find(workers: Sequence[Pair], policy: _facts.Policy) -> Stall | None:
  """Looks whether workers are stuck.

  One that says nothing at all is, whatever it was doing; else all must be due
  a step and overdue.
  """
  silent = [
    (agent, worker)
    for agent, worker in workers
    if worker.end is None and worker.silent_s > policy.watchdog_s
  ]
  if silent:
    what = '; '.join(
      f'{_name(agent, worker)} has said nothing for {worker.silent_s:.0f} s'
      for agent, worker in silent
    )
    return Stall(what=what, culprits=_names(silent))
  if not workers:
    return None
  limit_s = max(
    policy.watchdog_s,
    policy.watchdog_factor * max(w.median_step_s for _, w in workers),
  )
  if not all(w.is_timed and w.idle_s > limit_s for _, w in workers):
    return None
  return _told_apart(workers, f'no step for {limit_s:.0f} s')


def _told_apart(workers: Sequence[Pair], since: str) -> Stall:
  """Who is not where most of the others are, or else is behind them."""
  places = collections.Counter((w.step, w.phase) for _, w in workers)
  (usual, count), *_ = places.most_common(1)
  odd = [pair for pair in workers if (pair[1].step, pair[1].phase) != usual]
  where = f'step {usual[0]}, phase {usual[1]!r}'
  if not odd:
    return Stall(what=f'{since}: all are at {where}', culprits=())
  told = '; '.join(
    f'{_name(agent, worker)} is at step {worker.step}, phase {worker.phase!r}'
    for agent, worker in odd
  )
  what = f'{since}: {told}; the others are at {where}'
  if 2 * count <= len(workers):  # no majority: who is behind is waited for
    least, most = min(p[0] for p in places), max(p[0] for p in places)
    odd = [pair for pair in workers if pair[1].step == least < most]
  return Stall(what=what, culprits=_names(odd))


def _name(agent: _facts.Agent, worker: _facts.Worker) -> str:
  return f'{agent.name} (rank {worker.rank}, pid {worker.pid})'


def _names(pairs: Sequence[Pair]) -> tuple[str, ...]:
  return tuple(agent.name for agent, _ in pairs)
