"""What a job that is told to stop leaves of its summaries."""

import json
import signal
import time

import pytest

from paxlike import reporting
from tests.e2e import program
from tests.reporting import events

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_the_last_summary_before_a_stop_is_on_the_disk(tmp_path, number):
  process = program.start(
    '--exp=DigitsMlp',
    '--mode=train',
    f'--job_log_dir={tmp_path}',
    '--set=NUM_TRAIN_STEPS=1000000',
    '--set=task_p.train.summary_interval_steps=1',
  )
  first = tmp_path / 'checkpoints' / 'checkpoint_00000200'
  deadline_s = time.monotonic() + 120
  while not first.exists():
    assert process.poll() is None
    assert time.monotonic() < deadline_s
    time.sleep(0.02)
  process.send_signal(number)
  _, err = process.communicate(timeout=120)
  assert process.returncode == 75, err
  status = reporting.read_status(str(tmp_path), 'train')
  assert status is not None
  lines = (tmp_path / 'metrics' / 'train.jsonl').read_text().splitlines()
  assert json.loads(lines[-1])['step'] == status.step
  steps = [event.step for event in events.read_purged(tmp_path, 'train')]
  assert max(steps) == status.step
