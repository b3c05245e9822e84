"""Followers beside a real training job, everything killed again and again."""

import os
import random
import signal
import threading
import time

import pytest

from paxlike import reporting
from tests.e2e import counting, program

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

# The same by hand for as long and as rough as one likes:
# FOLLOWER_TEST_S=60 FOLLOWER_TEST_KILLS=5
TRAIN_S = float(os.environ.get('FOLLOWER_TEST_S', '15'))
NUM_KILLS = int(os.environ.get('FOLLOWER_TEST_KILLS', '2'))
NUM_STEPS = int(TRAIN_S / 0.05)


def flags(mode, job_log_dir, *more):
  return (
    '--exp=tests.e2e.counting.Counting',
    f'--mode={mode}',
    f'--job_log_dir={job_log_dir}',
    f'--set=NUM_TRAIN_STEPS={NUM_STEPS}',
    *more,
  )


class Job(threading.Thread):
  """A job that is killed at random moments and started again.

  Attributes:
    status: With which it ended by itself.
    output: What it printed when it did.
    num_kills: How often it was killed.
  """

  def __init__(self, *arguments, seed):
    super().__init__(daemon=True)
    self.status = None
    self.output = ''
    self.num_kills = 0
    self._arguments = arguments
    self._moments = random.Random(seed)

  def run(self):
    for _ in range(NUM_KILLS):
      process = program.start(*self._arguments)
      # From before it has loaded to well in its work.
      wait_s = self._moments.uniform(1.0, 8.0)
      if self._ends(process, wait_s):
        return
      process.send_signal(signal.SIGKILL)
      process.communicate()
      self.num_kills += 1
    self._ends(program.start(*self._arguments), 10 * TRAIN_S + 120.0)

  def _ends(self, process, timeout_s):
    try:
      out, err = process.communicate(timeout=timeout_s)
    except program.subprocess.TimeoutExpired:
      if self.num_kills == NUM_KILLS:
        process.kill()
        self.output = 'still running: ' + ''.join(process.communicate())
      return False
    self.status, self.output = process.returncode, out + err
    return True


def test_followers_take_each_step_once_whoever_is_killed(tmp_path):
  seed = random.randrange(1 << 30)
  print('seed', seed)  # shown by pytest if the test fails
  jobs = {
    'train': Job(*flags('train', tmp_path), seed=seed),
    'eval': Job(*flags('eval', tmp_path), seed=seed + 1),
    'decode': Job(*flags('decode', tmp_path, '--follow'), seed=seed + 2),
  }
  for job in jobs.values():
    job.start()
  for job in jobs.values():
    job.join()
  for name, job in jobs.items():
    assert job.status == 0, f'{name}: {job.output[-4000:]}'
  assert sum(job.num_kills for job in jobs.values()) >= NUM_KILLS
  check_evaluations(tmp_path)
  check_decodes(tmp_path)


def check_evaluations(job_log_dir):
  lines = reporting.read_metrics(str(job_log_dir), 'eval_test_test')
  steps = [line['step'] for line in lines]
  assert steps == sorted(set(steps))
  assert steps[-1] == NUM_STEPS
  assert len(steps) >= 3
  for line in lines:
    assert line['num_examples'] == counting.NUM_TEST_EXAMPLES
    assert line['smallest'] == line['largest'] == line['step']


def check_decodes(job_log_dir):
  lines = reporting.read_metrics(str(job_log_dir), 'decode_test_rows')
  steps = [line['step'] for line in lines]
  assert steps == sorted(set(steps))
  assert steps[-1] == NUM_STEPS
  for line in lines:
    assert line['count'] == counting.NUM_DECODE_EXAMPLES
    pattern = f'{job_log_dir}/decoder_out/rows/decoder_out_{line["step"]}_*'
    pairs = list(reporting.read_key_values(pattern))
    keys = [str(i) for i in range(counting.NUM_DECODE_EXAMPLES)]
    assert [key for key, _ in pairs] == keys
    values = {(v['smallest'], v['largest']) for _, v in pairs}
    assert values == {(line['step'], line['step'])}


def test_a_trainer_that_is_gone_for_good_ends_its_follower(tmp_path):
  trainer = program.start(*flags('train', tmp_path))
  program.kill_when(
    trainer, (tmp_path / 'checkpoints/checkpoint_00000010').is_dir
  )
  started_s = time.monotonic()
  done = program.run(
    *flags('eval', tmp_path, '--set=task_p.train.follow_timeout_s=3')
  )
  assert done.returncode == 1
  assert 'vanished without a word' in done.stderr
  assert 'Traceback' not in done.stderr
  assert time.monotonic() - started_s < 90
  assert reporting.read_status(str(tmp_path), 'eval').state == 'failed'
  lines = reporting.read_metrics(str(tmp_path), 'eval_test_test')
  assert lines[-1]['step'] >= 10


def test_evaluating_needs_no_training_data(tmp_path):
  program.run_ok(*flags('train', tmp_path, '--set=NUM_TRAIN_STEPS=10'))
  program.run_ok(
    *flags(
      'eval',
      tmp_path,
      '--set=NUM_TRAIN_STEPS=10',
      '--set=HAS_TRAIN_DATA=False',
    )
  )
  lines = reporting.read_metrics(str(tmp_path), 'eval_test_test')
  assert [line['step'] for line in lines] == [10]
