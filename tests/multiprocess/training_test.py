"""The program on several processes: the same run as on one."""

import json
import pathlib
import re
import signal
import sys
import time

import pytest

from tests.multiprocess import harness

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

NUM_STEPS = 16
BATCH_SIZE = 8


def train(
  job_log_dir, num_processes, *, during=None, timeout_s=150.0
) -> list[harness.Process]:
  """Trains a small model on that many processes of two devices each.

  Without the compilation cache, since gloo gives up a first collective that
  one process enters half a minute before the others.
  """
  address = f'localhost:{harness.free_port()}'
  commands = [
    [
      *(sys.executable, '-m', 'paxlike.main'),
      '--exp=tests.e2e.toys.SmallLm',
      '--mode=train',
      '--nocompilation_cache',
      f'--job_log_dir={job_log_dir}',
      f'--coordinator_address={address}',
      f'--num_processes={num_processes}',
      f'--process_id={index}',
      f'--set=BATCH_SIZE={BATCH_SIZE}',
      '--set=DROPOUT_RATE=0.0',
      f'--set=task_p.train.num_train_steps={NUM_STEPS}',
      '--set=task_p.train.save_interval_steps=4',
    ]
    for index in range(num_processes)
  ]
  return harness.run_commands(commands, during=during, timeout_s=timeout_s)


def lines_of(job_log_dir) -> list[dict]:
  """What the run has written about each step."""
  path = pathlib.Path(job_log_dir) / 'metrics' / 'train.jsonl'
  return [json.loads(line) for line in path.read_text().splitlines()]


def assert_same_run(job_log_dir, reference, *, num_padding=0) -> None:
  """Each step once, of the same examples and, to float32, the same loss."""
  lines, expected = lines_of(job_log_dir), lines_of(reference)
  assert [line['step'] for line in lines] == list(range(1, NUM_STEPS + 1))
  # Rows that only fill the last process's share have id -1, and come last.
  padding = sum(range(BATCH_SIZE + 1, BATCH_SIZE + num_padding + 1))
  assert [line['batch_ids'] + padding for line in lines] == [
    line['batch_ids'] for line in expected
  ]
  assert [line['loss'] for line in lines] == pytest.approx(
    [line['loss'] for line in expected], rel=2e-5
  )


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
  """The directory of an undisturbed run of one process."""
  job_log_dir = tmp_path_factory.mktemp('alone')
  (ended,) = train(job_log_dir, 1)
  assert ended.status == 0, ended.output
  return job_log_dir


def wait_for_checkpoint(process, job_log_dir, step) -> None:
  """Until that step is committed, while `process` runs."""
  path = pathlib.Path(job_log_dir) / 'checkpoints' / f'checkpoint_{step:08d}'
  deadline_s = time.monotonic() + 120.0
  while not path.is_dir():
    assert time.monotonic() < deadline_s, process.output
    assert process.status is None, process.output
    time.sleep(0.01)


@pytest.mark.parametrize(('num_processes', 'num_padding'), [(2, 0), (3, 4)])
def test_several_processes_train_to_the_losses_of_one(
  reference, tmp_path, num_processes, num_padding
):
  ended = train(tmp_path, num_processes)
  assert [process.status for process in ended] == [0] * num_processes, ended[
    0
  ].output
  assert_same_run(tmp_path, reference, num_padding=num_padding)


def test_a_run_that_lost_its_coordinator_goes_on_with_twice_the_processes(
  reference, tmp_path
):
  def kill(processes):
    wait_for_checkpoint(processes[0], tmp_path, 4)
    processes[0].signal(signal.SIGKILL)

  _, other = train(tmp_path, 2, during=kill)
  assert other.status == 1, other.output
  assert 'Process 0 ended without saying why' in other.output
  again = train(tmp_path, 4)
  assert {process.status for process in again} == {0}, again[0].output
  assert_same_run(tmp_path, reference)


def test_sigterm_to_one_process_saves_one_step_on_all_and_exits_75(
  reference, tmp_path
):
  def ask(processes):
    wait_for_checkpoint(processes[1], tmp_path, 4)
    processes[1].signal(signal.SIGTERM)

  ended = train(tmp_path, 2, during=ask)
  assert [process.status for process in ended] == [75, 75], ended[0].output
  stopped = [
    re.findall(r'Stopped on request after step (\d+)', process.output)
    for process in ended
  ]
  assert len(stopped[0]) == 1
  assert stopped[0] == stopped[1]
  saved = pathlib.Path(tmp_path) / 'checkpoints'
  assert (saved / f'checkpoint_{int(stopped[0][0]):08d}').is_dir()
  (again,) = train(tmp_path, 1)
  assert again.status == 0, again.output
  assert_same_run(tmp_path, reference)
