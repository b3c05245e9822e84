"""Real full, read-only and foreign disks, and a reader beside a sweep."""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.core import errors
from tests.fakes import disks, faulty_fs

is_root = os.geteuid() == 0


@pytest.fixture
def small_disk(tmp_path):
  """A disk of 4 MB."""
  with disks.mounted(tmp_path / 'disk', size='4m') as path:
    yield path


def state(megabytes, value):
  return {'w': np.full((megabytes << 18,), value, np.float32)}


@pytest.mark.parametrize('kind', ['GDA', 'FLAX', 'MULTI_HOST_FLAX'])
def test_a_full_disk_stops_the_run_and_keeps_the_last_step(small_disk, kind):
  config = checkpoint.CheckpointConfig(type=kind)
  manager = checkpoint.CheckpointManager(small_disk, config=config)
  manager.save(1, state(1, 1.0))
  manager.wait()
  manager.save(2, state(5, 2.0))
  with pytest.raises(errors.SaveError, match=r'Step 2.*No space left'):
    manager.close()
  with checkpoint.CheckpointManager(small_disk, config=config) as manager:
    found = manager.restore()
    assert found.step == 1
    assert (found.state['w'] == 1.0).all()
    assert manager.save(3, state(1, 3.0))
  assert sorted(os.listdir(small_disk)) == [
    'checkpoint_00000001',
    'checkpoint_00000003',
    'checkpoints.pb',
  ]


def test_a_full_disk_with_the_warn_policy_lets_the_run_go_on(
  small_disk, caplog
):
  config = checkpoint.CheckpointConfig(on_save_error='warn')
  with checkpoint.CheckpointManager(small_disk, config=config) as manager:
    manager.save(1, state(5, 1.0))
    manager.save(2, state(1, 2.0))
    manager.wait()
    assert manager.steps() == [2]
  assert 'No space left' in caplog.text


def test_a_read_only_disk_is_told_at_the_start_and_is_readable(small_disk):
  with checkpoint.CheckpointManager(small_disk) as manager:
    manager.save(1, state(1, 1.0))
  subprocess.run(['mount', '-o', 'remount,ro', small_disk], check=True)
  with pytest.raises(errors.SaveError, match='Read-only file system'):
    checkpoint.CheckpointManager(small_disk)
  with checkpoint.CheckpointManager(small_disk, read_only=True) as manager:
    assert manager.restore().step == 1


@contextlib.contextmanager
def as_nobody():
  os.seteuid(65534)
  try:
    yield
  finally:
    os.seteuid(0)


@pytest.mark.skipif(not is_root, reason='only root can become someone else')
def test_another_user_reads_but_does_not_write():
  with tempfile.TemporaryDirectory() as directory:
    os.chmod(directory, 0o755)
    with checkpoint.CheckpointManager(directory) as manager:
      manager.save(1, state(1, 1.0))
    with as_nobody():
      with pytest.raises(errors.SaveError, match='Permission denied'):
        checkpoint.CheckpointManager(directory)
      with checkpoint.CheckpointManager(directory, read_only=True) as manager:
        assert manager.restore().step == 1


def late(seed: int) -> faulty_fs.FaultyFileSystem:
  """A disk that takes its time at every single call."""
  chance = random.Random(seed)
  return faulty_fs.FaultyFileSystem(
    faulty_fs.DelayWhen(
      lambda number, call: True,
      lambda: time.sleep(chance.expovariate(1.0) * 0.0004),
    ),
    num_threads=1,
  )


def test_a_reader_looks_until_it_sees_a_step_that_is_there(tmp_path):
  with checkpoint.CheckpointManager(
    tmp_path, keep_policy=checkpoint.KeepPolicy(max_to_keep=1)
  ) as writer:
    writer.save(1, state(1, 1.0))
    writer.wait()
    left = [2, 3, 4, 5]

    def sweep_what_was_listed() -> None:
      if left:
        step = left.pop(0)
        writer.save(step, state(step, 1.0))
        writer.wait()

    disk = faulty_fs.FaultyFileSystem(
      faulty_fs.DelayWhen(
        lambda number, call: call.method == 'exists', sweep_what_was_listed
      ),
      num_threads=1,
    )
    reader = checkpoint.CheckpointManager(
      tmp_path, read_only=True, file_system=disk
    )
    assert reader.steps() == [5]
    assert not left
    reader.close()


WRITER = """
import sys
import tempfile
import numpy as np
from paxlike import checkpoint
from tests.checkpoint import disks_test
keep = checkpoint.KeepPolicy(max_to_keep=1)
config = checkpoint.CheckpointConfig(lease_s={lease_s})
with checkpoint.CheckpointManager(
  {directory!r}, keep_policy=keep, config=config,
  file_system=disks_test.late(1),
) as manager:
  step = 0
  while not sys.stdin.closed and step < 100000:
    step += 1
    manager.save(step, {{'a': np.full(2000, step), 'b': np.full(10, step)}})
    manager.wait()
    if step == 1:
      print('ready', flush=True)
"""


NUM_ROUNDS = 200


@pytest.mark.slow
@pytest.mark.parametrize('can_lease', [True, False])
def test_a_reader_beside_a_sweep_never_fails_and_never_mixes_steps(
  tmp_path, can_lease
):
  program = WRITER.format(directory=str(tmp_path), lease_s=600.0)
  writer = subprocess.Popen(
    [sys.executable, '-c', program],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  )
  disk = late(2)
  if not can_lease:

    def refuse(path, data):
      raise PermissionError(13, 'Permission denied')

    disk.write_new = refuse
  try:
    assert writer.stdout.readline() == b'ready\n'
    seen = []
    with checkpoint.CheckpointManager(
      tmp_path, read_only=True, file_system=disk
    ) as manager:
      for _ in range(NUM_ROUNDS):
        assert manager.steps()
        found = manager.restore()
        values = {int(v) for leaf in found.state.values() for v in leaf}
        assert values == {found.step}
        seen.append(found.step)
    assert seen == sorted(seen)
    assert len(set(seen)) > NUM_ROUNDS // 4
    assert writer.poll() is None
    # Each call was late, those on open files as well.
    assert {'list_dir', 'read_bytes', 'open_read', 'read_into', 'exists'} <= {
      call.method for call in disk.calls
    }
  finally:
    writer.kill()
    writer.wait()
    writer.stdin.close()
    writer.stdout.close()
