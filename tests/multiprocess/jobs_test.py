"""Real processes that meet, and end in good order."""

import signal

import pytest

from tests.multiprocess import harness

pytestmark = pytest.mark.multiprocess

JOBS = 'tests.multiprocess.sync_jobs'


@pytest.mark.parametrize('num_processes', [2, 4])
def test_processes_meet_and_end_together(num_processes):
  ended = harness.run(f'{JOBS}:meets', num_processes)
  assert [process.status for process in ended] == [0] * num_processes
  for process in ended:
    assert 'all met' in process.output
    assert 'FATAL' not in process.output


def test_a_slow_last_process_is_waited_for():
  ended = harness.run(f'{JOBS}:slow_end', 2)
  assert [process.status for process in ended] == [0, 0], ended[0].output
  assert 'Terminating process' not in ended[0].output + ended[1].output


def test_barriers_in_a_thread_beside_collectives_change_no_number():
  ended = harness.run(f'{JOBS}:background_barrier', 3)
  assert [process.status for process in ended] == [0] * 3, ended[0].output
  for process in ended:
    assert 'saved beside the steps' in process.output


def saved_steps(process):
  return [line for _, line in process.lines if line.startswith('saved step')]


@pytest.mark.parametrize('asked', [0, 1])
def test_sigterm_to_one_stops_all_at_the_same_step(asked):
  def ask(processes):
    processes[asked].wait_for('ready to be stopped')
    processes[asked].signal(signal.SIGTERM)

  ended = harness.run(f'{JOBS}:stops_in_order', 3, during=ask)
  assert [process.status for process in ended] == [75] * 3, ended[0].output
  steps = [saved_steps(process) for process in ended]
  assert len(steps[0]) == 1
  assert steps == [steps[0]] * 3


def test_a_second_sigterm_does_not_break_the_save_under_way():
  def ask(processes):
    processes[1].wait_for('ready to be stopped')
    processes[1].signal(signal.SIGTERM)
    processes[1].wait_for('saving step')
    processes[1].signal(signal.SIGTERM)
    processes[0].signal(signal.SIGTERM)

  ended = harness.run(f'{JOBS}:stops_in_order', 2, during=ask)
  assert [process.status for process in ended] == [75, 75], ended[1].output
  assert saved_steps(ended[0]) == saved_steps(ended[1])


def test_sigterm_is_heard_while_the_main_thread_is_busy_outside_python():
  def ask(processes):
    processes[0].wait_for('ready to be stopped')
    processes[0].signal(signal.SIGTERM)

  ended = harness.run(f'{JOBS}:stops_after_compiling', 2, during=ask)
  assert [process.status for process in ended] == [75, 75], ended[0].output
  for process in ended:
    assert 'known when it came out: True' in process.output
  assert saved_steps(ended[0]) == saved_steps(ended[1]) == ['saved step 0']
