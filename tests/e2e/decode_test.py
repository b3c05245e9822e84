"""A decode that is killed goes on, at any number of processes."""

import random
import signal
import time

import pytest

from paxlike import reporting
from tests.e2e import counting, program
from tests.multiprocess import harness

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SETTINGS = (
  '--set=NUM_TRAIN_STEPS=2',
  '--set=DECODE_S=0.1',
  '--set=decode.batches_per_commit=2',
)


def flags(mode, job_log_dir):
  return (
    '--exp=tests.e2e.counting.Counting',
    f'--mode={mode}',
    f'--job_log_dir={job_log_dir}',
    *SETTINGS,
  )


def parts(job_log_dir):
  where = job_log_dir / 'decoder_out/rows/decoder_out_2.partial'
  return len(list(where.glob('batches_*'))) if where.is_dir() else 0


def test_three_kills_lose_and_repeat_no_key(tmp_path):
  seed = random.randrange(1 << 30)
  print('seed', seed)  # shown by pytest if the test fails
  moments = random.Random(seed)
  program.run_ok(*flags('train', tmp_path))
  killed_as_two(tmp_path, at=moments.randrange(2, 6))
  num_kills = 0
  for _ in range(2):
    at = parts(tmp_path) + moments.randrange(3)
    process = program.start(*flags('decode', tmp_path))
    num_kills += program.kill_when(process, lambda at=at: parts(tmp_path) > at)
  assert num_kills >= 1
  printed = program.run_ok(*flags('decode', tmp_path))
  assert 'Decoding goes on' in printed
  pairs = list(
    reporting.read_key_values(f'{tmp_path}/decoder_out/rows/decoder_out_2_*')
  )
  keys = [str(i) for i in range(counting.NUM_DECODE_EXAMPLES)]
  assert [key for key, _ in pairs] == keys
  (line,) = reporting.read_metrics(str(tmp_path), 'decode_test_rows')
  assert line['count'] == counting.NUM_DECODE_EXAMPLES
  assert parts(tmp_path) == 0


def killed_as_two(job_log_dir, *, at):
  """Decodes with two processes and kills both when so many parts are there."""
  address = f'localhost:{harness.free_port()}'
  processes = [
    program.start(
      *flags('decode', job_log_dir),
      f'--coordinator_address={address}',
      '--num_processes=2',
      f'--process_id={index}',
    )
    for index in range(2)
  ]
  deadline_s = time.monotonic() + 120.0
  try:
    while parts(job_log_dir) < at:
      assert time.monotonic() < deadline_s, 'no part was ever written'
      assert all(process.poll() is None for process in processes)
      time.sleep(0.01)
  finally:
    for process in processes:
      process.send_signal(signal.SIGKILL)
      process.communicate()
