"""Who takes part, in which generation, and from which snapshot: pure decisions.

No sockets, no clock, no files: facts and times go in, orders and events come
out, so that every race can be played in a test. All of it can be worked out
anew from what agents tell, which is why a lighthouse may be restarted.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from paxlike.core import errors
from paxlike.elastic import (
  _blame,
  _facts,
  _headway,
  _plans,
  _presence,
  _stalls,
)

_ADOPT_S = 1.5  # for agents to come back to a restarted lighthouse
_READY_WAIT_S = 30.0  # for standbys that are still importing
_START_S = 120.0  # for a worker to take up its plan
_TOGETHER_S = 15.0  # for the others, once one has ended in good order
_DRAIN_S = 300.0
_DUMP_S = 1.0
_KILL_STUCK_S = 2.0
_STOP_WITHOUT_WORKERS_S = 10.0

_ORDERLY = frozenset(
  {_facts.End.FINISHED, _facts.End.PREEMPTED, _facts.End.DRAINED}
)

Event = dict[str, Any]


class Membership:
  """Decides for one job.

  Attributes:
    order: What all agents are to do; None until the first look has decided.
  """

  def __init__(self, policy: _facts.Policy, *, now_s: float):
    self.order: _facts.Order | None = None
    self._policy = policy
    self._presence = _presence.Presence(silence_s=policy.silence_s)
    self._started_s = now_s
    self._since_s = now_s
    self._plan: _facts.Plan | None = None
    self._headway = _headway.Headway()
    self._fault: _blame.Fault | None = None  # not told yet
    self._fault_s: float | None = None
    self._last_count = 0
    self._bad: set[tuple[int, int]] = set()
    self._legal: frozenset[int] = frozenset()
    self._stall: _stalls.Stall | None = None
    self._stall_s = 0.0
    self._stop_asked_s: float | None = None
    self._together_s: float | None = None
    self._hold_told = ''
    self._events: list[Event] = []

  # --- what happens

  def hear(self, agent: _facts.Agent, *, now_s: float) -> None:
    """Takes note of all that an agent tells."""
    if self._presence.hear(agent, now_s=now_s):
      self._tell('host joined', agent=agent.name, host=agent.host)
    if agent.plan is not None:
      known = self._plan
      if known is None or known.generation < agent.plan.generation:
        self._plan = agent.plan
    if agent.worker is not None and agent.worker.legal_hosts:
      self._legal = frozenset(agent.worker.legal_hosts)

  def close(self, name: str, *, now_s: float) -> None:
    """Takes note that an agent's connection has ended."""
    if self.order is not None and self.order.plan is not None:
      self._note_progress(self.order.plan, now_s)  # its last words
    self._presence.close(name, now_s=now_s)

  def take_events(self) -> list[Event]:
    """What has happened since the last call."""
    events, self._events = self._events, []
    return events

  @property
  def done_step(self) -> int:
    """Steps that all workers of the generation have done; -1 if none."""
    return self._headway.done_step

  @property
  def agents(self) -> dict[str, _facts.Agent]:
    """What is known of each agent that is there, by name."""
    return self._presence.agents

  def workers(self) -> list[tuple[_facts.Agent, _facts.Worker]]:
    """The workers of the current generation that are known, by rank."""
    if self.order is None or self.order.plan is None:
      return []
    return self._presence.workers(self.order.plan)

  # --- decisions

  def look(self, *, now_s: float) -> _facts.Order | None:
    """Decides what is to be done now."""
    for name, how in self._presence.forget_lost(now_s=now_s).items():
      self._tell('host lost', agent=name, how=how)
    if self.order is None:
      if now_s - self._started_s < _ADOPT_S:
        return None
      self._adopt(now_s)
    assert self.order is not None
    if any(agent.wants_stop for agent in self.agents.values()):
      self._stop_asked_s = self._stop_asked_s or now_s
    if self.order.wish is _facts.Wish.HOLD:
      if self._settle(now_s):
        self._form_if_possible(now_s)
    elif self.order.wish is not _facts.Wish.END:
      self._watch(now_s)
    self._release()
    return self.order

  def _adopt(self, now_s: float) -> None:
    """The first decision: nothing runs yet, or this is a restart."""
    if self._plan is None:
      self._hold(0, now_s)
      return
    plan = self._plan
    self._presence.begin(plan)
    self._headway.begin(plan.restored_step, is_adopted=True)
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
    self._stall = None

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
    self._note_progress(order.plan, now_s)
    if self._watch_ends(order.plan, now_s) or self._watch_stall(now_s):
      return
    wish, reason = self._wanted(order.plan, now_s)
    if order.wish is _facts.Wish.RUN and wish is not order.wish:
      self._set(wish, now_s, plan=order.plan, reason=reason)
      self._tell(str(wish), reason=reason)
    elif order.wish is _facts.Wish.DRAIN and wish is _facts.Wish.PREEMPT:
      return  # the next generation will be preempted
    elif order.wish is not _facts.Wish.RUN and now_s - self._since_s > _DRAIN_S:
      self._give_up(f'{order.wish} took over {_DRAIN_S:.0f} s', now_s)

  def _note_progress(self, plan: _facts.Plan, now_s: float) -> None:
    steps = [worker.step for _, worker in self.workers()]
    if self._headway.note(steps, num_members=len(plan.members)):
      since_s = None if self._fault_s is None else now_s - self._fault_s
      self._tell('first step', step=min(steps), since_detected_s=since_s)
      self._fault_s = None
    if self._headway.has_gained(self._policy.snapshot_steps):
      self._presence.did_well(plan.members)

  def _watch_ends(self, plan: _facts.Plan, now_s: float) -> bool:
    """Looks for workers that ended; whether that changed the order."""
    assert self.order is not None
    workers = {agent.name: worker for agent, worker in self.workers()}
    ends = {name: worker.end for name, worker in workers.items() if worker.end}
    lost = self._presence.lost(plan)
    if self._is_fatal(workers.values()):
      return True
    if set(ends.values()) & _ORDERLY:
      return self._end_together(plan, ends, lost, now_s)
    if crashed := [name for name in ends if name not in lost]:
      # Who waited for a stuck worker ends with it and is no culprit.
      stuck = [name for name in crashed if name in self.order.stuck]
      self._give_up('a worker ended', now_s, named=stuck)
    elif lost:
      self._give_up('a host was lost', now_s)
    elif now_s - self._since_s > _START_S and len(workers) < len(plan.members):
      missing = [name for name in plan.members if name not in workers]
      self._give_up('a worker did not start', now_s, named=missing)
    else:
      return False
    return True

  def _is_fatal(self, workers: Iterable[_facts.Worker]) -> bool:
    """Ends the job if one of them ended with what would come again."""
    for worker in workers:
      if worker.end is _facts.End.FATAL:
        self._end(worker.exit_status, worker.text)
        return True
    return False

  def _end_together(
    self,
    plan: _facts.Plan,
    ends: dict[str, _facts.End],
    lost: list[str],
    now_s: float,
  ) -> bool:
    """Some workers have ended in good order, and the others should too."""
    assert self.order is not None
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
      self._give_up('a worker ended while all were to stop', now_s)
    else:
      self._fault_s = now_s
      self._tell('stopped together', step=self.done_step)
      self._hold(self.order.generation, now_s, self.order.reason)
    return True

  def _give_up(
    self, what: str, now_s: float, *, named: Sequence[str] = ()
  ) -> None:
    """Gives up the generation; `named` are the cause, if that is known."""
    assert self.order is not None
    assert self.order.plan is not None
    self._fault_s = now_s if self._fault_s is None else self._fault_s
    self._headway.num_futile += 1
    self._fault = _blame.Fault(
      what=what,
      plan=self.order.plan,
      until_s=now_s + _READY_WAIT_S,  # who is waited for till then anyway
      named=tuple(named),
    )
    self._hold(self.order.generation, now_s, what)

  def _settle(self, now_s: float) -> bool:
    """Says what a fault was, once that is known; whether the job goes on."""
    fault = self._fault
    if fault is None:
      return True
    workers = {a.name: w for a, w in self._presence.workers(fault.plan)}
    verdict = _blame.judge(
      fault, workers, lost=self._presence.lost(fault.plan), now_s=now_s
    )
    if verdict is None:
      return False
    self._fault = None
    reason = verdict.in_words(workers)
    agents, step = list(verdict.culprits), self.done_step
    self._tell('fault', what=reason, agents=agents, step=step)
    if self._is_fatal(workers.values()):
      return False
    for name in verdict.failed:
      self._presence.blame_worker(name, now_s=now_s, why=workers[name].text)
    if fault.plan.restored and any(
      w.end is _facts.End.DAMAGED for w in workers.values()
    ):
      self._bad.add(fault.plan.restored)
    if self._headway.num_futile > self._policy.max_futile:
      self._end(
        errors.EXIT_FAILED,
        f'{self._headway.num_futile} generations in a row failed without a new '
        f'step; the last: {reason}',
      )
      return False
    return True

  def _watch_stall(self, now_s: float) -> bool:
    """Looks for workers that are alive but stuck.

    Stacks first; then the stuck worker is ended, and what follows is what
    follows the death of any worker.
    """
    assert self.order is not None
    if self._stall is None:
      self._stall = _stalls.find(self.workers(), self._policy)
      if self._stall is None:
        return False
      self._stall_s = now_s
      for name in self._stall.culprits:
        self._presence.blame(name, now_s=now_s, why=self._stall.what)
      self.order = dataclasses.replace(self.order, dump=True)
      self._tell(
        'stuck', what=self._stall.what, agents=list(self._stall.culprits)
      )
      return True
    stall, since_s = self._stall, now_s - self._stall_s
    if since_s < _DUMP_S:
      return True
    if stall.culprits and since_s < _DUMP_S + _KILL_STUCK_S:
      self.order = dataclasses.replace(
        self.order, stuck=stall.culprits, reason=stall.what
      )
      return True
    self._give_up(stall.what, now_s, named=stall.culprits)
    return True

  def _wanted(self, plan: _facts.Plan, now_s: float) -> tuple[_facts.Wish, str]:
    """Whether this generation should go on."""
    if self._stop_asked_s is not None:
      return _facts.Wish.PREEMPT, 'asked to stop'
    for name in plan.members:
      agent = self.agents.get(name)
      if agent is not None and agent.is_leaving:
        return _facts.Wish.DRAIN, f'host {name} was asked to go'
    spare = [a for a in self._candidates(now_s) if a.name not in plan.members]
    most = self._most_hosts(len(plan.members) + len(spare))
    # All begin anew: the pause is short only if all are warm.
    if most > len(plan.members) and self._presence.are_warm(plan.members):
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
    released = _plans.released(self.agents.values(), order.plan)
    if released != order.released:
      self.order = dataclasses.replace(order, released=released)

  # --- between generations

  def _candidates(self, now_s: float) -> list[_facts.Agent]:
    """Who may be a member: a host that keeps dying only if it is needed."""
    ready = self._presence.ready()
    steady, kept_out = self._presence.told_apart(ready, now_s=now_s)
    for fields in kept_out:
      self._tell('host kept out', **fields)
    agents = self.agents.values()
    at_work = [a for a in agents if a.worker and a.worker.end is None]
    most = self._most_hosts(len(steady) + len(at_work))
    return steady if most >= self._policy.min_hosts else ready

  def _most_hosts(self, available: int) -> int:
    return _plans.most_hosts(
      available, most=self._policy.max_hosts, legal=self._legal
    )

  def _form_if_possible(self, now_s: float) -> None:
    assert self.order is not None
    candidates = self._candidates(now_s)
    waited_s = now_s - self._since_s
    if (
      self._stop_asked_s is not None
      and now_s - self._stop_asked_s > _STOP_WITHOUT_WORKERS_S
    ):
      self._end(errors.EXIT_PREEMPTED, 'stopped on request while it held')
      return
    if self._presence.all_broken:
      self._end(errors.EXIT_FAILED, _plans.NO_WORKERS)
      return
    count = self._most_hosts(len(candidates))
    if count < self._policy.min_hosts:
      self._tell_hold(
        _plans.too_few(
          len(candidates), least=self._policy.min_hosts, legal=self._legal
        )
      )
      return
    # One that is to be waited for: neither a candidate nor out of question.
    others = self._presence.may_come({a.name for a in candidates})
    if others and waited_s < _READY_WAIT_S:
      return
    before = self._last_count
    if _plans.is_worth_waiting(self._policy, count, waited_s, before=before):
      return
    self._form(candidates, count, now_s)

  def _tell_hold(self, why: str) -> None:
    if self._hold_told != why:
      self._hold_told = why
      self._tell('hold', reason=why)

  def _form(
    self, candidates: list[_facts.Agent], count: int, now_s: float
  ) -> None:
    assert self.order is not None
    agents = self.agents.values()
    members = _plans.members(
      candidates, count, before=self._plan.members if self._plan else ()
    )
    sources = _plans.choose_snapshot(agents, without=self._bad)
    plan = _plans.make(
      members,
      generation=_plans.next_generation(agents, after=self.order.generation),
      sources=sources,
    )
    self._plan = plan
    self._presence.begin(plan)
    self._last_count = count
    lost = self._headway.lost(plan.restored_step) if sources else None
    self._headway.begin(plan.restored_step)
    self._set(_facts.Wish.RUN, now_s, plan=plan)
    self._tell(
      'formed',
      n=count,
      members=list(plan.members),
      snapshot_step=plan.restored_step,
      steps_lost=lost,
      since_detected_s=None if self._fault_s is None else now_s - self._fault_s,
    )

  def _tell(self, event: str, **fields: Any) -> None:
    generation = self.order.generation if self.order else 0
    self._events.append({'event': event, 'generation': generation, **fields})
