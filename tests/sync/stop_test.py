"""All processes stop at one and the same poll."""

import json
import random
import threading
import time

import pytest

from paxlike import sync
from paxlike.core import errors
from tests.fakes import kv
from tests.fakes import world as fake_world


def _loop(world, most, pause_s=0.0):
  """Polls as a training loop does; returns the steps done before stopping."""
  for step in range(most):
    if world.stop.poll():
      return step
    if pause_s:
      time.sleep(pause_s)
  return most


@pytest.mark.parametrize('seed', range(5))
def test_processes_at_different_paces_stop_at_the_same_step(seed):
  def job(world):
    rng = random.Random(f'{seed}/{world.process_index}')
    if world.process_index == 1:
      threading.Timer(0.03, world.stop.ask, ['SIGTERM']).start()
    return _loop(world, 10_000, pause_s=rng.uniform(0.0005, 0.003))

  stops = fake_world.run(4, job)
  assert len(set(stops)) == 1
  assert 0 < stops[0] < 10_000


def test_a_request_that_came_before_the_first_poll_is_kept():
  def job(world):
    if world.process_index == 0:
      world.stop.ask('SIGTERM')
    world.barrier('everybody has heard')
    while not world.stop.requested():
      time.sleep(0.001)
    return _loop(world, 10)

  assert fake_world.run(3, job) == [0, 0, 0]


def test_all_processes_asked_at_once_agree_too():
  def job(world):
    world.barrier('start')
    world.stop.ask('SIGTERM')
    return _loop(world, 100_000)

  stops = fake_world.run(4, job)
  assert len(set(stops)) == 1
  assert stops[0] < 100_000


def test_nobody_stops_unasked():
  assert fake_world.run(2, lambda world: _loop(world, 50)) == [50, 50]


def test_once_stopped_a_job_stays_stopped():
  def job(world):
    world.stop.ask('SIGTERM')
    while not world.stop.poll():
      time.sleep(0.001)
    return [world.stop.poll() for _ in range(3)]

  assert fake_world.run(2, job) == [[True] * 3] * 2


def test_the_reason_names_the_process_that_was_asked():
  def job(world):
    if world.process_index == 1:
      world.stop.ask('SIGTERM')
    while not world.stop.poll():
      time.sleep(0.001)
    return world.stop.requested()

  assert fake_world.run(2, job) == ['SIGTERM at process 1'] * 2


def test_a_poll_that_holds_ends_when_a_peer_fails():
  service = kv.Service()

  def job(unused):
    world = fake_world.make(service, 0, 2)  # process 1 does not answer
    world.stop.ask('SIGTERM')
    while not world.stop.requested():
      time.sleep(0.001)
    failed = {'kind': 'failed', 'process_index': 1, 'what': 'failed: boom'}
    service.client(1).set('mail/1', json.dumps(failed).encode())
    world.stop.poll()

  (error,) = fake_world.run(1, job, return_errors=True)
  assert isinstance(error, errors.PeerFailedError)
  service.die()


def test_a_process_alone_stops_at_the_next_poll():
  stop = sync.SoloWorld().stop
  assert not stop.poll()
  stop.ask('SIGTERM')
  assert stop.poll()
  assert stop.requested() == 'SIGTERM'
