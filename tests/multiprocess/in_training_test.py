"""Evaluating inside training and after it, on several processes: one result."""

import sys

import pytest

from paxlike import reporting
from tests.multiprocess import harness

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

FLAGS = (
  '--exp=DigitsMlp',
  '--set=NUM_TRAIN_STEPS=5',
  '--set=TEST_BATCH_SIZE=125',
  '--nocompilation_cache',
)


def run(job_log_dir, mode, *more):
  address = f'localhost:{harness.free_port()}'
  ended = harness.run_commands(
    [
      [
        *(sys.executable, '-m', 'paxlike.main', *FLAGS, *more),
        f'--mode={mode}',
        f'--job_log_dir={job_log_dir}',
        f'--coordinator_address={address}',
        '--num_processes=2',
        f'--process_id={index}',
      ]
      for index in range(2)
    ],
    timeout_s=120.0,
  )
  assert [process.status for process in ended] == [0, 0], ended[0].output


def line_of(job_log_dir):
  (line,) = reporting.read_metrics(str(job_log_dir), 'eval_test_digits_test')
  del line['wall_time']
  return line


def test_the_eval_job_finds_the_bits_that_training_found(tmp_path):
  training, job = tmp_path / 'training', tmp_path / 'job'
  run(training, 'train', '--eval_on_test')
  where = f'--restore_checkpoint_dir={training}/checkpoints'
  run(job, 'eval', where, '--nofollow')
  want, found = line_of(training), line_of(job)
  assert found.pop('checkpoint_time') > 0
  assert found == want
  assert found['num_examples'] == 360
  names = {'accuracy', 'f1_macro', 'auc', 'calibration_error', 'loss'}
  assert names <= found.keys()
