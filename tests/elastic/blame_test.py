"""Who is named when workers end together, and who is kept out for it."""

import pytest

from paxlike.elastic import _facts
from tests.elastic import hosts as fakes

End = _facts.End


def _fault(hosts: fakes.Hosts) -> dict:
  hosts.run(0.5)
  (fault,) = hosts.told('fault')
  return fault


@pytest.mark.parametrize('own', [End.KILLED, End.CRASHED])
def test_a_survivor_that_is_heard_of_first_is_not_the_fault(own):
  hosts = fakes.Hosts('a', 'b', 'c')
  hosts.start()
  hosts.work('a', end=End.BROKEN, text='connection reset')
  obey, hosts.obey = hosts.obey, lambda order: None
  assert hosts.run(0.1).wish is _facts.Wish.HOLD, 'all end at once'
  assert hosts.told('fault') == [], 'but nobody is named yet'
  hosts.work('b', end=own, text='was ended by SIGKILL')
  hosts.work('c', end=End.ALONG)
  hosts.run(0.1)
  (fault,) = hosts.told('fault')
  assert fault['agents'] == ['b']
  assert fault['what'] == 'a worker ended: b: was ended by SIGKILL'
  hosts.obey = obey
  assert hosts.run(0.2).generation == 2


def test_nobody_waits_for_the_name_of_the_fault():
  hosts = fakes.Hosts('a', 'b', 'c')
  hosts.start()
  hosts.work('b', end=End.KILLED)
  assert hosts.run(0.1).wish is _facts.Wish.HOLD
  assert hosts.run(0.2).generation == 2


def test_who_was_aborted_is_named_before_those_whose_collective_broke():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  hosts.work('a', end=End.BROKEN)
  hosts.work('b', end=End.ABORTED)
  assert _fault(hosts)['agents'] == ['b']


def test_two_that_died_are_both_named():
  hosts = fakes.Hosts('a', 'b', 'c')
  hosts.start()
  hosts.work('a', end=End.KILLED)
  hosts.work('c', end=End.KILLED)
  hosts.work('b', end=End.BROKEN)
  assert _fault(hosts)['agents'] == ['a', 'c']


def test_a_lost_host_is_the_fault_and_not_whose_collective_it_broke():
  hosts = fakes.Hosts('a', 'b', 'c')
  hosts.start()
  hosts.work('a', end=End.BROKEN)
  hosts.lose('b')
  hosts.run(1.0)
  (fault,) = hosts.told('fault')
  assert fault['what'] == 'a host was lost: b'


def test_a_host_that_falls_silent_is_waited_for_before_it_is_named():
  hosts = fakes.Hosts('a', 'b', 'c', silence_s=3.0)
  hosts.start()
  hosts.work('a', end=End.BROKEN)
  del hosts.agents['b']
  hosts.run(5.0)
  (fault,) = hosts.told('fault')
  assert fault['what'] == 'a host was lost: b'


def test_an_error_that_would_come_again_ends_the_job_however_late_it_is_told():
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  hosts.work('a', end=End.BROKEN)
  obey, hosts.obey = hosts.obey, lambda order: None
  hosts.run(0.1)
  hosts.work('b', end=End.FATAL, text='NaN', exit_status=1)
  hosts.obey = obey
  order = hosts.run(0.2)
  assert (order.wish, order.reason) == (_facts.Wish.END, 'NaN')


def _fail(hosts: fakes.Hosts, *names: str, **fields) -> None:
  for name in names:
    hosts.work(name, **{'end': End.KILLED, 'text': 'OSError: disk', **fields})
  hosts.run(0.4)


def test_a_host_whose_worker_keeps_ending_at_one_place_is_kept_out():
  hosts = fakes.Hosts('a', 'b', 'c')
  hosts.start()
  _fail(hosts, 'b')
  _fail(hosts, 'b')
  assert hosts.membership.order.plan.members == ('a', 'b', 'c')
  _fail(hosts, 'b')
  assert hosts.membership.order.plan.members == ('a', 'c')
  (told,) = hosts.told('host kept out')
  assert (told['agent'], told['failures']) == ('b', 3)
  assert told['why'] == 'OSError: disk'
  assert told['for_s'] == pytest.approx(30.0, abs=0.25)
  for name in ('a', 'c'):
    hosts.work(name, step=25)
  assert hosts.run(29.0).wish is _facts.Wish.RUN, 'the others go on'
  assert hosts.run(2.0).wish is _facts.Wish.DRAIN, 'it may try again'


def test_what_others_do_without_it_does_not_clear_a_host():
  hosts = fakes.Hosts('a', 'b', 'c')
  hosts.start()
  for _ in range(3):
    _fail(hosts, 'b')
  for name in ('a', 'c'):
    hosts.work(name, step=25)
  hosts.run(31.0)
  for name in ('a', 'c'):
    hosts.work(name, end=End.DRAINED)
  hosts.run(0.4)
  assert hosts.membership.order.plan.members == ('a', 'c', 'b')
  _fail(hosts, 'b')
  assert hosts.membership.order.plan.members == ('a', 'c')
  assert [e['failures'] for e in hosts.told('host kept out')] == [3, 4]


def _work(hosts: fakes.Hosts, step: int) -> None:
  for name in hosts.membership.order.plan.members:
    hosts.work(name, step=step)
  hosts.run(0.1)


def test_a_snapshot_taken_with_it_clears_a_host():
  hosts = fakes.Hosts('a', 'b', 'c', snapshot_steps=10)
  hosts.start()
  for step in range(20, 60, 10):
    _work(hosts, step + 5)
    _work(hosts, step + 10)
    _fail(hosts, 'b')
  assert hosts.told('host kept out') == []


def test_a_few_steps_more_each_time_are_the_same_place():
  hosts = fakes.Hosts('a', 'b', 'c', snapshot_steps=10)
  for rank, name in enumerate(('a', 'b', 'c')):
    hosts.change(name, pieces=fakes.pieces(rank, 20))
  hosts.start()
  for step in (22, 23, 24):
    _work(hosts, step)
    _fail(hosts, 'b')
  assert hosts.told('host kept out')[0]['agent'] == 'b'


def test_a_survivor_is_never_kept_out():
  hosts = fakes.Hosts('a', 'b', 'c', max_futile=10)
  hosts.start()
  for _ in range(6):
    hosts.work('a', end=End.BROKEN, text='connection reset')
    _fail(hosts, 'b' if 'b' in hosts.membership.order.plan.members else 'c')
  kept_out = {event['agent'] for event in hosts.told('host kept out')}
  assert kept_out == {'b', 'c'}


def test_hosts_that_all_fail_at_one_place_end_the_job_and_not_its_memory():
  hosts = fakes.Hosts('a', 'b', max_futile=5)
  hosts.start()
  for _ in range(6):
    _fail(hosts, 'a', 'b')
  order = hosts.membership.order
  assert (order.wish, order.exit_status) == (_facts.Wish.END, 1)
  assert 'OSError: disk' in order.reason
