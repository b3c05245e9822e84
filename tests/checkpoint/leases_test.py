import os
import shutil

import pytest

from paxlike import checkpoint
from paxlike.core import fs
from tests.checkpoint import samples
from tests.fakes import clock as fake_clock


def make(directory, *steps, **options):
  keep = checkpoint.KeepPolicy(max_to_keep=1)
  manager = checkpoint.CheckpointManager(
    str(directory), keep_policy=keep, **options
  )
  for step in steps:
    manager.save(step, samples.small(step))
    manager.wait()
  return manager


def files(directory, step):
  path = directory / f'checkpoint_{step:08d}'
  return sorted(n for n in os.listdir(path) if n.startswith('lease_'))


def test_a_step_outlives_the_sweep_until_its_lease_is_released(tmp_path):
  with make(tmp_path, 1) as manager:
    lease = checkpoint.lease(str(tmp_path), 1, duration_s=60.0)
    assert lease.is_granted
    manager.save(2, samples.small(2))
    manager.wait()
    assert manager.steps() == [1, 2]
    lease.release()
    lease.release()
    manager.save(3, samples.small(3))
    manager.wait()
    assert manager.steps() == [3]


def test_the_lease_of_one_who_died_ends_by_itself(tmp_path):
  clock = fake_clock.FakeClock()
  with make(tmp_path, 1, clock=clock) as manager:
    checkpoint.lease(str(tmp_path), 1, duration_s=60.0, clock=clock)
    clock.advance_s(61.0)
    manager.save(2, samples.small(2))
    manager.wait()
    assert manager.steps() == [2]


def test_a_lease_that_is_renewed_lasts(tmp_path):
  clock = fake_clock.FakeClock()
  with make(tmp_path, 1, clock=clock) as manager:
    lease = checkpoint.lease(str(tmp_path), 1, duration_s=60.0, clock=clock)
    before = files(tmp_path, 1)
    lease.renew()
    assert files(tmp_path, 1) == before
    clock.advance_s(40.0)
    lease.renew()
    assert len(files(tmp_path, 1)) == 1
    clock.advance_s(40.0)
    manager.save(2, samples.small(2))
    manager.wait()
    assert manager.steps() == [1, 2]


def test_there_is_no_lease_on_a_step_that_is_not_there(tmp_path):
  make(tmp_path, 1).close()
  assert checkpoint.lease(str(tmp_path), 7, duration_s=60.0) is None
  assert checkpoint.lease(str(tmp_path / 'no'), 1, duration_s=60.0) is None


def test_there_is_no_lease_on_a_step_that_is_swept_while_it_is_taken(
  tmp_path, monkeypatch
):
  make(tmp_path, 1).close()
  write_new = fs.LocalFileSystem.write_new

  def late(self, path, data):
    shutil.rmtree(os.path.dirname(path))
    write_new(self, path, data)

  monkeypatch.setattr(fs.LocalFileSystem, 'write_new', late)
  assert checkpoint.lease(str(tmp_path), 1, duration_s=60.0) is None


@pytest.mark.parametrize('error', [PermissionError, OSError])
def test_without_permission_to_write_there_is_a_lease_that_is_not_granted(
  tmp_path, monkeypatch, error
):
  make(tmp_path, 1).close()

  def refuse(self, path, data):
    raise error(path)

  monkeypatch.setattr(fs.LocalFileSystem, 'write_new', refuse)
  lease = checkpoint.lease(str(tmp_path), 1, duration_s=60.0)
  assert not lease.is_granted
  lease.release()
  assert files(tmp_path, 1) == []
