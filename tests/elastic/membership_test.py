"""Every race of hosts that come, go and die, played without processes."""

import dataclasses

from paxlike.elastic import _facts, _membership
from tests.elastic import hosts as fakes


def test_all_hosts_form_the_first_generation():
  hosts = fakes.Hosts('a', 'b', 'c')
  order = hosts.run(2.0)
  assert order.plan.members == ('a', 'b', 'c')
  assert order.plan.coordinator == 'a:5000'
  assert order.plan.buddies == ('b:1', 'c:1', 'a:1')
  assert order.plan.sources == ()


def test_nothing_forms_below_the_least_number_of_hosts():
  hosts = fakes.Hosts('a', 'b', min_hosts=3, max_hosts=4)
  assert hosts.run(100.0).wish is _facts.Wish.HOLD
  hosts.join('c')
  assert hosts.run(100.0).plan.members == ('a', 'b', 'c')


def test_at_the_start_it_waits_for_the_most_hosts_but_not_for_ever():
  hosts = fakes.Hosts('a', 'b', max_hosts=3, start_wait_s=20.0)
  assert hosts.run(10.0).wish is _facts.Wish.HOLD
  assert hosts.run(15.0).plan.members == ('a', 'b')


def test_nothing_forms_before_every_member_is_ready():
  hosts = fakes.Hosts('a', 'b')
  hosts.change('b', is_ready=False)
  assert hosts.run(10.0).wish is _facts.Wish.HOLD
  hosts.change('b', is_ready=True)
  assert hosts.run().plan.members == ('a', 'b')


def test_a_host_that_does_not_get_ready_is_not_waited_for_any_longer():
  hosts = fakes.Hosts('a', 'b', 'c')
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
  hosts = fakes.Hosts('a', 'b')
  hosts.change('b', is_ready=False, is_broken=True)
  assert hosts.run(100.0).plan.members == ('a',)


def test_a_crashed_worker_makes_a_new_generation_on_the_same_hosts():
  hosts = fakes.Hosts('a', 'b', 'c')
  first = hosts.start()
  hosts.work('b', end=_facts.End.CRASHED, text='killed')
  order = hosts.run(0.3)
  assert order.wish is _facts.Wish.RUN
  assert order.generation == first.generation + 1
  assert order.plan.members == ('a', 'b', 'c')
  assert len(hosts.told('fault')) == 1, 'the others are no faults of their own'


def test_a_lost_host_is_left_out_and_the_ranks_close_up():
  hosts = fakes.Hosts('a', 'b', 'c')
  hosts.start()
  hosts.lose('a')
  order = hosts.run(1.0)
  assert order.plan.members == ('b', 'c')


def test_a_silent_host_is_lost_after_its_time():
  hosts = fakes.Hosts('a', 'b', silence_s=3.0)
  hosts.start()
  del hosts.agents['a']
  assert hosts.run(2.5).generation == 1
  assert hosts.run(1.5).plan.members == ('b',)


def test_a_connection_that_breaks_for_a_moment_is_no_fault():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  hosts.membership.close('a', now_s=hosts.now_s)
  order = hosts.run(2.0)
  assert order.generation == 1
  assert hosts.told('fault') == []


def test_the_steps_in_the_last_words_of_hosts_count():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  for name in ('a', 'b'):
    hosts.work(name, step=4)
  hosts.run()
  assert hosts.membership.done_step == 4
  # Both speak and go between two looks.
  for name in ('a', 'b'):
    hosts.work(name, step=7)
    hosts.membership.hear(hosts.agents[name], now_s=hosts.now_s)
  for name in ('a', 'b'):
    hosts.membership.close(name, now_s=hosts.now_s)
  assert hosts.membership.done_step == 7


def test_an_agent_that_was_restarted_has_lost_its_worker():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  hosts.join('b')
  assert hosts.run(1.0).generation == 2


def test_a_replacement_is_waited_for_if_asked_for():
  hosts = fakes.Hosts('a', 'b', replacement_wait_s=30.0)
  hosts.start()
  hosts.lose('b')
  assert hosts.run(10.0).wish is _facts.Wish.HOLD
  hosts.join('c')
  assert hosts.run(1.0).plan.members == ('a', 'c')


def test_the_wait_for_a_replacement_ends():
  hosts = fakes.Hosts('a', 'b', replacement_wait_s=30.0)
  hosts.start()
  hosts.lose('b')
  assert hosts.run(40.0).plan.members == ('a',)


def test_a_host_that_joins_stops_the_others_together_first():
  hosts = fakes.Hosts('a', 'b', max_hosts=3, start_wait_s=0.0)
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


def test_nobody_stops_for_a_host_that_joins_before_all_are_warm():
  hosts = fakes.Hosts('a', 'b', max_hosts=3, start_wait_s=0.0)
  hosts.start()
  hosts.change('b', is_ready=False)
  hosts.join('c')
  assert hosts.run(5.0).wish is _facts.Wish.RUN
  hosts.change('b', is_ready=True)
  assert hosts.run().wish is _facts.Wish.DRAIN


def test_a_host_that_joins_does_not_wait_for_standbys_that_cannot_start():
  hosts = fakes.Hosts('a', 'b', max_hosts=3, start_wait_s=0.0)
  hosts.start()
  hosts.change('b', is_ready=False, is_broken=True)
  hosts.join('c')
  assert hosts.run().wish is _facts.Wish.DRAIN


def test_a_host_that_is_back_too_late_stops_nobody_and_joins_like_a_new_one():
  hosts = fakes.Hosts('a', 'b', 'c')
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
  hosts = fakes.Hosts('a', 'b')
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
  hosts = fakes.Hosts('a', 'b', max_hosts=2)
  hosts.start()
  hosts.join('c')
  assert hosts.run(5.0).wish is _facts.Wish.RUN
  hosts.lose('b')
  assert hosts.run(1.0).plan.members == ('a', 'c')


def test_a_worker_that_dies_while_all_stop_is_a_fault_and_the_joiner_stays():
  hosts = fakes.Hosts('a', 'b', max_hosts=3, start_wait_s=0.0)
  hosts.start()
  hosts.join('c')
  hosts.run()
  hosts.work('a', end=_facts.End.CRASHED)
  assert hosts.run(0.4).plan.members == ('a', 'b', 'c')
  assert len(hosts.told('fault')) == 1


def test_a_host_asked_to_go_is_let_go_once_the_others_have_restored():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  hosts.change('b', is_leaving=True, pieces=fakes.pieces(1, 20, count=2))
  assert hosts.run().wish is _facts.Wish.DRAIN
  hosts.change('a', pieces=fakes.pieces(0, 20, count=2))
  hosts.work('a', end=_facts.End.DRAINED)
  hosts.work('b', end=_facts.End.DRAINED)
  order = hosts.run(0.4)
  assert order.plan.members == ('a',)
  assert [s.address for s in order.plan.sources] == ['a:1', 'b:1']
  assert order.released == ()
  hosts.work('a', step=20)
  assert hosts.run().released == ('b',)


# --- how a job ends


def test_a_fatal_error_ends_the_job_at_once():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  hosts.work('b', end=_facts.End.FATAL, text='NaN', exit_status=1)
  order = hosts.run()
  assert (order.wish, order.exit_status) == (_facts.Wish.END, 1)
  assert order.reason == 'NaN'


def test_generations_that_get_nowhere_end_the_job():
  hosts = fakes.Hosts('a', max_futile=3)
  hosts.start()
  order = None
  for _ in range(5):
    hosts.work('a', end=_facts.End.CRASHED, text='ValueError: x')
    order = hosts.run(0.4)
  assert (order.wish, order.exit_status) == (_facts.Wish.END, 1)
  assert 'ValueError: x' in order.reason


def test_a_job_none_of_whose_hosts_can_start_a_worker_ends():
  hosts = fakes.Hosts('a', 'b')
  hosts.change('a', is_ready=False, is_broken=True)
  hosts.change('b', is_ready=False)
  assert hosts.run(10.0).wish is _facts.Wish.HOLD
  hosts.change('b', is_broken=True)
  order = hosts.run(0.2)
  assert (order.wish, order.exit_status) == (_facts.Wish.END, 1)
  assert 'no host can start a worker' in order.reason


def test_new_steps_reset_the_count_of_failures():
  hosts = fakes.Hosts('a', max_futile=3)
  hosts.start()
  for step in range(21, 41):
    hosts.work('a', step=step)
    hosts.run()
    hosts.work('a', end=_facts.End.CRASHED)
    order = hosts.run(0.4)
    assert order.wish is _facts.Wish.RUN


def test_the_end_of_all_workers_is_the_end_of_the_job():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  hosts.work('a', end=_facts.End.FINISHED)
  assert hosts.run().wish is _facts.Wish.RUN
  hosts.work('b', end=_facts.End.FINISHED)
  order = hosts.run()
  assert (order.wish, order.exit_status) == (_facts.Wish.END, 0)


def test_a_worker_killed_after_the_last_step_does_not_matter():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  hosts.work('a', end=_facts.End.FINISHED)
  hosts.work('b', end=_facts.End.CRASHED)
  assert hosts.run().exit_status == 0


def test_a_job_asked_to_stop_is_preempted_everywhere():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  hosts.change('b', wants_stop=True)
  assert hosts.run().wish is _facts.Wish.PREEMPT
  for name in ('a', 'b'):
    hosts.work(name, end=_facts.End.PREEMPTED, exit_status=75)
  assert hosts.run().exit_status == 75


def test_a_job_that_holds_can_be_stopped():
  hosts = fakes.Hosts('a', min_hosts=2, max_hosts=2)
  hosts.run(2.0)
  hosts.change('a', wants_stop=True)
  assert hosts.run(15.0).exit_status == 75


def test_only_legal_numbers_of_hosts_are_formed():
  hosts = fakes.Hosts('a', 'b', 'c')
  hosts.start()
  hosts.work('a', legal_hosts=(1, 2, 4))
  hosts.work('b', end=_facts.End.CRASHED, text='HostCountError')
  assert hosts.run(0.4).plan.members == ('a', 'b')


# --- what it goes on from


def test_a_snapshot_that_could_not_be_read_is_not_tried_again():
  hosts = fakes.Hosts('a')
  hosts.start()
  hosts.change('a', pieces=fakes.pieces(0, 10, 20, count=1))
  hosts.work('a', end=_facts.End.CRASHED)
  assert hosts.run(0.4).plan.sources[0].piece.step == 20
  hosts.work('a', end=_facts.End.DAMAGED)
  assert hosts.run(0.4).plan.sources[0].piece.step == 10


def test_lost_steps_are_those_that_all_had_done():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  hosts.work('a', step=27)
  hosts.work('b', step=26)
  hosts.change('a', pieces=fakes.pieces(0, 20, count=2))
  hosts.change('b', pieces=fakes.pieces(1, 20, count=2))
  hosts.run()
  hosts.work('b', end=_facts.End.CRASHED)
  hosts.run(0.4)
  assert hosts.told('formed')[-1]['steps_lost'] == 6


# --- a lighthouse that is new to a running job


def _restarted(hosts: fakes.Hosts) -> None:
  hosts.membership = _membership.Membership(hosts.policy, now_s=hosts.now_s)
  hosts.events.clear()


def test_a_restarted_lighthouse_lets_training_go_on():
  hosts = fakes.Hosts('a', 'b', 'c')
  first = hosts.start()
  _restarted(hosts)
  assert hosts.run(1.0) is None, 'nothing is ordered before all could be back'
  order = hosts.run(2.0)
  assert (order.wish, order.generation) == (_facts.Wish.RUN, first.generation)
  assert order.plan == first.plan
  assert hosts.told('fault') == []


def test_a_restarted_lighthouse_finds_what_died_meanwhile():
  hosts = fakes.Hosts('a', 'b', 'c')
  first = hosts.start()
  hosts.lose('c')
  _restarted(hosts)
  order = hosts.run(3.0)
  assert order.generation > first.generation
  assert order.plan.members == ('a', 'b')


def test_a_restarted_lighthouse_counts_generations_on_from_snapshots():
  hosts = fakes.Hosts('a')
  hosts.change('a', pieces=fakes.pieces(0, 50, generation=7, count=1))
  order = hosts.run(3.0)
  assert order.generation == 8
  assert order.plan.sources[0].piece.step == 50
