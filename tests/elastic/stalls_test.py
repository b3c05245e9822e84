"""Workers that are alive but stuck: found, told apart, and ended alone."""

from paxlike.elastic import _facts
from tests.elastic import hosts as fakes


def test_only_the_stuck_worker_is_ended_once_stacks_are_written():
  hosts = fakes.Hosts('a', 'b', 'c', watchdog_s=8.0)
  hosts.start()
  fakes.stall(hosts, a=30, b=29, c=30)
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
  hosts = fakes.Hosts('a', 'b', watchdog_s=8.0)
  hosts.start()
  fakes.stall(hosts, a=29, b=30)
  hosts.run(2.0)
  assert hosts.told('fault')[0]['agents'] == ['a']


def test_without_evidence_the_whole_generation_is_given_up():
  hosts = fakes.Hosts('a', 'b', watchdog_s=8.0)
  hosts.start()
  fakes.stall(hosts, a=30, b=30)
  assert hosts.run(2.0).generation == 2
  (fault,) = hosts.told('fault')
  assert fault['agents'] == []
  assert 'all are at step 30' in fault['what']


def test_a_stuck_worker_that_nobody_can_end_holds_nobody_up():
  hosts = fakes.Hosts('a', 'b', watchdog_s=8.0, replacement_wait_s=60.0)
  hosts.start()
  fakes.stall(hosts, a=29, b=30)
  obey = hosts.obey
  hosts.obey = lambda order: None
  order = hosts.run(5.0)
  hosts.obey = obey
  assert order.wish is _facts.Wish.HOLD
  assert hosts.told('fault')[0]['agents'] == ['a']


def test_slow_steps_stretch_the_watchdog():
  hosts = fakes.Hosts('a', watchdog_s=8.0, watchdog_factor=10.0)
  hosts.start()
  hosts.work('a', is_timed=True, idle_s=15.0, median_step_s=2.0)
  assert not hosts.run().dump
  hosts.work('a', is_timed=True, idle_s=21.0, median_step_s=2.0)
  assert hosts.run(0.1).dump


def test_no_step_is_due_while_one_worker_compiles():
  hosts = fakes.Hosts('a', 'b', watchdog_s=8.0)
  hosts.start()
  hosts.work('a', is_timed=False, phase='compile', idle_s=500.0)
  hosts.work('b', is_timed=True, idle_s=500.0)
  assert not hosts.run(2.0).dump


def test_a_worker_that_says_nothing_is_stuck_whatever_it_did():
  hosts = fakes.Hosts('a', 'b', watchdog_s=8.0)
  hosts.start()
  hosts.work('a', phase='compile', silent_s=8.5)
  assert hosts.run(0.1).dump
  assert hosts.run(1.5).generation == 2
