"""Faults of the real program: who is named, and what its status says then."""

import signal
import time

import pytest

from paxlike import reporting
from tests.multiprocess import harness, jobs

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]


def hurt(index, number, directory):
  """Sends one process a signal once the job trains."""

  def during(processes):
    deadline_s = time.monotonic() + 60.0
    while (status := status_of(directory)) is None or status.step < 3:
      assert time.monotonic() < deadline_s, processes[0].output
      time.sleep(0.1)
    processes[index].signal(number)
    if number == signal.SIGSTOP:
      others = [p for p in processes if p.index != index]
      for process in others:
        process.popen.wait(60)
      processes[index].signal(signal.SIGKILL)

  return during


def status_of(directory):
  return reporting.read_status(str(directory), 'train')


@pytest.mark.parametrize('guilty', [0, 1])
def test_a_killed_process_is_the_reason_in_the_status(tmp_path, guilty):
  ended = jobs.run(
    'Train', 'train', tmp_path, 2, during=hurt(guilty, signal.SIGKILL, tmp_path)
  )
  harness.assert_all_ended(ended)
  other = ended[1 - guilty]
  assert other.status == 1, other.output
  text = f'Process {guilty} ended without saying why'
  assert other.output.count(text) == 1, other.output
  assert 'recoverable task' not in other.output
  *_, before, last = other.output.splitlines()
  assert text in last or text in before, other.output
  status = status_of(tmp_path)
  assert status.state == 'failed'
  assert text in status.reason
  assert 'Gloo' not in status.reason


# Long before it counts as lost for its silence, which takes a minute.
@pytest.mark.parametrize('guilty', [0, 1])
def test_a_stopped_process_is_the_reason_in_the_status(tmp_path, guilty):
  ended = jobs.run(
    'Train',
    'train',
    tmp_path,
    2,
    '--set=task_p.train.stall_floor_s=6',
    '--set=task_p.train.on_stall=stop',
    during=hurt(guilty, signal.SIGSTOP, tmp_path),
  )
  other = ended[1 - guilty]
  assert other.status == 1, other.output
  assert 'has been silent' not in other.output
  status = status_of(tmp_path)
  assert status.state == 'failed'
  assert 'No step for' in status.reason
  assert 'do not answer (stopped' in status.reason
  assert status.reason.rstrip().endswith(f': {guilty}')


@pytest.mark.parametrize('guilty', [0, 1])
@pytest.mark.parametrize('mode', ['eval', 'decode'])
def test_a_killed_process_is_the_reason_in_other_modes_too(
  trained, tmp_path, mode, guilty
):
  def kill(processes):
    for process in processes:
      process.wait_for('now: eval')
    processes[guilty].signal(signal.SIGKILL)

  ended = jobs.run(
    'Eval',
    mode,
    tmp_path,
    2,
    f'--restore_checkpoint_dir={trained}/checkpoints',
    during=kill,
  )
  harness.assert_all_ended(ended)
  assert ended[1 - guilty].status == 1, ended[1 - guilty].output
  status = reporting.read_status(str(tmp_path), mode)
  assert status.state == 'failed'
  assert f'Process {guilty} ended without saying why' in status.reason


@pytest.mark.parametrize('mode', ['train', 'eval', 'decode'])
def test_an_evaluation_that_is_stuck_is_found_like_a_stuck_step(
  trained, tmp_path, mode
):
  flags = {
    'train': ['--eval_on_test'],
    'eval': [f'--restore_checkpoint_dir={trained}/checkpoints', '--nofollow'],
    'decode': [f'--restore_checkpoint_dir={trained}/checkpoints'],
  }
  ended = jobs.run(
    'StuckEval',
    mode,
    tmp_path,
    2,
    *flags[mode],
    '--set=task_p.train.stall_floor_s=4',
    '--set=task_p.train.on_stall=stop',
  )
  harness.assert_all_ended(ended)
  since_s = ended[1].said_s('now: stuck')
  phase = 'decode' if mode == 'decode' else 'eval'
  for process in ended:
    assert process.status == 1, process.output
    assert process.ended_s - since_s < 4.0 + 15.0
    assert 'No batch for' in process.output
  status = reporting.read_status(str(tmp_path), mode)
  assert status.state == 'failed'
  assert 'No batch for' in status.reason
  assert f'phase {phase} digits' in status.reason
  stacks = (tmp_path / 'status/stacks/process_00001.txt').read_text()
  assert 'slow_jobs.py' in stacks


def test_a_slow_input_is_no_stall_within_the_limit(tmp_path):
  ended = jobs.run(
    'SlowInput',
    'train',
    tmp_path,
    2,
    '--set=NUM_TRAIN_STEPS=15',
    '--set=task_p.train.stall_floor_s=5',
    '--set=task_p.train.on_stall=stop',
  )
  assert [p.status for p in ended] == [0, 0], ended[0].output
  assert 'No step for' not in ended[0].output


def test_models_of_different_shapes_are_refused_by_all(tmp_path):
  ended = jobs.run('OtherShapes', 'train', tmp_path, 2)
  harness.assert_all_ended(ended)
  for process in ended:
    assert process.status == 2, process.output
    assert 'hidden_dims' in process.output
    assert 'process 1' in process.output


def test_batches_of_different_sizes_are_refused_by_all(tmp_path):
  address = f'localhost:{harness.free_port()}'
  ended = harness.run_commands(
    [
      jobs.command(
        'Plain',
        'train',
        tmp_path,
        f'--set=BATCH_SIZE={(64, 128)[index]}',
        f'--coordinator_address={address}',
        '--num_processes=2',
        f'--process_id={index}',
      )
      for index in range(2)
    ]
  )
  harness.assert_all_ended(ended)
  for process in ended:
    assert process.status == 2, process.output
    assert 'batch_size = 64' in process.output
    assert 'batch_size = 128' in process.output
