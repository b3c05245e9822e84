"""Meetings between processes that are threads over a dictionary."""

import logging
import threading

import pytest

from paxlike.core import errors
from tests.fakes import clock as fake_clock
from tests.fakes import kv
from tests.fakes import world as fake_world


def test_nobody_leaves_a_barrier_before_all_have_come():
  arrived, lock = [], threading.Lock()

  def job(world):
    with lock:
      arrived.append(world.process_index)
    world.barrier('b')
    return len(arrived)

  assert fake_world.run(5, job) == [5] * 5


def test_every_process_gets_what_process_zero_broadcast():
  def job(world):
    value = b'chosen' if world.process_index == 0 else None
    return world.broadcast('which', value)

  assert fake_world.run(3, job) == [b'chosen'] * 3


def test_gather_gives_all_values_by_process_index():
  def job(world):
    return world.gather('g', bytes(world.process_index))

  assert fake_world.run(4, job) == [[b'', b'\0', b'\0' * 2, b'\0' * 3]] * 4


def test_a_barrier_names_the_process_that_skipped_it_and_where_it_is():
  done = threading.Event()

  def job(world):
    if world.process_index == 1:
      with world.progress.phase('train'):
        world.progress.step(7)
        wait_here_for(done)
      return
    try:
      world.barrier('save/7', timeout_s=4.0)
    finally:
      done.set()
    return

  errors_seen = fake_world.run(3, job, return_errors=True)
  for index in (0, 2):
    error = errors_seen[index]
    assert isinstance(error, errors.BarrierTimeoutError)
    assert error.missing == (1,)
    assert error.name == 'save/7'
    assert 'process 1' in str(error)
    assert 'step 7, phase train' in str(error)
    assert 'wait_here_for' in str(error)
  assert str(errors_seen[0]) == str(errors_seen[2])


def test_a_long_wait_is_told_every_thirty_seconds_with_who_is_missing(caplog):
  caplog.set_level(logging.INFO, logger='absl')

  def job(world):
    if world.process_index != 1:
      world.barrier('b', timeout_s=70.0)

  fake_world.run(3, job, return_errors=True)
  told = [r.getMessage() for r in caplog.records if 'waited' in r.getMessage()]
  assert {text.split(' has')[0] for text in told} == {'Process 0', 'Process 2'}
  assert len(told) == 4  # after 30 and 60 of 70 s
  assert sum('Not there yet: 1.' in text for text in told) == 2


def wait_here_for(event):
  event.wait(20)


def test_a_process_that_does_not_answer_is_said_to_be_dead_or_stopped():
  def job(world):
    if world.process_index == 1:
      world.mail.close()
      return
    world.barrier('b', timeout_s=4.0)

  service = kv.Service()
  # Process 1 has a world but no thread that could answer.
  error = fake_world.run(1, lambda world: _alone(service), return_errors=True)[
    0
  ]
  assert isinstance(error, errors.BarrierTimeoutError)
  assert 'process 1 does not answer' in str(error)


def _alone(service):
  world = fake_world.make(service, 0, 2)
  world.barrier('b', timeout_s=4.0)


def test_barriers_of_different_names_fail_long_before_their_deadline():
  def job(world):
    world.barrier(f'name of {world.process_index}', timeout_s=1_000.0)

  found = fake_world.run(2, job, return_errors=True)
  for error in found:
    assert isinstance(error, errors.BarrierMismatchError)
    assert set(error.names) == {'name of 0', 'name of 1'}
    assert "'name of 0': processes 0" in str(error)
    assert "'name of 1': processes 1" in str(error)


def test_other_threads_may_wait_in_another_order():
  def job(world):
    names = ['a', 'b'] if world.process_index == 0 else ['b', 'a']
    ready = threading.Event()

    def background():
      ready.wait(20)
      world.barrier(names[1], timeout_s=200.0)

    thread = threading.Thread(target=background)
    thread.start()
    helper = threading.Thread(
      target=lambda: world.barrier(names[0], timeout_s=200.0)
    )
    helper.start()
    helper.join(0.2)  # long enough (4 fast seconds) to look around
    ready.set()
    thread.join(20)
    helper.join(20)
    return thread.is_alive() or helper.is_alive()

  assert fake_world.run(2, job) == [False, False]


def test_a_name_serves_once():
  def job(world):
    world.barrier('b')
    world.barrier('b')

  for error in fake_world.run(2, job, return_errors=True):
    assert isinstance(error, errors.SyncError)
    assert 'second time' in str(error)


def test_two_scopes_of_one_prefix_do_not_meet():
  def job(world):
    first, second = world.scoped('ckpt'), world.scoped('ckpt')
    order = [first, second] if world.process_index == 0 else [second, first]
    got = {}
    threads = [
      threading.Thread(
        target=lambda w=w: got.__setitem__(
          w is first, w.gather('save', str(w is first).encode())
        )
      )
      for w in order
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(20)
    return got

  for got in fake_world.run(2, job):
    assert got == {True: [b'True', b'True'], False: [b'False', b'False']}


def test_a_failure_elsewhere_ends_a_wait_and_names_the_culprit():
  def job(world):
    if world.process_index == 1:
      world.progress.step(12)
      world.report_failure(ValueError('boom'))
      return
    world.barrier('b', timeout_s=1_000.0)

  found = fake_world.run(3, job, return_errors=True)
  for index in (0, 2):
    assert isinstance(found[index], errors.PeerFailedError)
    assert 'Process 1 failed at step 12' in str(found[index])
    assert 'ValueError: boom' in str(found[index])


@pytest.mark.parametrize('process_count', [16, 256])
def test_messages_a_process_do_not_grow_with_the_number_of_processes(
  process_count,
):
  # Slow time: on a busy machine nobody may wait so long as to look around.
  service = kv.Service(clock=fake_clock.FastClock(0.1))

  def job(world):
    world.barrier('warm up')
    before = service.calls[world.process_index]
    world.barrier('b')
    return service.calls[world.process_index] - before

  assert max(fake_world.run(process_count, job, service=service)) <= 3


@pytest.mark.slow
def test_thousands_of_processes_cost_two_messages_each_a_barrier():
  process_count = 4_096
  service = kv.Service(clock=fake_clock.FastClock(0.01))  # nobody looks around
  waited = fake_world.meet_many(
    service,
    process_count,
    lambda meetings, index: [
      meetings.barrier('b', timeout_s=60.0),
      meetings.gather('g', b'%d' % index, b','.join, timeout_s=60.0),
    ][1],
  )
  assert set(waited) == {b','.join(b'%d' % i for i in range(process_count))}
  # barrier: count, verdict; gather: value, count, verdict; the last to come
  # to the gather reads and removes the values instead of waiting.
  assert max(service.calls.values()) <= 7
  assert sum(service.calls.values()) <= 5 * process_count + 4


def test_the_service_forgets_meetings_that_are_over():
  service = kv.Service()

  def job(world):
    for step in range(20):
      world.gather(f'g/{step}', b'x' * 100, timeout_s=2.0)
      world.broadcast(f'b/{step}', b'y' * 100, timeout_s=2.0)
    threading.Event().wait(0.2)  # 4 fast seconds: all deadlines are over
    for index in range(2):
      world.barrier(f'last/{index}', timeout_s=2.0)
    with service.lock:
      return len(service.values)

  assert max(fake_world.run(2, job, service=service)) <= 25
