"""Real processes, real faults: how soon each ends, and whom it names.

Each row: what goes wrong, and what the others must have said within their
deadline and 15 seconds. `ends` prints the measured times with -s.
"""

import re
import signal
import time

import pytest

from tests.multiprocess import harness

pytestmark = pytest.mark.multiprocess

JOBS = 'tests.multiprocess.sync_jobs'
LIMIT_S = 15.0


def ends(
  processes: list[harness.Process], fault_s: float, *, deadline_s: float = 0.0
) -> None:
  """All ended in time and non-zero."""
  harness.assert_all_ended(processes)
  for process in processes:
    after_s = process.ended_s - fault_s
    print(f'process {process.index}: status {process.status}, {after_s:.1f} s')
    assert process.status != 0
    assert after_s < deadline_s + LIMIT_S


def says_last(process: harness.Process, text: str) -> None:
  """Whatever libraries have to say of a dead peer came before.

  Only what the process does about it may follow.
  """
  *_, before, last = process.output.splitlines()
  if last.startswith('The main thread did not get out within'):
    last = before
  assert text in last, process.output


def fault_s(processes: list[harness.Process]) -> float:
  """When the job said that its fault happens."""
  return min(
    when_s
    for process in processes
    for when_s, line in process.lines
    if 'the fault is now' in line
  )


@pytest.mark.parametrize(
  ('guilty', 'while_others'), [(0, 'reduce'), (1, 'wait in a barrier')]
)
def test_an_exception_on_one_is_named_by_all(guilty, while_others):
  ended = harness.run(f'{JOBS}:error_on', 3, str(guilty), while_others)
  ends(ended, fault_s(ended))
  for process in ended:
    assert process.status == 1
    if process.index != guilty:
      assert f'Process {guilty} failed at step 2' in process.output
    assert 'ValueError: boom' in process.output


def test_an_exception_ends_a_peer_that_hears_nothing():
  ended = harness.run(f'{JOBS}:error_on', 2, '1', 'sleep')
  ends(ended, fault_s(ended))
  assert 'Process 1 failed at step 2' in ended[0].output
  assert 'did not get out within' in ended[0].output


@pytest.mark.parametrize('while_others', ['wait in a barrier', 'reduce'])
def test_a_killed_process_is_named_by_all(while_others):
  ended = harness.run(f'{JOBS}:killed', 3, '1', while_others)
  ends(ended, fault_s(ended))
  assert ended[1].status == -signal.SIGKILL
  for process in (ended[0], ended[2]):
    assert process.status == 1
    says_last(process, 'Process 1 ended without saying why')
    assert 'recoverable task' not in process.output


@pytest.mark.parametrize('while_others', ['wait in a barrier', 'reduce'])
def test_a_killed_coordinator_is_named_by_all(while_others):
  ended = harness.run(f'{JOBS}:killed', 3, '0', while_others)
  ends(ended, fault_s(ended))
  for process in ended[1:]:
    assert process.status == 1
    says_last(process, 'Process 0 ended without saying why')


def test_barriers_of_different_names_fail_at_once():
  ended = harness.run(f'{JOBS}:different_barriers', 2)
  ends(ended, fault_s(ended))
  for process in ended:
    assert "'of process 0': processes 0" in process.output
    assert "'of process 1': processes 1" in process.output
    assert 'in different_barriers' in process.output  # the stacks
    assert '`if jax.process_index() == 0:`?' in process.output


def test_a_barrier_that_one_process_calls_says_where_the_other_is():
  ended = harness.run(f'{JOBS}:barrier_on_one', 2)
  ends(ended, fault_s(ended))
  for process in ended:
    assert "Process 1 never called 'save/2'" in process.output
    assert re.search(
      r'process 1 \(.*\): step \d, phase train, waits in no barrier',
      ended[0].output,
    )
  assert 'in collective' in ended[0].output


@pytest.mark.parametrize(
  ('meanwhile', 'limit_s'),
  [('trains, and says so', 12.0), ('trains', 20.0), ('sleeps', 20.0)],
)
def test_a_save_on_one_process_says_that_the_other_never_called_it(
  tmp_path, meanwhile, limit_s
):
  ended = harness.run(
    f'{JOBS}:saves_on_one', 2, str(tmp_path), meanwhile, grace_s=5.0
  )
  at_s = fault_s(ended)
  ends(ended, at_s, deadline_s=5.0)
  for process in ended:
    (said_s,) = [w for w, line in process.lines if 'never called' in line]
    assert said_s - at_s < limit_s
    assert "Process 1 never called 'checkpoint/save/2/" in process.output
    assert 'process 1 (' in process.output
    assert 'in saves_on_one' in process.output  # where it is instead
    assert process.output.count('Step 2 was not saved in') == 1
  assert not list(tmp_path.glob('checkpoint_*'))


def test_a_save_that_one_process_leaves_out_for_the_end_names_both(tmp_path):
  ended = harness.run(f'{JOBS}:saves_on_one', 2, str(tmp_path), 'ends')
  ends(ended, fault_s(ended))
  for process in ended:
    assert re.search(r"'checkpoint/save/2/.*': processes 0", process.output)
    assert "'end of the job': processes 1" in process.output
    assert '`if jax.process_index() == 0:`?' in process.output


def test_a_later_save_on_one_process_is_found_out_by_the_steps(tmp_path):
  ended = harness.run(f'{JOBS}:saves_once_more_on_one', 2, str(tmp_path))
  ends(ended, fault_s(ended))
  for process in ended:
    assert "Process 1 never called 'checkpoint/save/5/" in process.output
    assert 'went on without it' in process.output


@pytest.mark.slow
@pytest.mark.parametrize(
  'how', ['computes', 'reads, ever again', 'waits in a library', 'compiles']
)
def test_a_process_that_comes_late_to_the_first_save_is_waited_for(
  tmp_path, how
):
  ended = harness.run(f'{JOBS}:comes_late', 2, str(tmp_path), how)
  assert [process.status for process in ended] == [0, 0], ended[0].output
  assert 'still lacks processes' in ended[0].output
  assert 'in late_for' in ended[0].output


def test_a_process_that_skips_a_barrier_and_ends_is_found_out_at_once():
  ended = harness.run(f'{JOBS}:leaves_early', 3)
  ends(ended, fault_s(ended))
  for process in ended:
    assert "'end of the job': processes 1-2" in process.output


def test_different_configs_are_told_apart_on_every_process():
  ended = harness.run(f'{JOBS}:different_config', 3)
  ends(ended, fault_s(ended))
  for process in ended:
    assert 'DivergenceError' in process.output
    assert process.status == 2
    assert 'processes 0, 2' in process.output
    assert '+task_p.train.num_train_steps = 50' in process.output


def test_a_stuck_process_is_named_and_its_stack_is_kept(tmp_path):
  guilty = 1
  ended = harness.run(f'{JOBS}:stuck_on', 3, str(guilty), str(tmp_path))
  ends(ended, fault_s(ended), deadline_s=2.0)
  others = {0, 1, 2} - {guilty}
  summary = (tmp_path / 'summary.txt').read_text()
  assert f'step 5, phase input: process {guilty}' in summary
  assert f'phase train: processes {", ".join(map(str, sorted(others)))}' in (
    summary.replace('-', ', ')
  )
  stacks = (tmp_path / f'process_{guilty:05d}.txt').read_text()
  assert 'in a_slow_input' in stacks
  for process in ended:
    assert 'No step for' in process.output


@pytest.mark.parametrize('guilty', [0, 1])
def test_a_process_stopped_by_a_signal_is_named(tmp_path, guilty):
  when = []

  def stop(processes):
    processes[guilty].wait_for('ready to be stopped')
    processes[guilty].signal(signal.SIGSTOP)
    when.append(time.monotonic())
    others = [p for p in processes if p.index != guilty]
    deadline_s = time.monotonic() + 40.0
    while any(p.status is None for p in others):
      assert time.monotonic() < deadline_s, others[0].output
      time.sleep(0.05)
    processes[guilty].signal(signal.SIGCONT)

  ended = harness.run(
    f'{JOBS}:watched', 3, str(tmp_path), during=stop, silence_s=4.0
  )
  others = [process for process in ended if process.index != guilty]
  ends(others, when[0], deadline_s=4.0)
  for process in others:
    assert re.search(
      rf'do not answer .*: {guilty}$|Process {guilty} has been silent',
      process.output,
      re.MULTILINE,
    )


def test_a_process_that_never_starts_is_named():
  ended = harness.run(
    f'{JOBS}:never_starts', 3, absent=[1], start_timeout_s=3.0
  )
  harness.assert_all_ended(ended)
  for process in ended:
    assert process.status == 1
    assert '1 of 3 processes did not connect' in process.output
    assert process.output.rstrip().endswith('within 3 s: 1.')


def test_a_background_collective_is_refused_in_test_builds():
  ended = harness.run(f'{JOBS}:background_collective', 2)
  assert [process.status for process in ended] == [0, 0], ended[0].output
  for process in ended:
    assert 'the background thread was refused' in process.output
