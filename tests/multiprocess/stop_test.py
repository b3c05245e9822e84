"""SIGTERM to one process of the real program, whatever it is doing.

All of them save the same step and exit with 75; a second SIGTERM, to another
process, changes nothing.
"""

import re
import shutil
import signal
import time

import pytest

from paxlike import reporting
from tests.multiprocess import jobs

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]


def ask_when(text):
  """SIGTERM to the last process as it says `text`; then to the first one."""

  def ask(processes):
    processes[-1].wait_for(text)
    processes[-1].signal(signal.SIGTERM)
    time.sleep(0.5)
    for process in processes:
      if process.status is None:
        process.signal(signal.SIGTERM)

  return ask


def assert_stopped(ended) -> None:
  for process in ended:
    assert process.status == 75, process.output
    assert process.output.count('Stopped on request') == 1, process.output
    assert 'Traceback' not in process.output


@pytest.mark.parametrize('num_processes', [1, 2])
@pytest.mark.parametrize(
  'phase', ['compile', 'train', 'eval', 'restore', 'save']
)
def test_a_training_job_saves_one_step_on_all_and_exits_75(
  trained, tmp_path, phase, num_processes
):
  if phase == 'restore':
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
  ended = jobs.run(
    phase.capitalize(),
    'train',
    tmp_path,
    num_processes,
    *(['--eval_on_test'] if phase == 'eval' else []),
    during=ask_when(f'now: {phase}'),
  )
  assert_stopped(ended)
  steps = {
    re.search(r'Stopped on request after step (\d+)', process.output)[1]
    for process in ended
  }
  (step,) = map(int, steps)
  assert (tmp_path / f'checkpoints/checkpoint_{step:08d}').is_dir()
  status = reporting.read_status(str(tmp_path), 'train')
  assert (status.state, status.step) == ('preempted', step)
  if phase == 'restore':
    assert step == 5


@pytest.mark.parametrize('num_processes', [1, 2])
@pytest.mark.parametrize('mode', ['eval', 'decode'])
def test_an_eval_or_decode_job_exits_75_on_all(
  trained, tmp_path, mode, num_processes
):
  ended = jobs.run(
    'Eval',
    mode,
    tmp_path,
    num_processes,
    f'--restore_checkpoint_dir={trained}/checkpoints',
    during=ask_when('now: eval'),
  )
  assert_stopped(ended)
  assert reporting.read_status(str(tmp_path), mode).state == 'preempted'
