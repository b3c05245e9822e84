"""Every race of hosts that come, go, die and stall, played without processes."""

import dataclasses

import pytest

from paxlike.elastic import _facts, _membership, _plans, _presence


class Hosts:
  """A lighthouse's decisions and hosts that obey them as fast as can be."""

  def __init__(self, *names: str, **policy):
    self.policy = _facts.Policy(
      **{'max_hosts': len(names), 'snapshot_steps': 10, **policy}
    )
    self.now_s = 100.0
    self.membership = _membership.Membership(self.policy, now_s=self.now_s)
    self.agents: dict[str, _facts.Agent] = {}
    self.events: list[dict] = []
    for name in names:
      self.join(name)

  def join(self, name: str, **fields) -> None:
    self.agents[name] = _facts.Agent(
      **{
        'name': name,
        'incarnation': f'{name}-{self.now_s}',
        'host': name,
        'address': f'{name}:1',
        'is_ready': True,
        'port': 5000,
        **fields,
      }
    )

  def change(self, name: str, **fields) -> None:
    self.agents[name] = dataclasses.replace(self.agents[name], **fields)

  def work(self, name: str, **fields) -> None:
    worker = self.agents[name].worker
    assert worker is not None
    self.change(name, worker=dataclasses.replace(worker, **fields))

  def lose(self, name: str) -> None:
    del self.agents[name]
    self.membership.close(name, now_s=self.now_s)

  def run(self, seconds: float = 0.2) -> _facts.Order | None:
    """Lets time pass while hosts beat and obey."""
    order = None
    for _ in range(max(1, round(seconds / 0.1))):
      self.now_s += 0.1
      for agent in list(self.agents.values()):
        self.membership.hear(agent, now_s=self.now_s)
      order = self.membership.look(now_s=self.now_s)
      self.events += self.membership.take_events()
      if order is not None:
        self.obey(order)
    return order

  def obey(self, order: _facts.Order) -> None:
    for name, agent in list(self.agents.items()):
      worker = agent.worker
      generation = worker.generation if worker else -1
      if order.wish is _facts.Wish.HOLD:
        if worker is not None and worker.end is None:
          self.work(name, end=_facts.End.CRASHED, text='killed')
      elif (
        order.plan is not None
        and order.generation > generation
        and name in order.plan.members
        and agent.is_ready
      ):
        rank = order.plan.members.index(name)
        worker = _facts.Worker(generation=order.generation, rank=rank, pid=1)
        self.change(name, worker=worker, plan=order.plan)
      elif name in order.stuck and order.generation == generation:
        self.work(name, end=_facts.End.CRASHED, text='was stuck')

  def start(self) -> _facts.Order:
    """Runs until a generation runs; its workers are at step 20."""
    order = self.run(2.0)
    assert order is not None
    assert order.wish is _facts.Wish.RUN
    assert order.plan is not None
    for name in order.plan.members:
      self.work(name, step=20)
    return order

  def told(self, event: str) -> list[dict]:
    return [found for found in self.events if found['event'] == event]


def _pieces(process: int, *steps: int, generation: int = 1, count: int = 3):
  return tuple(
    _facts.Piece(
      step=step,
      generation=generation,
      process=process,
      count=count,
      files='',
    )
    for step in steps
  )


def test_all_hosts_form_the_first_generation():
  hosts = Hosts('a', 'b', 'c')
  order = hosts.run(2.0)
  assert order.plan.members == ('a', 'b', 'c')
  assert order.plan.coordinator == 'a:5000'
  assert order.plan.buddies == ('b:1', 'c:1', 'a:1')
  assert order.plan.sources == ()


def test_nothing_forms_below_the_least_number_of_hosts():
  hosts = Hosts('a', 'b', min_hosts=3, max_hosts=4)
  assert hosts.run(100.0).wish is _facts.Wish.HOLD
  hosts.join('c')
  assert hosts.run(100.0).plan.members == ('a', 'b', 'c')


def test_at_the_start_it_waits_for_the_most_hosts_but_not_for_ever():
  hosts = Hosts('a', 'b', max_hosts=3, start_wait_s=20.0)
  assert hosts.run(10.0).wish is _facts.Wish.HOLD
  assert hosts.run(15.0).plan.members == ('a', 'b')


def test_nothing_forms_before_every_member_is_ready():
  hosts = Hosts('a', 'b')
  hosts.change('b', is_ready=False)
  assert hosts.run(10.0).wish is _facts.Wish.HOLD
  hosts.change('b', is_ready=True)
  assert hosts.run().plan.members == ('a', 'b')


def test_a_host_that_does_not_get_ready_is_not_waited_for_any_longer():
  hosts = Hosts('a', 'b', 'c')
  hosts.start()
  hosts.change('c', is_ready=False)
  hosts.work('a', end=_facts.End.CRASHED)
  assert hosts.run(20.0).wish is _facts.Wish.HOLD
  order = hosts.run(15.0)
  assert order.plan.members == ('a', 'b')
  for name in order.plan.members:
    hosts.work(name, step=30)
  hosts.run(60.0)
  assert len(hosts.told('fault')) == 1, 'the others go on without it'


def test_a_host_whose_standbys_fail_is_left_out():
  hosts = Hosts('a', 'b')
  hosts.change('b', is_ready=False, is_broken=True)
  assert hosts.run(100.0).plan.members == ('a',)


def test_a_crashed_worker_makes_a_new_generation_on_the_same_hosts():
  hosts = Hosts('a', 'b', 'c')
  first = hosts.start()
  hosts.work('b', end=_facts.End.CRASHED, text='killed')
  order = hosts.run(0.3)
  assert order.wish is _facts.Wish.RUN
  assert order.generation == first.generation + 1
  assert order.plan.members == ('a', 'b', 'c')
  assert len(hosts.told('fault')) == 1, 'the others are no faults of their own'


def test_a_lost_host_is_left_out_and_the_ranks_close_up():
  hosts = Hosts('a', 'b', 'c')
  hosts.start()
  hosts.lose('a')
  order = hosts.run(1.0)
  assert order.plan.members == ('b', 'c')


def test_a_silent_host_is_lost_after_its_time():
  hosts = Hosts('a', 'b', silence_s=3.0)
  hosts.start()
  del hosts.agents['a']
  assert hosts.run(2.5).generation == 1
  assert hosts.run(1.5).plan.members == ('b',)


def test_a_connection_that_breaks_for_a_moment_is_no_fault():
  hosts = Hosts('a', 'b')
  hosts.start()
  hosts.membership.close('a', now_s=hosts.now_s)
  order = hosts.run(2.0)
  assert order.generation == 1
  assert hosts.told('fault') == []


def test_an_agent_that_was_restarted_has_lost_its_worker():
  hosts = Hosts('a', 'b')
  hosts.start()
  hosts.join('b')
  assert hosts.run(1.0).generation == 2


def test_a_replacement_is_waited_for_if_asked_for():
  hosts = Hosts('a', 'b', replacement_wait_s=30.0)
  hosts.start()
  hosts.lose('b')
  assert hosts.run(10.0).wish is _facts.Wish.HOLD
  hosts.join('c')
  assert hosts.run(1.0).plan.members == ('a', 'c')


def test_the_wait_for_a_replacement_ends():
  hosts = Hosts('a', 'b', replacement_wait_s=30.0)
  hosts.start()
  hosts.lose('b')
  assert hosts.run(40.0).plan.members == ('a',)


def test_a_host_that_joins_stops_the_others_together_first():
  hosts = Hosts('a', 'b', max_hosts=3, start_wait_s=0.0)
  hosts.start()
  hosts.join('c', is_ready=False)
  assert hosts.run(5.0).wish is _facts.Wish.RUN, 'not before it is warm'
  hosts.change('c', is_ready=True)
  order = hosts.run()
  assert (order.wish, order.generation) == (_facts.Wish.DRAIN, 1)
  hosts.work('a', end=_facts.End.DRAINED)
  assert hosts.run().generation == 1, 'not before all have stopped'
  hosts.work('b', end=_facts.End.DRAINED)
  assert hosts.run(0.4).plan.members == ('a', 'b', 'c')
  assert hosts.told('fault') == []


def test_a_host_that_is_back_too_late_stops_nobody_and_joins_like_a_new_one():
  hosts = Hosts('a', 'b', 'c')
  hosts.start()
  late = hosts.agents['c']
  hosts.lose('c')
  order = hosts.run(1.0)
  assert order.plan.members == ('a', 'b')
  # With a worker of the generation before, which it still thinks is on.
  hosts.agents['c'] = dataclasses.replace(late, is_ready=False)
  assert hosts.run(5.0) == order, 'the others do not notice'
  # Its agent ends that worker as soon as it has heard of the newer one.
  hosts.work('c', end=_facts.End.CRASHED)
  hosts.change('c', is_ready=True)
  assert hosts.run().wish is _facts.Wish.DRAIN
  for name in ('a', 'b'):
    hosts.work(name, end=_facts.End.DRAINED)
  assert hosts.run(0.4).plan.members == ('a', 'b', 'c')
  (fault,) = hosts.told('fault')
  assert fault['what'] == 'a host was lost: c'


def test_a_member_that_does_not_start_in_time_is_given_up():
  hosts = Hosts('a', 'b')
  obey = hosts.obey

  def late(order):
    obey(order)
    if hosts.agents['b'].worker is not None:
      hosts.change('b', worker=None)

  hosts.obey = late
  hosts.run(100.0)
  assert hosts.told('fault') == []
  hosts.run(30.0)
  assert hosts.told('fault')[0]['agents'] == ['b']


def test_a_spare_host_beyond_the_most_changes_nothing():
  hosts = Hosts('a', 'b', max_hosts=2)
  hosts.start()
  hosts.join('c')
  assert hosts.run(5.0).wish is _facts.Wish.RUN
  hosts.lose('b')
  assert hosts.run(1.0).plan.members == ('a', 'c')


def test_a_worker_that_dies_while_all_stop_is_a_fault_and_the_joiner_stays():
  hosts = Hosts('a', 'b', max_hosts=3, start_wait_s=0.0)
  hosts.start()
  hosts.join('c')
  hosts.run()
  hosts.work('a', end=_facts.End.CRASHED)
  assert hosts.run(0.4).plan.members == ('a', 'b', 'c')
  assert len(hosts.told('fault')) == 1


def test_a_host_asked_to_go_is_let_go_once_the_others_have_restored():
  hosts = Hosts('a', 'b')
  hosts.start()
  hosts.change('b', is_leaving=True, pieces=_pieces(1, 20, count=2))
  assert hosts.run().wish is _facts.Wish.DRAIN
  hosts.change('a', pieces=_pieces(0, 20, count=2))
  hosts.work('a', end=_facts.End.DRAINED)
  hosts.work('b', end=_facts.End.DRAINED)
  order = hosts.run(0.4)
  assert order.plan.members == ('a',)
  assert [s.address for s in order.plan.sources] == ['a:1', 'b:1']
  assert order.released == ()
  hosts.work('a', step=20)
  assert hosts.run().released == ('b',)


def _stall(hosts: Hosts, **steps: int) -> None:
  for name, step in steps.items():
    hosts.work(name, step=step, is_timed=True, idle_s=9.0, median_step_s=0.1)


def test_only_the_stuck_worker_is_ended_once_stacks_are_written():
  hosts = Hosts('a', 'b', 'c', watchdog_s=8.0)
  hosts.start()
  _stall(hosts, a=30, b=29, c=30)
  order = hosts.run(0.1)
  assert (order.dump, order.stuck) == (True, ())
  assert hosts.run(0.8).stuck == ()
  obey, ordered = hosts.obey, []
  hosts.obey = lambda order: (ordered.append(order.stuck), obey(order))
  assert hosts.run(1.0).generation == 2
  assert ('b',) in ordered
  assert set(ordered) == {(), ('b',)}
  (told,) = hosts.told('stuck')
  assert told['agents'] == ['b']
  assert 'b (rank 1' in told['what']
  (fault,) = hosts.told('fault')
  assert fault['agents'] == ['b'], 'who waited for it is no culprit'


def test_of_two_workers_the_one_behind_is_stuck():
  hosts = Hosts('a', 'b', watchdog_s=8.0)
  hosts.start()
  _stall(hosts, a=29, b=30)
  hosts.run(2.0)
  assert hosts.told('fault')[0]['agents'] == ['a']


def test_without_evidence_the_whole_generation_is_given_up():
  hosts = Hosts('a', 'b', watchdog_s=8.0)
  hosts.start()
  _stall(hosts, a=30, b=30)
  assert hosts.run(2.0).generation == 2
  (fault,) = hosts.told('fault')
  assert fault['agents'] == []
  assert 'all are at step 30' in fault['what']


def test_a_stuck_worker_that_nobody_can_end_holds_nobody_up():
  hosts = Hosts('a', 'b', watchdog_s=8.0, replacement_wait_s=60.0)
  hosts.start()
  _stall(hosts, a=29, b=30)
  obey = hosts.obey
  hosts.obey = lambda order: None
  order = hosts.run(5.0)
  hosts.obey = obey
  assert order.wish is _facts.Wish.HOLD
  assert hosts.told('fault')[0]['agents'] == ['a']


def test_slow_steps_stretch_the_watchdog():
  hosts = Hosts('a', watchdog_s=8.0, watchdog_factor=10.0)
  hosts.start()
  hosts.work('a', is_timed=True, idle_s=15.0, median_step_s=2.0)
  assert not hosts.run().dump
  hosts.work('a', is_timed=True, idle_s=21.0, median_step_s=2.0)
  assert hosts.run(0.1).dump


def test_no_step_is_due_while_one_worker_compiles():
  hosts = Hosts('a', 'b', watchdog_s=8.0)
  hosts.start()
  hosts.work('a', is_timed=False, phase='compile', idle_s=500.0)
  hosts.work('b', is_timed=True, idle_s=500.0)
  assert not hosts.run(2.0).dump


def test_a_worker_that_says_nothing_is_stuck_whatever_it_did():
  hosts = Hosts('a', 'b', watchdog_s=8.0)
  hosts.start()
  hosts.work('a', phase='compile', silent_s=8.5)
  assert hosts.run(0.1).dump
  assert hosts.run(1.5).generation == 2


# --- hosts that keep dying


def _wait_s(hosts: Hosts, name: str, step: int) -> float:
  """Loses a host that comes back; how long it then waits to be a member."""
  hosts.lose(name)
  hosts.run(1.0)
  hosts.join(name)
  joined_s = hosts.now_s
  while hosts.run(0.1).wish is not _facts.Wish.DRAIN:
    assert hosts.now_s < joined_s + 100.0
  waited_s = hosts.now_s - joined_s
  hosts.work('a', end=_facts.End.DRAINED)
  hosts.run(0.3)
  for member in hosts.membership.order.plan.members:
    hosts.work(member, step=step)
  hosts.run(0.2)
  return waited_s


def test_a_host_that_dies_once_is_taken_back_at_once():
  hosts = Hosts('a', 'b')
  hosts.start()
  assert _wait_s(hosts, 'b', 30) < 0.3
  assert hosts.told('host kept out') == []


def test_a_host_that_keeps_dying_waits_twice_as_long_each_time():
  hosts = Hosts('a', 'b')
  hosts.start()
  waits_s = [_wait_s(hosts, 'b', 30 + index) for index in range(6)]
  # Counted from its loss, which is noticed half a second before it is back.
  expected_s = [0.1, 0.5, 1.5, 3.5, 7.5, 15.5]
  assert waits_s == pytest.approx(expected_s, abs=0.25)
  told = hosts.told('host kept out')
  assert [event['failures'] for event in told] == [2, 3, 4, 5, 6]
  assert told[-1]['agent'] == 'b'
  assert told[-1]['for_s'] == pytest.approx(15.5, abs=0.25)


def test_the_time_a_host_is_kept_out_has_a_limit():
  presence = _presence.Presence(silence_s=3.0)
  for _ in range(1000):
    presence.blame('b', now_s=5.0)
  assert presence.kept_out_s('b', now_s=5.0) == 300.0
  assert presence.kept_out_s('b', now_s=305.0) == 0.0


def test_a_host_that_has_been_well_for_long_is_forgiven():
  presence = _presence.Presence(silence_s=3.0)
  for _ in range(5):
    presence.blame('b', now_s=0.0)
  presence.blame('b', now_s=61.0)
  assert presence.failures('b') == 1
  assert presence.kept_out_s('b', now_s=61.0) == 0.0


def test_a_host_without_which_nothing_runs_is_taken_however_often_it_died():
  hosts = Hosts('a', 'b', min_hosts=2)
  hosts.start()
  for _ in range(5):
    hosts.lose('b')
    assert hosts.run(1.0).wish is _facts.Wish.HOLD
    hosts.join('b')
    assert hosts.run(0.5).wish is _facts.Wish.RUN


def test_a_host_that_was_asked_to_go_has_not_failed():
  hosts = Hosts('a', 'b')
  hosts.start()
  for _ in range(3):
    hosts.change('b', is_leaving=True)
    hosts.run(0.2)
    hosts.lose('b')
    hosts.run(1.0)
    hosts.join('b')
    hosts.run(0.2)
  assert hosts.told('host kept out') == []


def test_an_agent_that_is_restarted_unnoticed_has_failed():
  presence = _presence.Presence(silence_s=3.0)
  for index in range(3):
    presence.hear(_agent('b', incarnation=str(index)), now_s=float(index))
  assert presence.failures('b') == 2


def test_a_worker_that_keeps_getting_stuck_is_a_failure_of_its_host():
  hosts = Hosts('a', 'b', 'c', watchdog_s=8.0)
  hosts.start()
  for step in (30, 40, 50):
    _stall(hosts, a=step, b=step - 1, c=step)
    hosts.run(1.4)
  assert hosts.told('host kept out')[-1]['agent'] == 'b'


# --- how a job ends


def test_a_fatal_error_ends_the_job_at_once():
  hosts = Hosts('a', 'b')
  hosts.start()
  hosts.work('b', end=_facts.End.FATAL, text='NaN', exit_status=1)
  order = hosts.run()
  assert (order.wish, order.exit_status) == (_facts.Wish.END, 1)
  assert order.reason == 'NaN'


def test_generations_that_get_nowhere_end_the_job():
  hosts = Hosts('a', max_futile=3)
  hosts.start()
  order = None
  for _ in range(5):
    hosts.work('a', end=_facts.End.CRASHED, text='ValueError: x')
    order = hosts.run(0.4)
  assert (order.wish, order.exit_status) == (_facts.Wish.END, 1)
  assert 'ValueError: x' in order.reason


def test_new_steps_reset_the_count_of_failures():
  hosts = Hosts('a', max_futile=3)
  hosts.start()
  for step in range(21, 41):
    hosts.work('a', step=step)
    hosts.run()
    hosts.work('a', end=_facts.End.CRASHED)
    order = hosts.run(0.4)
    assert order.wish is _facts.Wish.RUN


def test_the_end_of_all_workers_is_the_end_of_the_job():
  hosts = Hosts('a', 'b')
  hosts.start()
  hosts.work('a', end=_facts.End.FINISHED)
  assert hosts.run().wish is _facts.Wish.RUN
  hosts.work('b', end=_facts.End.FINISHED)
  order = hosts.run()
  assert (order.wish, order.exit_status) == (_facts.Wish.END, 0)


def test_a_worker_killed_after_the_last_step_does_not_matter():
  hosts = Hosts('a', 'b')
  hosts.start()
  hosts.work('a', end=_facts.End.FINISHED)
  hosts.work('b', end=_facts.End.CRASHED)
  assert hosts.run().exit_status == 0


def test_a_job_asked_to_stop_is_preempted_everywhere():
  hosts = Hosts('a', 'b')
  hosts.start()
  hosts.change('b', wants_stop=True)
  assert hosts.run().wish is _facts.Wish.PREEMPT
  for name in ('a', 'b'):
    hosts.work(name, end=_facts.End.PREEMPTED, exit_status=75)
  assert hosts.run().exit_status == 75


def test_a_job_that_holds_can_be_stopped():
  hosts = Hosts('a', min_hosts=2, max_hosts=2)
  hosts.run(2.0)
  hosts.change('a', wants_stop=True)
  assert hosts.run(15.0).exit_status == 75


def test_only_legal_numbers_of_hosts_are_formed():
  hosts = Hosts('a', 'b', 'c')
  hosts.start()
  hosts.work('a', legal_hosts=(1, 2, 4))
  hosts.work('b', end=_facts.End.CRASHED, text='HostCountError')
  assert hosts.run(0.4).plan.members == ('a', 'b')


# --- which snapshot


def _agent(
  name: str, *pieces: _facts.Piece, incarnation: str = ''
) -> _facts.Agent:
  return _facts.Agent(
    name=name,
    incarnation=incarnation,
    host=name,
    address=f'{name}:1',
    pieces=pieces,
  )


def _chosen(agents, without=frozenset()):
  sources = _plans.choose_snapshot(agents, without=set(without))
  return [(s.piece.step, s.piece.process, s.address) for s in sources]


def test_the_newest_snapshot_that_is_whole_is_chosen():
  agents = [
    _agent('a', *_pieces(0, 10, 20, 30)),
    _agent('b', *_pieces(1, 10, 20)),
    _agent('c', *_pieces(2, 10, 20, 30)),
  ]
  assert _chosen(agents) == [(20, 0, 'a:1'), (20, 1, 'b:1'), (20, 2, 'c:1')]


def test_a_buddys_copy_stands_in_for_a_lost_host():
  agents = [
    _agent('a', *_pieces(0, 20), *_pieces(2, 20)),
    _agent('b', *_pieces(1, 20)),
  ]
  assert _chosen(agents) == [(20, 0, 'a:1'), (20, 1, 'b:1'), (20, 2, 'a:1')]


def test_pieces_of_two_generations_make_no_snapshot():
  agents = [
    _agent('a', *_pieces(0, 20, generation=1, count=2)),
    _agent('b', *_pieces(1, 20, generation=2, count=2)),
  ]
  assert _chosen(agents) == []


def test_of_one_step_the_later_generation_counts():
  agents = [
    _agent(
      'a',
      *_pieces(0, 20, generation=1, count=1),
      *_pieces(0, 20, generation=2, count=1),
    )
  ]
  (source,) = _plans.choose_snapshot(agents, without=set())
  assert source.piece.generation == 2


def test_a_snapshot_that_could_not_be_read_is_not_tried_again():
  hosts = Hosts('a')
  hosts.start()
  hosts.change('a', pieces=_pieces(0, 10, 20, count=1))
  hosts.work('a', end=_facts.End.CRASHED)
  assert hosts.run(0.4).plan.sources[0].piece.step == 20
  hosts.work('a', end=_facts.End.DAMAGED)
  assert hosts.run(0.4).plan.sources[0].piece.step == 10


def test_lost_steps_are_those_that_all_had_done():
  hosts = Hosts('a', 'b')
  hosts.start()
  hosts.work('a', step=27)
  hosts.work('b', step=26)
  hosts.change('a', pieces=_pieces(0, 20, count=2))
  hosts.change('b', pieces=_pieces(1, 20, count=2))
  hosts.run()
  hosts.work('b', end=_facts.End.CRASHED)
  hosts.run(0.4)
  assert hosts.told('formed')[-1]['steps_lost'] == 6


# --- a lighthouse that is new to a running job


def _restarted(hosts: Hosts) -> None:
  hosts.membership = _membership.Membership(hosts.policy, now_s=hosts.now_s)
  hosts.events.clear()


def test_a_restarted_lighthouse_lets_training_go_on():
  hosts = Hosts('a', 'b', 'c')
  first = hosts.start()
  _restarted(hosts)
  assert hosts.run(1.0) is None, 'nothing is ordered before all could be back'
  order = hosts.run(2.0)
  assert (order.wish, order.generation) == (_facts.Wish.RUN, first.generation)
  assert order.plan == first.plan
  assert hosts.told('fault') == []


def test_a_restarted_lighthouse_finds_what_died_meanwhile():
  hosts = Hosts('a', 'b', 'c')
  first = hosts.start()
  hosts.lose('c')
  _restarted(hosts)
  order = hosts.run(3.0)
  assert order.generation > first.generation
  assert order.plan.members == ('a', 'b')


def test_a_restarted_lighthouse_counts_generations_on_from_snapshots():
  hosts = Hosts('a')
  hosts.change('a', pieces=_pieces(0, 50, generation=7, count=1))
  order = hosts.run(3.0)
  assert order.generation == 8
  assert order.plan.sources[0].piece.step == 50


# --- what travels


def test_facts_travel_whole():
  hosts = Hosts('a', 'b')
  order = hosts.start()
  agent = dataclasses.replace(
    hosts.agents['a'], plan=order.plan, pieces=_pieces(0, 10)
  )
  for facts in (order, agent, hosts.policy):
    message = _facts.to_message(facts)
    assert _facts.from_message(type(facts), message) == facts


@pytest.mark.parametrize(
  'message',
  [
    None,
    [],
    {},
    {'wish': 'run'},
    {'wish': 'fly', 'generation': 1},
    {'wish': 'run', 'generation': '1'},
    {'wish': 'run', 'generation': 1, 'plan': 7},
    {'wish': 'run', 'generation': 1, 'unknown': 7},
    {'wish': 'run', 'generation': 1, 'released': 'a'},
  ],
)
def test_anything_else_is_refused(message):
  from paxlike.elastic import _messages

  with pytest.raises(_messages.MessageError, match='no Order'):
    _facts.from_message(_facts.Order, message)
