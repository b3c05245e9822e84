"""What travels between agents and the lighthouse arrives whole or not at all."""

import dataclasses

import pytest

from paxlike.elastic import _facts, _messages
from tests.elastic import hosts as fakes


def test_facts_travel_whole():
  hosts = fakes.Hosts('a', 'b')
  order = hosts.start()
  agent = dataclasses.replace(
    hosts.agents['a'], plan=order.plan, pieces=fakes.pieces(0, 10)
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
  with pytest.raises(_messages.MessageError, match='no Order'):
    _facts.from_message(_facts.Order, message)
