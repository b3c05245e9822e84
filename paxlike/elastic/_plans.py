"""Who is to take part in a generation, and what it goes on from."""

import collections
from collections.abc import Collection, Iterable, Sequence

from paxlike.elastic import _facts

NO_WORKERS = (
  'no host can start a worker: each ends before it is ready, with an error '
  'that is printed where its agent runs'
)


def most_hosts(available: int, *, most: int, legal: Collection[int]) -> int:
  """The most hosts that a mesh can be laid over; 0 if there is no such number.

  Args:
    available: How many there are.
    most: How many the job may have.
    legal: The numbers that make a mesh; empty if all do.
  """
  wanted = min(available, most)
  if not legal:
    return wanted
  return max((n for n in legal if n <= wanted), default=0)


def is_worth_waiting(
  policy: _facts.Policy, count: int, waited_s: float, *, before: int
) -> bool:
  """Whether more than `count` hosts are waited for; `before` there were."""
  if before == 0:
    return count < policy.max_hosts and waited_s < policy.start_wait_s
  return count < before and waited_s < policy.replacement_wait_s


def too_few(num_ready: int, *, least: int, legal: Collection[int]) -> str:
  """Why no generation is formed, in words."""
  if not legal:
    return f'{num_ready} hosts are ready, {least} are needed'
  return (
    f'{num_ready} hosts are ready; the mesh can be laid over {sorted(legal)}, '
    f'at least {least} are asked for'
  )


def members(
  candidates: Iterable[_facts.Agent], count: int, *, before: Sequence[str]
) -> list[_facts.Agent]:
  """Chooses members: who was there before stays, in the same order."""
  ranks = {name: rank for rank, name in enumerate(before)}
  return sorted(
    candidates, key=lambda a: (ranks.get(a.name, len(ranks)), a.name)
  )[:count]


def next_generation(agents: Iterable[_facts.Agent], *, after: int) -> int:
  """A number that nothing on any host has had."""
  used = [after]
  for agent in agents:
    used += [piece.generation for piece in agent.pieces]
    if agent.worker is not None:
      used.append(agent.worker.generation)
  return 1 + max(used)


def make(
  chosen: Sequence[_facts.Agent],
  *,
  generation: int,
  sources: tuple[_facts.Source, ...],
) -> _facts.Plan:
  """The plan of a generation: the next rank's host is each one's buddy."""
  count = len(chosen)
  return _facts.Plan(
    generation=generation,
    members=tuple(agent.name for agent in chosen),
    coordinator=f'{chosen[0].host}:{chosen[0].port}',
    buddies=tuple(
      chosen[(rank + 1) % count].address if count > 1 else ''
      for rank in range(count)
    ),
    sources=sources,
  )


def released(
  agents: Iterable[_facts.Agent], plan: _facts.Plan
) -> tuple[str, ...]:
  """Hosts that were asked to go, and whose memory nobody needs any more."""
  gone = (a.name for a in agents if a.is_leaving and a.name not in plan.members)
  return tuple(sorted(gone))


def choose_snapshot(
  agents: Iterable[_facts.Agent], *, without: Collection[tuple[int, int]]
) -> tuple[_facts.Source, ...]:
  """The newest snapshot of which every piece is in some host's memory.

  Args:
    agents: All hosts whose memory can be reached.
    without: (step, generation) of snapshots that could not be read.

  Returns:
    Where to have each piece, by process; empty if no snapshot is whole.
  """
  found: dict[tuple[int, int, int], dict[int, _facts.Source]] = (
    collections.defaultdict(dict)
  )
  for agent in sorted(agents, key=lambda a: a.name):
    for piece in agent.pieces:
      key = (piece.step, piece.generation, piece.count)
      source = _facts.Source(piece=piece, address=agent.address)
      found[key].setdefault(piece.process, source)
  for key in sorted(found, reverse=True):
    sources = found[key]
    if key[:2] not in without and len(sources) == key[2]:
      return tuple(sources[process] for process in sorted(sources))
  return ()
