"""A process that is alive but stuck is found out."""

import pathlib
import threading

from paxlike import sync
from paxlike.sync import _watchdog, _where
from tests.fakes import clock as fake_clock
from tests.fakes import world as fake_world


def _solo(clock):
  world = sync.SoloWorld()
  world.progress = sync.Progress(clock=clock)
  return world


def test_a_stall_writes_the_stacks_and_is_reported_once(tmp_path):
  clock = fake_clock.FakeClock()
  world = _solo(clock)
  dog = sync.Watchdog(world, str(tmp_path), floor_s=60.0, clock=clock)
  world.progress.step(5)
  clock.advance_s(59.0)
  assert dog.look() == ''
  clock.advance_s(2.0)
  report = dog.look()
  assert 'No step for 61 s after step 5; the limit is 60 s' in report
  stacks = (tmp_path / 'process_00000.txt').read_text()
  assert 'test_a_stall_writes_the_stacks' in stacks
  assert dog.look() == ''


def test_slow_steps_raise_the_limit(tmp_path):
  clock = fake_clock.FakeClock()
  world = _solo(clock)
  dog = sync.Watchdog(
    world, str(tmp_path), factor=10.0, floor_s=60.0, clock=clock
  )
  for step in range(4):
    world.progress.step(step)
    clock.advance_s(20.0)
  clock.advance_s(100.0)
  assert dog.look() == ''
  clock.advance_s(100.0)
  assert 'the limit is 200 s' in dog.look()


def test_compiling_for_long_is_no_stall(tmp_path):
  clock = fake_clock.FakeClock()
  world = _solo(clock)
  dog = sync.Watchdog(world, str(tmp_path), floor_s=60.0, clock=clock)
  world.progress.step(1)
  with world.progress.phase('compile'):
    clock.advance_s(10_000.0)
    assert dog.look() == ''


def test_an_evaluation_without_a_batch_is_a_stall_once_a_pass(tmp_path):
  clock = fake_clock.FakeClock()
  world = _solo(clock)
  dog = sync.Watchdog(
    world, str(tmp_path), factor=1.0, floor_s=60.0, clock=clock
  )
  world.progress.step(9)
  for _ in range(2):
    with world.progress.phase('eval kjv'), world.progress.batches() as tell:
      tell()
      clock.advance_s(59.0)
      assert dog.look() == ''
      tell()
      clock.advance_s(61.0)
      report = dog.look()
      clock.advance_s(61.0)
      assert dog.look() == ''
    assert 'No batch for 61 s at step 9, phase eval kjv, batch 2' in report
    world.progress.tick()  # the next pass is of other programs


def test_every_process_writes_and_one_says_who_differs(tmp_path):
  done = threading.Barrier(3)

  def job(world):
    world.progress.step(57)
    phase = 'input' if world.process_index == 1 else 'train'
    with world.progress.phase(phase):
      done.wait(20)
      report = _watchdog.dump_stacks(world, str(tmp_path), stall='step 57')
      done.wait(20)
    return report

  reports = [report for report in fake_world.run(3, job) if report]
  assert len(reports) == 1
  assert 'step 57, phase train: processes 0, 2' in reports[0]
  assert 'step 57, phase input: process 1' in reports[0]
  names = sorted(path.name for path in pathlib.Path(tmp_path).iterdir())
  assert names == [
    'process_00000.txt',
    'process_00001.txt',
    'process_00002.txt',
    'summary.txt',
  ]


def test_the_silent_are_named():
  at = _where.Where(
    process_index=0, host='h', pid=1, at='step 3, phase train', meetings=()
  )
  text = _watchdog.differing({0: at}, range(3))
  assert 'do not answer' in text
  assert text.endswith('1-2')
