"""Followers beside a real training job, everything killed again and again."""

import os
import random
import re
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
    # No bound: what comes while a follower is dead is to be held as well.
    '--set=task_p.train.follow_max_held=1000',
    *more,
  )


class Job(threading.Thread):
  """A job that is killed at random moments and started again.

  Attributes:
    status: With which it ended by itself.
    outputs: What it printed, at each start.
    num_kills: How often it was killed.
  """

  def __init__(self, *arguments, seed, over_s):
    """Prepares it.

    Args:
      arguments: Flags.
      seed: Of the moments.
      over_s: The kills are spread over so many seconds.
    """
    super().__init__(daemon=True)
    self.status = None
    self.outputs = []
    self.num_kills = 0
    self._arguments = arguments
    self._moments = random.Random(seed)
    self._each_s = over_s / max(NUM_KILLS, 1)

  @property
  def output(self):
    return ''.join(self.outputs)

  def run(self):
    for _ in range(NUM_KILLS):
      process = program.start(*self._arguments)
      # From before it has loaded to well in its work.
      wait_s = self._moments.uniform(0.1, 1.9) * self._each_s
      if self._ends(process, wait_s):
        return
      process.send_signal(signal.SIGKILL)
      self.outputs.append(''.join(process.communicate()))
      self.num_kills += 1
    process = program.start(*self._arguments)
    if not self._ends(process, 10 * TRAIN_S + 120.0):
      process.kill()
      self.outputs.append('still running: ' + ''.join(process.communicate()))

  def _ends(self, process, timeout_s):
    try:
      out, err = process.communicate(timeout=timeout_s)
    except program.subprocess.TimeoutExpired:
      return False
    self.status = process.returncode
    self.outputs.append(out + err)
    return True


def test_followers_take_each_step_once_whoever_is_killed(tmp_path):
  seed = random.randrange(1 << 30)
  print('seed', seed)  # shown by pytest if the test fails
  jobs = {
    'train': Job(*flags('train', tmp_path), seed=seed, over_s=TRAIN_S / 2),
    'eval': Job(*flags('eval', tmp_path), seed=seed + 1, over_s=TRAIN_S),
    'decode': Job(
      *flags('decode', tmp_path, '--follow'), seed=seed + 2, over_s=TRAIN_S
    ),
  }
  for job in jobs.values():
    job.start()
  for job in jobs.values():
    job.join()
  for name, job in jobs.items():
    assert job.status == 0, f'{name}: {job.outputs[-1][-4000:]}'
    assert 'Traceback' not in job.output, f'{name}: {job.output[-4000:]}'
  assert sum(job.num_kills for job in jobs.values()) >= NUM_KILLS
  saved = steps_of(jobs['train'].output, 'saved in')
  assert len(saved) >= TRAIN_S / 2
  check_evaluations(tmp_path)
  check_decodes(tmp_path)
  for name, metrics in (
    ('eval', 'eval_test_test'),
    ('decode', 'decode_test_rows'),
  ):
    lines = reporting.read_metrics(str(tmp_path), metrics)
    done = {line['step'] for line in lines}
    check_none_is_missed(name, done, jobs['train'].output, jobs[name])


def steps_of(output, event):
  """Steps of which the log says so."""
  return {int(n) for n in re.findall(rf'Step (\d+) {event}', output)}


def check_none_is_missed(name, done, trained, follower):
  """All that came after the follower began is done, once.

  From its first lease on there was a follower that lived, or the lease of one
  that was killed.
  """
  saved = steps_of(trained, 'saved in')
  # A trainer that was killed may not have come to say so.
  known = saved | steps_of(trained, 'in .* is taken into the history')
  first = re.search(r'Steps after (-?\d+) stay', follower.output)
  due = {step for step in saved if step > int(first[1])}
  missed = sorted(due - done)
  print(
    f'{name}: {follower.num_kills} kills, {len(saved)} saved, {len(due)} of '
    f'them since it began, {len(done)} done, {len(missed)} missed'
  )
  assert not missed, follower.output[-4000:]
  assert done <= known | {0}
  assert NUM_STEPS in done


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


@pytest.mark.parametrize('policy', ['all', 'latest'])
def test_restores_that_last_four_saves_are_of_one_step_each(tmp_path, policy):
  # A bound of two, so that most of what comes is swept meanwhile.
  more = (
    f'--set=task_p.train.follow_policy={policy}',
    '--set=task_p.train.follow_max_held=2',
    '--set=NUM_TRAIN_STEPS=120',
  )
  trainer = program.start(*flags('train', tmp_path, *more))
  late = program.start(
    *flags('eval', tmp_path, *more), module='tests.e2e.slow_disk'
  )
  _, err = late.communicate(timeout=120)
  assert late.returncode == 0, err
  assert 'Traceback' not in err
  out, trained = trainer.communicate(timeout=60)
  assert trainer.returncode == 0, out + trained
  lines = reporting.read_metrics(str(tmp_path), 'eval_test_test')
  steps = [line['step'] for line in lines]
  assert steps == sorted(set(steps))
  assert steps[-1] == 120
  assert 2 <= len(steps) <= 11  # of the 13 that were saved
  for line in lines:
    assert line['smallest'] == line['largest'] == line['step']


def test_a_training_that_fails_ends_its_followers_with_status_1(tmp_path):
  torn = '--set=IS_TRAIN_DATA_TORN=True'
  jobs = {
    'train': program.start(*flags('train', tmp_path, torn)),
    'eval': program.start(*flags('eval', tmp_path, torn)),
    'decode': program.start(*flags('decode', tmp_path, torn, '--follow')),
  }
  errs = {name: job.communicate(timeout=120)[1] for name, job in jobs.items()}
  assert {name: job.returncode for name, job in jobs.items()} == dict.fromkeys(
    jobs, 1
  ), errs
  for name in ('eval', 'decode'):
    last = errs[name].splitlines()[-1]
    assert 'paxlike: Training failed after step' in last, errs[name]
    assert 'Record 48 is torn.' in last
    assert 'Traceback' not in errs[name]
    assert reporting.read_status(str(tmp_path), name).state == 'failed'
  saved = steps_of(errs['train'], 'saved in')
  assert {0, 10, 20} <= saved
  for metrics in ('eval_test_test', 'decode_test_rows'):
    lines = reporting.read_metrics(str(tmp_path), metrics)
    assert {line['step'] for line in lines} >= {max(saved)}


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
