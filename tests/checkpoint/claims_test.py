"""Two that would write in one directory: one goes on, the other is told."""

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from paxlike import checkpoint, sync
from paxlike.checkpoint import _claims
from paxlike.core import errors, fs, processes
from tests.checkpoint import samples
from tests.fakes import clock as fake_clock
from tests.fakes import faulty_fs
from tests.fakes import world as fake_world

_TRAINER = """
import sys
import numpy as np
from paxlike import checkpoint
with checkpoint.CheckpointManager(sys.argv[1]) as manager:
  manager.save(1, {'w': np.ones(3)})
  manager.wait()
  print('saved', flush=True)
  sys.stdin.readline()
"""
_CLAIMANT = """
import sys, time
from paxlike.checkpoint import _claims
from paxlike.core import errors, fs
claim = _claims.Claim(fs.LOCAL, sys.argv[1])
print('ready', flush=True)
sys.stdin.readline()
try:
  claim.take()
  print('holds', flush=True)
except errors.CheckpointBusyError:
  print('refused', flush=True)
sys.stdin.readline()
claim.release()
"""


@contextlib.contextmanager
def program(text, directory):
  """A process that runs a text, until the block ends."""
  with subprocess.Popen(
    [sys.executable, '-c', text, str(directory)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
  ) as process:
    try:
      yield process
    finally:
      process.kill()


def manager(directory, **options):
  return checkpoint.CheckpointManager(directory, **options)


def claim(directory, **options):
  return _claims.Claim(fs.LOCAL, str(directory), **options)


def files(directory):
  return [n for n in os.listdir(directory) if n.startswith('writer_')]


def far_claim(directory, monkeypatch, *, pid=None, **options):
  """One that was taken by a process of another machine."""
  with monkeypatch.context() as there:
    there.setattr(processes, 'machine', lambda: 'aaaaaaaa')
    there.setattr(socket, 'gethostname', lambda: 'far')
    taken = claim(directory, **options)
    taken.take()
  return taken


# --- on one machine


def test_a_second_process_is_told_who_writes_and_changes_nothing(tmp_path):
  with program(_TRAINER, tmp_path) as trainer:
    assert trainer.stdout.readline() == 'saved\n'
    left = tmp_path / 'tmp_17.checkpoint_00000002'
    left.mkdir()
    with pytest.raises(
      errors.CheckpointBusyError,
      match=rf'written by process {trainer.pid} on {socket.gethostname()} since '
      rf'20.* UTC\..*kill {trainer.pid}.*read_only=True',
    ):
      manager(tmp_path)
    assert left.exists()
    with manager(tmp_path, read_only=True) as reader:
      assert reader.restore().step == 1
    trainer.stdin.write('\n')
    trainer.stdin.close()
    assert trainer.wait(60) == 0
  with manager(tmp_path) as mine:
    assert mine.save(2, samples.small())


def test_one_that_was_killed_is_not_waited_for(tmp_path):
  with program(_TRAINER, tmp_path) as trainer:
    assert trainer.stdout.readline() == 'saved\n'
    trainer.kill()
    trainer.wait()
    assert len(files(tmp_path)) == 1
    clock = fake_clock.FakeClock()
    with manager(tmp_path, clock=clock) as mine:
      assert mine.save(2, samples.small())
    assert clock.monotonic_s() == 0.0
  assert files(tmp_path) == []


def test_a_number_given_to_another_process_is_no_holder(tmp_path):
  claim(tmp_path).take()
  (name,) = files(tmp_path)
  before = str(int(processes.started(os.getpid())) - 1)
  parts = name.split('_')
  parts[3] = before
  os.rename(tmp_path / name, tmp_path / '_'.join(parts))
  claim(tmp_path).take()
  assert len(files(tmp_path)) == 1


def test_of_many_that_come_at_once_one_goes_on(tmp_path):
  with contextlib.ExitStack() as stack:
    all_of_them = [
      stack.enter_context(program(_CLAIMANT, tmp_path)) for _ in range(6)
    ]
    for process in all_of_them:
      assert process.stdout.readline() == 'ready\n'
    for process in all_of_them:
      process.stdin.write('\n')
    for process in all_of_them:
      process.stdin.flush()
    answers = [process.stdout.readline() for process in all_of_them]
    assert sorted(answers) == ['holds\n', *5 * ['refused\n']]
    assert len(files(tmp_path)) == 1


def test_what_a_process_wrote_as_it_died_is_cleared(tmp_path):
  with program(_CLAIMANT, tmp_path) as process:
    process.stdout.readline()
    process.stdin.write('\n')
    process.stdin.flush()
    assert process.stdout.readline() == 'holds\n'
    process.kill()
    process.wait()
  (name,) = files(tmp_path)
  (tmp_path / name).write_bytes(b'{"host": "a')
  with manager(tmp_path) as mine:
    assert len(files(tmp_path)) == 1
    assert mine.save(1, samples.small())


def test_a_copy_of_a_directory_is_nobodys(tmp_path):
  with manager(tmp_path / 'run') as mine:
    mine.save(1, samples.small())
    mine.wait()
    shutil.copytree(tmp_path / 'run', tmp_path / 'copy')
    with manager(tmp_path / 'copy') as other:
      assert other.save(2, samples.small())


def test_two_directories_have_two_writers(tmp_path):
  with manager(tmp_path / 'params') as one, manager(tmp_path / 'ema') as other:
    assert one.save(1, samples.small())
    assert other.save(1, samples.small())


# --- in one process


def test_a_second_manager_is_refused_once_the_first_has_written(tmp_path):
  with manager(tmp_path) as first:
    first.save(1, samples.small())
    with pytest.raises(
      errors.CheckpointBusyError,
      match=r'another CheckpointManager of this process.*close\(\) that one',
    ):
      manager(tmp_path)
    assert first.save(2, samples.small())
  with manager(tmp_path) as second:
    assert second.steps() == [1, 2]


def test_one_that_wrote_nothing_gives_way_and_is_told_at_its_save(tmp_path):
  first = manager(tmp_path)
  with manager(tmp_path) as second:
    assert second.save(1, samples.small(1))
    first.save(2, samples.small(2))
    with pytest.raises(
      errors.SaveError, match='taken over by another CheckpointManager of this'
    ):
      first.wait()
    with pytest.raises(errors.CheckpointBusyError, match='taken over'):
      first.delete(1)
    first.close()
    assert second.save(3, samples.small(3))
    second.wait()
    assert second.steps() == [1, 3]


def test_a_manager_that_is_dropped_stands_in_nobodys_way(tmp_path):
  mine = manager(tmp_path)
  mine.save(1, samples.small())
  mine.wait()
  del mine
  assert files(tmp_path) == []


def test_a_manager_that_could_not_be_made_holds_nothing(tmp_path):
  with manager(tmp_path) as mine:
    mine.save(1, samples.small())
  os.remove(tmp_path / 'checkpoint_00000001' / 'MANIFEST')
  with pytest.raises(errors.CheckpointDamagedError) as kept:
    manager(tmp_path)
  assert kept.value is not None
  assert files(tmp_path) == []


def test_a_reader_claims_nothing(tmp_path):
  with manager(tmp_path) as mine:
    mine.save(1, samples.small())
  with manager(tmp_path, read_only=True) as reader:
    reader.restore()
    assert files(tmp_path) == []


def test_processes_of_one_job_claim_once(tmp_path):
  def job(world):
    with manager(tmp_path, world=world) as mine:
      mine.save(1, {'w': np.ones(3)})
      mine.wait()
      world.barrier('saved')
      found = files(tmp_path)
      world.barrier('looked')
    return found

  first, second = fake_world.run(2, job)
  assert len(first) == 1
  assert first == second
  assert files(tmp_path) == []


def test_a_refusal_reaches_every_process(tmp_path):
  with manager(tmp_path) as mine:
    mine.save(1, samples.small())
    found = fake_world.run(
      2, lambda world: manager(tmp_path, world=world), return_errors=True
    )
  assert [type(e) for e in found] == [errors.CheckpointBusyError] * 2


# --- while it is held


def test_a_step_is_not_published_by_one_that_was_taken_for_dead(tmp_path):
  class TakenOver(fs.LocalFileSystem):
    def create(self, path, size_bytes):
      for name in files(tmp_path):
        os.remove(tmp_path / name)
      return super().create(path, size_bytes)

  mine = manager(tmp_path, file_system=TakenOver())
  mine.save(1, samples.small())
  with pytest.raises(errors.SaveError, match='somebody who has ended since'):
    mine.close()
  assert [n for n in os.listdir(tmp_path) if 'checkpoint_' in n] == []


def test_a_save_looks_at_its_claim_twice_and_writes_none(tmp_path):
  disk = faulty_fs.FaultyFileSystem()
  with manager(tmp_path, file_system=disk) as mine:
    begin = len(disk.calls)
    mine.save(1, samples.small())
    mine.wait()
    calls = [c.method for c in disk.calls[begin:] if 'writer_' in c.path]
  assert calls == ['exists', 'exists']


def test_steps_are_pinned_and_removed_beside_a_writer(tmp_path):
  with manager(tmp_path) as mine:
    for step in (1, 2, 3):
      mine.save(step, samples.small(step))
    mine.wait()
    checkpoint.tools.pin(tmp_path, [1])
    checkpoint.tools.remove(tmp_path, [2])
    assert mine.save(4, samples.small(4))
    mine.wait()
  with manager(tmp_path) as mine:
    assert mine.steps() == [1, 3, 4]


def test_nothing_is_converted_into_the_directory_of_a_writer(tmp_path):
  with manager(tmp_path / 'other') as other:
    other.save(7, samples.small(7))
  with manager(tmp_path / 'run') as mine:
    mine.save(1, samples.small(1))
    mine.wait()
    with pytest.raises(errors.CheckpointBusyError, match='is being written'):
      checkpoint.tools.convert(tmp_path / 'other', tmp_path / 'run', to='GDA')
    assert mine.save(2, samples.small(2))


def test_a_full_disk_can_be_claimed_and_cleared(tmp_path):
  left = tmp_path / 'tmp_17.checkpoint_00000001'

  class Full(fs.LocalFileSystem):
    def write_new(self, path, data):
      if data and left.exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
      super().write_new(path, data)

  left.mkdir()
  with manager(tmp_path, file_system=Full()) as mine:
    assert mine.save(1, samples.small())
  assert not left.exists()


# --- on other machines


def test_one_elsewhere_is_dead_when_its_file_does_not_change(
  tmp_path, monkeypatch, caplog
):
  clock = fake_clock.FakeClock()
  old = far_claim(tmp_path, monkeypatch, clock=clock)
  mine = claim(tmp_path, clock=clock)
  mine.take()
  assert 60.0 <= clock.monotonic_s() < 63.0
  assert caplog.text.count('waiting up to 60 s') == 1
  mine.check()
  with pytest.raises(errors.CheckpointBusyError, match='taken over by '):
    old.check()
  mine.release()


def test_one_elsewhere_that_is_long_silent_is_not_waited_for(
  tmp_path, monkeypatch
):
  clock = fake_clock.FakeClock()
  far_claim(tmp_path, monkeypatch, clock=clock)
  clock.advance_s(3600.0)
  before_s = clock.monotonic_s()
  claim(tmp_path, clock=clock).take()
  assert clock.monotonic_s() == before_s


def test_one_elsewhere_that_goes_on_writing_its_file_is_at_work(
  tmp_path, monkeypatch
):
  class Renewing(fake_clock.FakeClock):
    def sleep_s(self, duration_s):
      super().sleep_s(duration_s)
      if self.monotonic_s() > 20.0:
        old._write()

  clock = Renewing()
  old = far_claim(tmp_path, monkeypatch, clock=clock)
  with pytest.raises(
    errors.CheckpointBusyError, match=r'process \d+ on far since'
  ):
    claim(tmp_path, clock=clock).take()
  assert clock.monotonic_s() < 22.0
  old.check()


def test_one_that_was_taken_for_dead_does_not_come_back(tmp_path, monkeypatch):
  clock = fake_clock.FakeClock()
  monkeypatch.setattr(_claims, '_RENEW_S', 0.001)
  old = far_claim(tmp_path, monkeypatch, clock=clock)
  (name,) = files(tmp_path)
  os.remove(tmp_path / name)
  # It has looked, and looked again.
  looked = threading.Event()
  exists, count = fs.LocalFileSystem.exists, []

  def counting(self, path):
    count.append(path)
    if len(count) > 2:
      looked.set()
    return exists(self, path)

  monkeypatch.setattr(fs.LocalFileSystem, 'exists', counting)
  assert looked.wait(30)
  assert files(tmp_path) == []
  old.release()


def test_a_holder_renews_its_file(tmp_path, monkeypatch):
  clock = fake_clock.FakeClock()
  monkeypatch.setattr(_claims, '_RENEW_S', 0.001)
  mine = claim(tmp_path, clock=clock)
  mine.take()
  clock.advance_s(100.0)
  wanted = clock.now_s() + 60.0
  renewed = threading.Event()
  write_new = fs.LocalFileSystem.write_new

  def watching(self, path, data):
    write_new(self, path, data)
    if data and json.loads(data)['until_s'] == wanted:
      renewed.set()

  monkeypatch.setattr(fs.LocalFileSystem, 'write_new', watching)
  assert renewed.wait(30)
  mine.release()


def test_a_request_to_stop_ends_the_wait_for_who_may_be_dead(
  tmp_path, monkeypatch
):
  clock = fake_clock.FakeClock()
  old = far_claim(tmp_path, monkeypatch, clock=clock)
  (name,) = files(tmp_path)
  world = sync.SoloWorld()
  world.stop.ask('SIGTERM')
  with pytest.raises(errors.PreemptedError, match=r'process \d+ on far'):
    manager(tmp_path, clock=clock, world=world)
  assert clock.monotonic_s() < 1.0
  assert files(tmp_path) == [name]
  old.check()


def test_a_later_life_of_a_job_takes_over_at_once(tmp_path, monkeypatch):
  def life(number):
    return checkpoint.Generation(job='job', number=number)

  clock = fake_clock.FakeClock()
  old = far_claim(tmp_path, monkeypatch, clock=clock, generation=life(3))
  with manager(tmp_path, clock=clock, generation=life(4)) as mine:
    assert mine.save(1, samples.small())
    assert clock.monotonic_s() == 0.0
    with pytest.raises(errors.CheckpointBusyError, match='taken over'):
      old.check()
    with pytest.raises(errors.CheckpointBusyError, match='is being written'):
      claim(tmp_path, clock=clock, generation=life(3)).take()


@pytest.mark.parametrize('on_save_error', ['stop', 'warn'])
def test_a_loop_is_told_that_it_was_taken_over_before_its_next_save(
  tmp_path, on_save_error
):
  config = checkpoint.CheckpointConfig(on_save_error=on_save_error)
  old = manager(tmp_path, config=config)
  assert old.should_save(1)
  (name,) = files(tmp_path)
  os.remove(tmp_path / name)
  old._place.claim._renew_once()  # nobody is there: its next save will tell
  assert old.should_save(1)
  with manager(tmp_path):
    old._place.claim._renew_once()
    with pytest.raises(errors.SaveError, match='taken over by') as told:
      old.should_save(1)
    assert isinstance(told.value.__cause__, errors.CheckpointBusyError)
    # Nor does a run that bears with failing saves go on without a directory.
    old.save(1, samples.small())
    with pytest.raises(errors.SaveError, match='taken over by'):
      old.wait()
  old.close()
