"""Evaluating and decoding on several processes: the numbers of one."""

import sys

import pytest

from paxlike import reporting
from tests.e2e import program
from tests.multiprocess import harness

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

# 360 examples as 125 + 125 + 110: no batch divides by processes or devices.
FLAGS = (
  '--exp=DigitsMlp',
  '--set=NUM_TRAIN_STEPS=5',
  '--nocompilation_cache',
)


@pytest.fixture(scope='module', name='trained')
def _trained(tmp_path_factory):
  directory = tmp_path_factory.mktemp('trained')
  program.run_ok(*FLAGS, '--mode=train', f'--job_log_dir={directory}')
  return directory


def run(trained, job_log_dir, mode, num_processes, *, batch_size=125):
  address = f'localhost:{harness.free_port()}'
  more = ('--nofollow',) if mode == 'eval' else ()
  ended = harness.run_commands(
    [
      [
        *(sys.executable, '-m', 'paxlike.main', *FLAGS, *more),
        f'--mode={mode}',
        f'--set=TEST_BATCH_SIZE={batch_size}',
        f'--job_log_dir={job_log_dir}',
        f'--restore_checkpoint_dir={trained}/checkpoints',
        f'--coordinator_address={address}',
        f'--num_processes={num_processes}',
        f'--process_id={index}',
      ]
      for index in range(num_processes)
    ],
    timeout_s=120.0,
  )
  statuses = [process.status for process in ended]
  assert statuses == [0] * num_processes, ended[0].output


def line_of(job_log_dir, name):
  (line,) = reporting.read_metrics(str(job_log_dir), name)
  return {k: v for k, v in line.items() if k != 'wall_time'}


# Of 359 + 1 examples, two of three processes run dry before the last batch.
@pytest.mark.parametrize(('num_processes', 'batch_size'), [(2, 125), (3, 359)])
def test_several_processes_find_what_one_does(
  trained, tmp_path, num_processes, batch_size
):
  run(trained, tmp_path / 'one', 'eval', 1)
  run(trained, tmp_path / 'more', 'eval', num_processes, batch_size=batch_size)
  want = line_of(tmp_path / 'one', 'eval_test_digits_test')
  found = line_of(tmp_path / 'more', 'eval_test_digits_test')
  assert found['num_examples'] == 360
  assert {'loss', 'accuracy', 'f1_macro', 'auc', 'calibration_error'} <= (
    found.keys()
  )
  assert found == pytest.approx(want, rel=1e-6)


def test_three_processes_write_each_key_once_in_order(trained, tmp_path):
  run(trained, tmp_path, 'decode', 3)
  where = tmp_path / 'decoder_out/digits_classes'
  assert len(list(where.glob('*_shard_*-of-3.jsonl'))) == 3
  pairs = list(reporting.read_key_values(where / 'decoder_out_5_*'))
  assert [key for key, _ in pairs] == [str(i) for i in range(360)]
  hits = [v['predicted'] == v['labels'] for _, v in pairs]
  line = line_of(tmp_path, 'decode_test_digits_classes')
  assert line['accuracy'] == pytest.approx(sum(hits) / 360, abs=1e-9)
