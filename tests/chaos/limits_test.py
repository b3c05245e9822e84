"""Faults that snapshots in memory do not mend, and who stays out for good."""

import json
import os
import signal

import pytest

from paxlike import reporting
from tests.chaos import harness
from tests.fakes import disks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_host_whose_worker_fails_again_and_again_does_not_stop_the_others(
  tmp_path,
):
  with harness.Job(
    tmp_path,
    num_steps=80,
    settings=['FAIL_FROM=25', 'FAIL_ON=host1', 'PAUSE_S=0.05'],
  ) as job:
    assert job.wait(timeout_s=180.0) == 0, job.log()
    faults = [e for e in job.events() if e['event'] == 'fault']
    kept_out = [e for e in job.events() if e['event'] == 'host kept out']
    formed = [e['n'] for e in job.events() if e['event'] == 'formed']
  assert {tuple(event['agents']) for event in faults} == {('host1',)}
  assert all('the disk of this host' in event['what'] for event in faults)
  assert formed[:4] == [3, 3, 3, 2]
  assert (kept_out[0]['agent'], kept_out[0]['failures']) == ('host1', 3)
  assert 'the disk of this host is broken' in kept_out[0]['why']
  assert [row['step'] for row in harness.losses(tmp_path)] == list(range(1, 81))


def test_a_host_that_is_stopped_does_not_hold_up_the_end(tmp_path):
  with harness.Job(
    tmp_path, num_steps=60, num_hosts=2, flags=['--silence_s=2']
  ) as job:
    job.wait_for_step(10)
    job.agent('host1').suspend()
    assert job.wait(timeout_s=120.0) == 0, job.log()
    # Nor are the others started again, when they have ended.
    joins = [e['agent'] for e in job.events() if e['event'] == 'host joined']
    (end,) = [e for e in job.events() if e['event'] == 'end']
  assert sorted(joins) == ['host0', 'host1']
  assert (end['exit_status'], end['reason']) == (0, 'all steps are done')
  assert reporting.goodput(str(tmp_path)).ending.startswith('ended after')


def test_a_job_whose_launcher_is_killed_leaves_nothing_and_says_so(tmp_path):
  spill = tmp_path / 'spill'
  with harness.Job(
    tmp_path,
    num_steps=10_000,
    num_hosts=2,
    flags=[f'--snapshot_spill_dir={spill}'],
  ) as job:
    job.wait_for_step(15)
    os.kill(job.pid, signal.SIGKILL)
    job.wait(timeout_s=5.0)
    harness.wait_for(
      lambda: not job.orphans() and not job.lighthouses(), timeout_s=15.0
    )
    assert job.shared_memory() == set()
    assert list(spill.iterdir()) == []
  status = json.loads((tmp_path / 'status' / 'train.json').read_text())
  assert (status['state'], status['reason']) == (
    'failed',
    'the launcher was killed',
  )
  assert status['step'] >= 15
  assert job.events()[-1]['event'] == 'end'


def test_a_host_lost_together_with_its_buddy_costs_the_way_to_a_checkpoint(
  tmp_path,
):
  with harness.Job(
    tmp_path,
    num_steps=80,
    flags=['--replacement_wait_s=60'],
    settings=['PAUSE_S=0.05', 'task_p.train.save_interval_steps=20'],
  ) as job:
    job.wait_for_step(35)
    generation = job.generation()
    for name in ('host0', 'host1', 'host2'):  # each is the buddy of another
      job.kill_host(name)
    job.wait_for_new_steps(after_generation=generation)
    done_step = job.faults[0].step
    assert job.wait() == 0, job.log()
    formed = [e for e in job.events() if e['event'] == 'formed']
  assert formed[-1]['snapshot_step'] == -1
  assert formed[-1]['n'] == 3
  assert [row['step'] for row in harness.losses(tmp_path)] == [*range(1, 81)]
  recovery = reporting.goodput(str(tmp_path)).recoveries[-1]
  assert recovery.steps_lost is not None
  # From the checkpoint of step 20 on, as far as it had come when it died.
  assert abs(recovery.steps_lost - (done_step - 20)) <= 10, done_step


@pytest.fixture
def small_memory(tmp_path):
  """A real file system in memory with room for less than one snapshot."""
  with disks.mounted(tmp_path / 'memory', size='256k') as mount:
    yield mount


def test_where_memory_is_too_small_snapshots_go_to_the_disk_and_come_back(
  tmp_path, small_memory
):
  job_log_dir, spill = tmp_path / 'job', tmp_path / 'spill'
  with harness.Job(
    job_log_dir,
    num_hosts=2,
    num_steps=80,
    flags=[f'--snapshot_spill_dir={spill}'],
    settings=['PAUSE_S=0.05'],
    snapshot_dir=small_memory,
  ) as job:
    job.wait_for_step(35)
    assert len(list(spill.glob('*/own/s*/*.data'))) >= 2
    assert len(list(spill.glob('*/held/s*/*.data'))) >= 2
    assert list(small_memory.glob('*/own/*')) == []
    assert list(small_memory.glob('*/held/*')) == []
    generation = job.generation()
    job.kill_worker(0)
    job.wait_for_new_steps(after_generation=generation)
    formed = [e for e in job.events() if e['event'] == 'formed'][-1]
    assert formed['snapshot_step'] >= 30
    assert formed['steps_lost'] < 10
    assert job.wait() == 0, job.log()
    assert 'go to' in job.log()
    assert list(small_memory.iterdir()) == []
    assert list(spill.iterdir()) == []
  assert [row['step'] for row in harness.losses(job_log_dir)] == [*range(1, 81)]


def test_where_neither_memory_nor_a_disk_has_room_the_job_says_what_it_needs(
  tmp_path, small_memory
):
  with harness.Job(
    tmp_path / 'job', num_hosts=2, num_steps=80, snapshot_dir=small_memory
  ) as job:
    assert job.wait() == 2, job.log()
    assert '--snapshot_spill_dir=DIR' in job.log()
    assert job.shared_memory() == set()
  assert not (tmp_path / 'job' / 'metrics').exists(), 'no step was done'
