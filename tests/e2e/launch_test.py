"""What a launcher started never outlives it, and loses nothing."""

import signal
import time

import pytest

from paxlike import reporting
from tests.e2e import program

pytestmark = [pytest.mark.e2e, pytest.mark.multiprocess, pytest.mark.slow]


def test_a_killed_launcher_is_a_request_to_stop(tmp_path):
  launcher = program.start(
    'launch',
    '--local=2',
    '--',
    '--exp=DigitsMlp',
    '--mode=train',
    f'--job_log_dir={tmp_path}',
    '--set=NUM_TRAIN_STEPS=100000',
  )

  def state():
    status = reporting.read_status(str(tmp_path), 'train')
    return ('none', 0) if status is None else (status.state, status.step)

  def wait_for(ready):
    deadline_s = time.monotonic() + 90
    while not ready(*state()):
      assert time.monotonic() < deadline_s, state()
      time.sleep(0.1)

  try:
    wait_for(lambda what, step: what == 'running' and step > 5)
  finally:
    launcher.send_signal(signal.SIGKILL)
  wait_for(lambda what, step: what == 'preempted')
  launcher.communicate(timeout=60)  # ends only when both have let go
  saved = sorted((tmp_path / 'checkpoints').glob('checkpoint_*'))[-1]
  assert int(saved.name.rpartition('_')[2]) == state()[1] > 5


def test_a_request_before_the_job_began_ends_with_the_status_of_a_stop(
  tmp_path,
):
  process = program.start(
    '--exp=tests.e2e.slow_to_import.Any',
    '--mode=train',
    f'--job_log_dir={tmp_path}',
  )
  assert process.stderr is not None
  assert process.stderr.readline() == 'loading\n'
  process.send_signal(signal.SIGTERM)
  _, err = process.communicate(timeout=50)
  assert process.returncode == 75, err
  assert 'before the job began' in err
