"""Who will never come is found out long before the deadline."""

import threading

from paxlike.core import errors
from paxlike.sync import _doubt
from tests.fakes import world as fake_world


def test_a_process_that_begins_the_next_step_without_a_call_is_named():
  done = threading.Event()

  def job(world):
    world.progress.step(1)
    if world.process_index == 1:
      world.progress.step(2)
      done.wait(20)
      return
    try:
      world.barrier('save/1', timeout_s=1_000.0)
    finally:
      done.set()

  found = fake_world.run(2, job, return_errors=True)
  assert isinstance(found[0], errors.BarrierTimeoutError)
  assert found[0].missing == (1,)
  text = str(found[0])
  assert "Process 1 never called 'save/1': it went on without it" in text
  assert 'step 2, phase none' in text
  assert 'done.wait' in text


def test_a_process_that_is_behind_is_waited_for():
  def job(world):
    world.progress.step(1)
    if world.process_index == 1:
      threading.Event().wait(0.5)  # 10 fast seconds
    world.barrier('save/1', timeout_s=1_000.0)
    world.progress.step(2)
    return True

  assert fake_world.run(2, job) == [True, True]


def test_a_call_whose_meetings_a_thread_has_counts_in_the_order_of_main():
  def job(world):
    scope = world.scoped('ckpt')
    if world.process_index == 1:
      world.barrier('end', timeout_s=1_000.0)
      return
    scope.announce('save/1')
    found = []

    def write():
      try:
        scope.broadcast('save/1/begin', b'x', timeout_s=1_000.0)
        scope.gather('save/1/written', b'', timeout_s=1_000.0)
      except errors.SyncError as error:
        found.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join(20)
    raise found[0]

  for error in fake_world.run(2, job, return_errors=True):
    assert isinstance(error, errors.BarrierMismatchError)
    assert set(error.names) == {'ckpt/save/1/written', 'end'}


def test_threads_of_one_call_may_be_at_different_meetings_of_it():
  def job(world):
    world.announce('save/1')

    def write():
      if world.process_index == 0:
        threading.Event().wait(0.2)  # 4 fast seconds in which the other looks
      world.broadcast('save/1/begin', b'x')
      if world.process_index == 1:
        threading.Event().wait(0.2)
      world.gather('save/1/written', b'')

    thread = threading.Thread(target=write)
    thread.start()
    thread.join(20)
    world.barrier('end')
    return not thread.is_alive()

  assert fake_world.run(2, job) == [True, True]


def test_meetings_of_one_line_are_of_one_kind():
  assert _doubt.kind_of('save/12/3/called') == _doubt.kind_of('save/9/4/called')
  assert _doubt.kind_of('save/12/written') != _doubt.kind_of('save/12/called')
