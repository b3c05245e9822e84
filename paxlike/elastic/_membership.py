"""Who takes part, in which generation, and from which snapshot: pure decisions.

No sockets, no clock, no files: facts and times go in, orders and events come
out, so that every race can be played in a test. All of it can be worked out
anew from what agents tell, which is why a lighthouse may be restarted.
"""

import collections
import dataclasses
from typing import Any

from paxlike.core import errors
from paxlike.elastic import _facts

_ADOPT_S = 1.5  # for agents to come back to a restarted lighthouse
_RECONNECT_S = 0.5  # before a closed connection is a lost host
_READY_WAIT_S = 30.0  # for standbys that are still importing
_START_S = 120.0  # for a worker to take up its plan
_TOGETHER_S = 15.0  # for the others, once one has ended in good order
_DRAIN_S = 300.0
_DUMP_S = 1.0
_STOP_WITHOUT_WORKERS_S = 10.0

_ORDERLY = frozenset(
  {_facts.End.FINISHED, _facts.End.PREEMPTED, _facts.End.DRAINED}
)

Event = dict[str, Any]


class Membership:
  """Decides for one job.

  Attributes:
    order: What all agents are to do; None until the first look has decided.
    agents: What is known of each connected agent, by name.
    done_step: Steps that all workers of the generation have done; -1 if none.
  """

  def __init__(self, policy: _facts.Policy, *, now_s: float):
    self.order: _facts.Order | None = None
    self.agents: dict[str, _facts.Agent] = {}
    self._policy = policy
    self._started_s = now_s
    self._since_s = now_s
    self._heard_s: dict[str, float] = {}
    self._closed_s: dict[str, float] = {}
    self._planned: dict[str, str] = {}  # incarnations at the time of the plan
    self._plan: _facts.Plan | None = None
    self._restored_step = -1
    self.done_step = -1
    self._best_step = -1
    self._fault_s: float | None = None
    self._futile = 0
    self._last_count = 0
    self._bad: set[tuple[int, int]] = set()
    self._legal: frozenset[int] = frozenset()
    self._first_step_told = False
    self._dump_s = 0.0
    self._stall = ''
    self._stop_asked_s: float | None = None
    self._together_s: float | None = None
    self._hold_told = ''
    self._events: list[Event] = []

  # --- what happens

  def hear(self, agent: _facts.Agent, *, now_s: float) -> None:
    """Takes note of all that an agent tells."""
    name = agent.name
    if name not in self.agents:
      self._tell('host joined', agent=name, host=agent.host)
    if agent.plan is not None:
      known = self._plan
      if known is None or known.generation < agent.plan.generation:
        self._plan = agent.plan
    self.agents[name] = agent
    self._heard_s[name] = now_s
    self._closed_s.pop(name, None)
    if agent.worker is not None and agent.worker.legal_hosts:
      self._legal = frozenset(agent.worker.legal_hosts)

  def close(self, name: str, *, now_s: float) -> None:
    """Takes note that an agent's connection has ended."""
    self._closed_s.setdefault(name, now_s)

  def take_events(self) -> list[Event]:
    """What has happened since the last call."""
    events, self._events = self._events, []
    return events

  def workers(self) -> list[tuple[_facts.Agent, _facts.Worker]]:
    """The workers of the current generation that are known, by rank."""
    order = self.order
    if order is None or order.plan is None:
      return []
    found = []
    for name in order.plan.members:
      agent = self.agents.get(name)
      worker = agent.worker if agent is not None else None
      if agent and worker and worker.generation == order.generation:
        found.append((agent, worker))
    return found

  # --- decisions

  def look(self, *, now_s: float) -> _facts.Order | None:
    """Decides what is to be done now."""
    self._forget_lost(now_s)
    if self.order is None:
      if now_s - self._started_s < _ADOPT_S:
        return None
      self._adopt(now_s)
    assert self.order is not None
    if any(agent.wants_stop for agent in self.agents.values()):
      self._stop_asked_s = self._stop_asked_s or now_s
    if self.order.wish is _facts.Wish.HOLD:
      self._form_if_possible(now_s)
    elif self.order.wish is not _facts.Wish.END:
      self._watch(now_s)
    self._release()
    return self.order

  def _forget_lost(self, now_s: float) -> None:
    for name, heard_s in list(self._heard_s.items()):
      closed_s = self._closed_s.get(name)
      is_closed = closed_s is not None and now_s - closed_s >= _RECONNECT_S
      is_silent = now_s - heard_s > self._policy.silence_s
      if is_closed or is_silent:
        how = 'its connection ended' if is_closed else 'it fell silent'
        self._tell('host lost', agent=name, how=how)
        del self.agents[name], self._heard_s[name]
        self._closed_s.pop(name, None)

  def _adopt(self, now_s: float) -> None:
    """The first decision: nothing runs yet, or this is a restart."""
    if self._plan is None:
      self._hold(0, now_s)
      return
    plan = self._plan
    self._planned = {
      name: agent.incarnation for name, agent in self.agents.items()
    }
    self._restored_step = max((s.piece.step for s in plan.sources), default=-1)
    self._last_count = len(plan.members)
    self._set(_facts.Wish.RUN, now_s, plan=plan)
    # Whoever has no worker now had its time before the restart.
    self._since_s = now_s - _START_S
    self._tell('adopted', n=len(plan.members))

  def _set(
    self,
    wish: _facts.Wish,
    now_s: float,
    *,
    plan: _facts.Plan | None,
    reason: str = '',
  ) -> None:
    generation = plan.generation if plan else 0
    self.order = _facts.Order(
      wish=wish, generation=generation, plan=plan, reason=reason
    )
    self._since_s = now_s
    self._together_s = None

  def _hold(self, generation: int, now_s: float, reason: str = '') -> None:
    self.order = _facts.Order(
      wish=_facts.Wish.HOLD, generation=generation, reason=reason
    )
    self._since_s = now_s
    self._hold_told = ''

  def _end(self, exit_status: int, reason: str) -> None:
    assert self.order is not None
    self.order = _facts.Order(
      wish=_facts.Wish.END,
      generation=self.order.generation,
      exit_status=exit_status,
      reason=reason,
    )
    self._tell('end', exit_status=exit_status, reason=reason)

  # --- while a generation runs

  def _watch(self, now_s: float) -> None:
    order = self.order
    assert order is not None
    assert order.plan is not None
    self._note_progress(now_s)
    if self._watch_ends(order.plan, now_s) or self._watch_stall(now_s):
      return
    wish, reason = self._wanted(order.plan)
    if order.wish is _facts.Wish.RUN and wish is not order.wish:
      self._set(wish, now_s, plan=order.plan, reason=reason)
      self._tell(str(wish), reason=reason)
    elif order.wish is _facts.Wish.DRAIN and wish is _facts.Wish.PREEMPT:
      return  # the next generation will be preempted
    elif order.wish is not _facts.Wish.RUN and now_s - self._since_s > _DRAIN_S:
      self._fault(f'{order.wish} took over {_DRAIN_S:.0f} s', (), now_s)

  def _note_progress(self, now_s: float) -> None:
    assert self.order is not None
    assert self.order.plan is not None
    steps = [worker.step for _, worker in self.workers()]
    if len(steps) == 0:
      return
    self.done_step = max(self.done_step, min(steps))
    if len(steps) < len(self.order.plan.members):
      return
    if min(steps) > self._best_step:
      self._best_step = min(steps)
      self._futile = 0
    if not self._first_step_told and min(steps) > max(0, self._restored_step):
      self._first_step_told = True
      since_s = None if self._fault_s is None else now_s - self._fault_s
      self._tell('first step', step=min(steps), since_detected_s=since_s)
      self._fault_s = None

  def _watch_ends(self, plan: _facts.Plan, now_s: float) -> bool:
    """Looks for workers that ended; whether that changed the order."""
    workers = {agent.name: worker for agent, worker in self.workers()}
    ends = {name: worker.end for name, worker in workers.items() if worker.end}
    lost = [
      name
      for name in plan.members
      if name not in self.agents
      or self._planned.get(name) != self.agents[name].incarnation
    ]
    for name, end in ends.items():
      if end is _facts.End.FATAL:
        self._end(workers[name].exit_status, workers[name].text)
        return True
    if set(ends.values()) & _ORDERLY:
      return self._end_together(plan, ends, lost, now_s)
    if crashed := [name for name in ends if name not in lost]:
      if _facts.End.DAMAGED in ends.values() and plan.sources:
        piece = plan.sources[0].piece
        self._bad.add((piece.step, piece.generation))
      self._fault('a worker ended', crashed, now_s)
    elif lost:
      self._fault('a host was lost', lost, now_s)
    elif now_s - self._since_s > _START_S and len(workers) < len(plan.members):
      missing = [name for name in plan.members if name not in workers]
      self._fault('a worker did not start', missing, now_s)
    else:
      return False
    return True

  def _end_together(
    self,
    plan: _facts.Plan,
    ends: dict[str, _facts.End],
    lost: list[str],
    now_s: float,
  ) -> bool:
    """Some workers have ended in good order, and the others should too."""
    self._together_s = self._together_s or now_s
    is_late = now_s - self._together_s > _TOGETHER_S
    if len(ends.keys() | set(lost)) < len(plan.members) and not is_late:
      return False
    # Who has finished or was preempted has met all others at the end.
    if _facts.End.FINISHED in ends.values():
      self._end(errors.EXIT_DONE, 'all steps are done')
    elif _facts.End.PREEMPTED in ends.values():
      self._end(errors.EXIT_PREEMPTED, 'stopped on request')
    elif lost or is_late or set(ends.values()) != {_facts.End.DRAINED}:
      self._fault('a worker ended while all were to stop', lost, now_s)
    else:
      self._planned_hold(now_s)
    return True

  def _planned_hold(self, now_s: float) -> None:
    assert self.order is not None
    self._fault_s = now_s
    self._tell('stopped together', step=self.done_step)
    self._hold(self.order.generation, now_s, self.order.reason)

  def _fault(
    self, what: str, culprits: tuple[str, ...] | list[str], now_s: float
  ) -> None:
    """Gives up the generation."""
    assert self.order is not None
    self._fault_s = now_s if self._fault_s is None else self._fault_s
    self._futile += 1
    texts = []
    for name in culprits:
      agent = self.agents.get(name)
      worker = agent.worker if agent else None
      text = f'{name}: {worker.text}' if worker and worker.text else name
      texts.append(text)
    reason = f'{what}: {"; ".join(texts)}' if texts else what
    self._tell('fault', what=reason, agents=list(culprits))
    generation = self.order.generation
    if self._futile > self._policy.max_futile:
      self._end(
        errors.EXIT_FAILED,
        f'{self._futile} generations in a row failed without a new step; the '
        f'last: {reason}',
      )
      return
    self._hold(generation, now_s, reason)

  def _watch_stall(self, now_s: float) -> bool:
    """Looks for workers that are alive but stuck."""
    assert self.order is not None
    workers = self.workers()
    if self._stall:
      if now_s - self._dump_s < _DUMP_S:
        return True
      stall, self._stall = self._stall, ''
      self._fault(stall, (), now_s)
      return True
    self._stall = find_stall(workers, self._policy)
    if not self._stall:
      return False
    self._dump_s = now_s
    self.order = dataclasses.replace(self.order, dump=True)
    self._tell('stuck', what=self._stall)
    return True

  def _wanted(self, plan: _facts.Plan) -> tuple[_facts.Wish, str]:
    """Whether this generation should go on."""
    if self._stop_asked_s is not None:
      return _facts.Wish.PREEMPT, 'asked to stop'
    for name in plan.members:
      agent = self.agents.get(name)
      if agent is not None and agent.is_leaving:
        return _facts.Wish.DRAIN, f'host {name} was asked to go'
    spare = [a for a in self._candidates() if a.name not in plan.members]
    if self._legal_count(len(plan.members) + len(spare)) > len(plan.members):
      names = ', '.join(agent.name for agent in spare)
      return _facts.Wish.DRAIN, f'host {names} joins'
    return _facts.Wish.RUN, ''

  def _release(self) -> None:
    """Lets hosts go whose memory nobody needs any more."""
    order = self.order
    assert order is not None
    if order.plan is None or order.wish is not _facts.Wish.RUN:
      return
    workers = self.workers()
    if len(workers) < len(order.plan.members) or any(
      worker.step < 0 for _, worker in workers
    ):
      return
    released = tuple(
      sorted(
        agent.name
        for agent in self.agents.values()
        if agent.is_leaving and agent.name not in order.plan.members
      )
    )
    if released != order.released:
      self.order = dataclasses.replace(order, released=released)

  # --- between generations

  def _candidates(self) -> list[_facts.Agent]:
    return [
      agent
      for name, agent in sorted(self.agents.items())
      if agent.is_ready
      and not agent.is_leaving
      and not agent.is_broken
      and name not in self._closed_s
      and (agent.worker is None or agent.worker.end is not None)
    ]

  def _legal_count(self, available: int) -> int:
    """The most hosts, up to `available`, that the mesh can be laid over."""
    most = min(available, self._policy.max_hosts)
    if not self._legal:
      return most
    return max((n for n in self._legal if n <= most), default=0)

  def _form_if_possible(self, now_s: float) -> None:
    assert self.order is not None
    candidates = self._candidates()
    waited_s = now_s - self._since_s
    pending = [
      agent
      for agent in self.agents.values()
      if not agent.is_leaving
      and not agent.is_broken
      and agent not in candidates
    ]
    if (
      self._stop_asked_s is not None
      and now_s - self._stop_asked_s > _STOP_WITHOUT_WORKERS_S
    ):
      self._end(errors.EXIT_PREEMPTED, 'stopped on request while it held')
      return
    count = self._legal_count(len(candidates))
    if count < self._policy.min_hosts:
      self._tell_hold(
        f'{len(candidates)} hosts are ready, {self._policy.min_hosts} are '
        'needed'
        if not self._legal
        else f'{len(candidates)} hosts are ready; the mesh can be laid over '
        f'{sorted(self._legal)}, at least {self._policy.min_hosts} are asked '
        'for'
      )
      return
    if pending and waited_s < _READY_WAIT_S:
      return
    if self._is_worth_waiting(count, waited_s):
      return
    self._form(candidates[:], count, now_s)

  def _is_worth_waiting(self, count: int, waited_s: float) -> bool:
    if self._last_count == 0:
      wanted, wait_s = self._policy.max_hosts, self._policy.start_wait_s
    else:
      wanted, wait_s = self._last_count, self._policy.replacement_wait_s
    return count < wanted and waited_s < wait_s

  def _tell_hold(self, why: str) -> None:
    if self._hold_told != why:
      self._hold_told = why
      self._tell('hold', reason=why)

  def _form(
    self, candidates: list[_facts.Agent], count: int, now_s: float
  ) -> None:
    assert self.order is not None
    before = self._plan.members if self._plan else ()
    order = {name: rank for rank, name in enumerate(before)}
    candidates.sort(key=lambda a: (order.get(a.name, len(order)), a.name))
    members = candidates[:count]
    sources = choose_snapshot(list(self.agents.values()), without=self._bad)
    generation = 1 + max(
      [
        self.order.generation,
        *(a.worker.generation for a in self.agents.values() if a.worker),
        *(p.generation for a in self.agents.values() for p in a.pieces),
      ]
    )
    plan = _facts.Plan(
      generation=generation,
      members=tuple(agent.name for agent in members),
      coordinator=f'{members[0].host}:{members[0].port}',
      buddies=tuple(
        members[(rank + 1) % count].address if count > 1 else ''
        for rank in range(count)
      ),
      sources=sources,
    )
    self._plan = plan
    self._planned = {agent.name: agent.incarnation for agent in members}
    self._last_count = count
    self._restored_step = max((s.piece.step for s in sources), default=-1)
    self._first_step_told = False
    self._set(_facts.Wish.RUN, now_s, plan=plan)
    self._tell(
      'formed',
      n=count,
      members=list(plan.members),
      snapshot_step=self._restored_step,
      steps_lost=max(0, self.done_step - self._restored_step)
      if sources
      else None,
      since_detected_s=None if self._fault_s is None else now_s - self._fault_s,
    )
    self.done_step = -1

  def _tell(self, event: str, **fields: Any) -> None:
    generation = self.order.generation if self.order else 0
    self._events.append({'event': event, 'generation': generation, **fields})


def choose_snapshot(
  agents: list[_facts.Agent], *, without: set[tuple[int, int]]
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


def find_stall(
  workers: list[tuple[_facts.Agent, _facts.Worker]], policy: _facts.Policy
) -> str:
  """Who is stuck, in words; '' if nobody is.

  A worker that says nothing at all is stuck whatever it was doing; else all
  must be due a step and overdue.
  """
  if not workers:
    return ''
  silent = [
    f'{agent.name} (rank {worker.rank}, pid {worker.pid}) has said nothing '
    f'for {worker.silent_s:.0f} s'
    for agent, worker in workers
    if worker.end is None and worker.silent_s > policy.watchdog_s
  ]
  if silent:
    return '; '.join(silent)
  limit_s = max(
    policy.watchdog_s,
    policy.watchdog_factor * max(w.median_step_s for _, w in workers),
  )
  if not all(w.is_timed and w.idle_s > limit_s for _, w in workers):
    return ''
  places = collections.Counter((w.step, w.phase) for _, w in workers)
  usual = places.most_common(1)[0][0]
  odd = [
    f'{agent.name} (rank {worker.rank}, pid {worker.pid}) is at step '
    f'{worker.step}, phase {worker.phase!r}'
    for agent, worker in workers
    if (worker.step, worker.phase) != usual
  ]
  where = f'step {usual[0]}, phase {usual[1]!r}'
  if not odd:
    return f'no step for {limit_s:.0f} s: all are at {where}'
  return (
    f'no step for {limit_s:.0f} s: {"; ".join(odd)}; the others are at {where}'
  )
