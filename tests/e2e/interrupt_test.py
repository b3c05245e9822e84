"""Ctrl-C, and disks without room or permission, as a user meets them."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from paxlike import reporting
from tests.e2e import program
from tests.fakes import disks

pytestmark = pytest.mark.e2e

JOB = ('--exp=DigitsMlp', '--mode=train')


def test_a_second_ctrl_c_breaks_no_save(tmp_path):
  process = program.start(
    *JOB, f'--job_log_dir={tmp_path}', '--set=NUM_TRAIN_STEPS=1000000'
  )
  deadline_s = time.monotonic() + 120
  first = tmp_path / 'checkpoints' / 'checkpoint_00000200'
  while not first.exists():
    assert process.poll() is None
    assert time.monotonic() < deadline_s
    time.sleep(0.02)
  process.send_signal(signal.SIGINT)
  time.sleep(0.05)
  process.send_signal(signal.SIGINT)
  _, err = process.communicate(timeout=120)
  assert process.returncode == 75, err
  assert 'Traceback' not in err
  assert err.splitlines()[-1].startswith('paxlike: Stopped on request after')
  status = reporting.read_status(str(tmp_path), 'train')
  assert status is not None
  assert status.state == 'preempted'
  newest = max(path.name for path in (tmp_path / 'checkpoints').glob('ch*_*'))
  assert int(newest.removeprefix('checkpoint_')) == status.step


def test_a_ctrl_c_before_the_job_begins_is_a_stop_too(tmp_path):
  process = program.start(*JOB, f'--job_log_dir={tmp_path}')
  time.sleep(0.5)
  process.send_signal(signal.SIGINT)
  _, err = process.communicate(timeout=120)
  assert process.returncode == 75, err
  assert 'Traceback' not in err


def test_a_disk_that_is_full_before_the_start_is_one_line(tmp_path):
  with disks.mounted(tmp_path / 'small', size='64k') as mount:
    with open(mount / 'fill', 'wb', buffering=0) as file:
      for _ in range(16):
        file.write(bytes(4096))
    ended = program.run(*JOB, f'--job_log_dir={mount}/run')
  assert ended.returncode == 1
  (line,) = ended.stderr.splitlines()
  assert line.startswith(f'paxlike: Cannot write {mount}/run/config/train')
  assert 'No space left on device' in line


def _as_anybody() -> list[str]:
  """Before a command: as root, without the right to write everywhere."""
  if os.geteuid():
    return []
  if shutil.which('setpriv') is None:
    pytest.skip('there is no setpriv here')
  return ['setpriv', '--bounding-set=-dac_override,-dac_read_search']


@pytest.fixture
def others_run(tmp_path):
  """The directory of a run that may be read but not written to."""
  run = tmp_path / 'run'
  program.run_ok(*JOB, f'--job_log_dir={run}', '--set=NUM_TRAIN_STEPS=2')
  paths = [run, *run.rglob('*')]
  for path in paths:
    path.chmod(0o555 if path.is_dir() else 0o444)
  yield run
  for path in paths:
    path.chmod(0o755)


@pytest.mark.parametrize('mode', ['train', 'eval', 'decode'])
def test_a_directory_of_somebody_else_is_one_line(others_run, mode):
  ended = subprocess.run(
    [
      *_as_anybody(),
      *(sys.executable, '-m', 'paxlike.main', '--exp=DigitsMlp'),
      *(f'--mode={mode}', f'--job_log_dir={others_run}'),
      '--nocompilation_cache',
    ],
    cwd=program.ROOT,
    env=program.environment(),
    capture_output=True,
    text=True,
    check=False,
  )
  (line,) = ended.stderr.splitlines()
  assert line.startswith(f'paxlike: {others_run}/')
  assert 'Permission denied' in line
  assert 'Give a --job_log_dir that you may write to' in line
  source = f'--restore_checkpoint_dir={others_run}/checkpoints'
  assert (source in line) == (mode != 'train')
  assert ended.returncode == 2
