"""A host that keeps dying is kept out, longer each time, where others do."""

import pytest

from paxlike.elastic import _facts, _presence
from tests.elastic import hosts as fakes


def _wait_s(hosts: fakes.Hosts, name: str, step: int) -> float:
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
  hosts = fakes.Hosts('a', 'b')
  hosts.start()
  assert _wait_s(hosts, 'b', 30) < 0.3
  assert hosts.told('host kept out') == []


def test_a_host_that_keeps_dying_waits_twice_as_long_each_time():
  hosts = fakes.Hosts('a', 'b')
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
    presence.blame('b', now_s=5.0, why='')
  assert presence.kept_out_s('b', now_s=5.0) == 300.0
  assert presence.kept_out_s('b', now_s=305.0) == 0.0


def test_a_host_that_has_been_well_for_long_is_forgiven():
  presence = _presence.Presence(silence_s=3.0)
  for _ in range(5):
    presence.blame('b', now_s=0.0, why='')
  presence.blame('b', now_s=61.0, why='')
  assert presence.failures('b') == 1
  assert presence.kept_out_s('b', now_s=61.0) == 0.0


def test_a_host_without_which_nothing_runs_is_taken_however_often_it_died():
  hosts = fakes.Hosts('a', 'b', min_hosts=2)
  hosts.start()
  for _ in range(5):
    hosts.lose('b')
    assert hosts.run(1.0).wish is _facts.Wish.HOLD
    hosts.join('b')
    assert hosts.run(0.5).wish is _facts.Wish.RUN


def test_a_host_that_was_asked_to_go_has_not_failed():
  hosts = fakes.Hosts('a', 'b')
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
    presence.hear(fakes.agent('b', incarnation=str(index)), now_s=float(index))
  assert presence.failures('b') == 2


def test_a_worker_that_keeps_getting_stuck_is_a_failure_of_its_host():
  hosts = fakes.Hosts('a', 'b', 'c', watchdog_s=8.0)
  hosts.start()
  for step in (30, 40, 50):
    fakes.stall(hosts, a=step, b=step - 1, c=step)
    hosts.run(1.4)
  assert hosts.told('host kept out')[-1]['agent'] == 'b'
