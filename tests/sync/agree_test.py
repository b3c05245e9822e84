"""Decisions that are common, and facts that must be."""

import pytest

from paxlike import sync
from paxlike.core import errors
from tests.fakes import world as fake_world


def test_every_process_gets_the_decision_of_process_zero():
  def job(world):
    mine = {'save': world.process_index == 0, 'step': world.process_index}
    return sync.agree('save/7', mine, world=world)

  assert fake_world.run(3, job) == [{'save': True, 'step': 0}] * 3


def test_a_process_alone_decides_for_itself():
  assert sync.agree('save/7', [1, 'two'], world=sync.SoloWorld()) == [1, 'two']


def test_equal_facts_pass():
  def job(world):
    sync.check_same('start', {'config': 'a = 1', 'mesh': '4x2'}, world=world)
    return 'went on'

  assert fake_world.run(3, job) == ['went on'] * 3


def test_a_difference_is_an_error_on_every_process_that_says_what_and_where():
  config = ''.join(f'field_{i} = {i}\n' for i in range(100))

  def job(world):
    value = 50 if world.process_index == 2 else 100
    facts = {'config': f'{config}steps = {value}\n', 'versions': 'jax 1.2'}
    sync.check_same('start', facts, world=world)

  found = fake_world.run(4, job, return_errors=True)
  for error in found:
    assert isinstance(error, errors.DivergenceError)
    assert 'processes 0-1, 3' in str(error)
    assert 'processes 2' in str(error)
    assert '-steps = 100' in str(error)
    assert '+steps = 50' in str(error)
    assert 'field_7' not in str(error)
    assert 'versions' not in str(error)


def test_a_fact_that_only_some_tell_is_a_difference():
  def job(world):
    facts = {'mesh': '4x2'} if world.process_index else {'shapes': '(3,)'}
    sync.check_same('start', facts, world=world)

  for error in fake_world.run(2, job, return_errors=True):
    assert isinstance(error, errors.DivergenceError)
    assert '(not told)' in str(error)


def test_a_process_alone_differs_from_nobody():
  sync.check_same('start', {'config': 'a'}, world=sync.SoloWorld())
  with pytest.raises(TypeError, match='must give a value'):
    sync.SoloWorld().broadcast('x', None)
