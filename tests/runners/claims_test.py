import dataclasses
import json
import socket
import subprocess
import sys
import time

import pytest

from paxlike.core import errors
from paxlike.runners import _claims, evaluate, session, train
from tests.fakes import clock as fake_clock
from tests.fakes import tiny_task


@pytest.fixture(name='other')
def _other():
  """Another process that is alive."""
  process = subprocess.Popen(
    [sys.executable, '-c', 'input()'], stdin=subprocess.PIPE
  )
  yield process
  process.kill()
  process.communicate()


def say(directory, mode, pid, *, host=None, step=3, writes=()):
  """What a job of that mode leaves while it runs."""
  status = directory / 'status'
  status.mkdir(exist_ok=True)
  fields = {
    'state': 'running',
    'step': step,
    'reason': '',
    'pid': pid,
    'host': host or socket.gethostname(),
    'updated_s': time.time(),
  }
  (status / f'{mode}.json').write_text(json.dumps(fields))
  (status / f'{mode}.writes').write_text(json.dumps(writes))


def make_source():
  return tiny_task.make_input(6, name='test', is_training=False)


def train_in(directory, **options):
  task = tiny_task.make_task(num_train_steps=2)
  train.train_and_evaluate_spmd_model(
    task,
    tiny_task.make_input(),
    str(directory),
    eval_input_p=make_source(),
    **options,
  )


def evaluate_in(directory, **options):
  task = tiny_task.make_task(num_train_steps=2)
  return evaluate.evaluate_spmd_model(
    task, [make_source()], str(directory), **options
  )


TESTED = ('eval_test_test',)


def test_the_eval_job_is_refused_where_training_evaluates_itself(
  tmp_path, other
):
  train_in(tmp_path, eval_on_test=True)
  lines = (tmp_path / 'metrics/eval_test_test.jsonl').read_bytes()
  say(tmp_path, 'train', other.pid, writes=TESTED)
  with pytest.raises(
    errors.UsageError, match=r'eval_test_test.* --restore_checkpoint_dir='
  ):
    evaluate_in(tmp_path)
  assert (tmp_path / 'metrics/eval_test_test.jsonl').read_bytes() == lines


def test_the_eval_job_may_write_elsewhere_meanwhile(tmp_path, other):
  train_in(tmp_path, eval_on_test=True)
  say(tmp_path, 'train', other.pid, writes=TESTED)
  (result,) = evaluate_in(
    tmp_path / 'elsewhere', restore_checkpoint_dir=f'{tmp_path}/checkpoints'
  )
  assert result.step == 2


@pytest.mark.parametrize('writes', [(), ('eval_test_another',)])
def test_the_eval_job_may_run_beside_training_that_writes_other_files(
  tmp_path, other, writes
):
  train_in(tmp_path)
  say(tmp_path, 'train', other.pid, writes=writes)
  (result,) = evaluate_in(tmp_path, follow=False)
  assert result.step == 2


def test_a_trainer_that_was_killed_is_in_nobodys_way(tmp_path, other):
  train_in(tmp_path)
  other.kill()
  other.wait()
  say(tmp_path, 'train', other.pid, writes=TESTED)
  (result,) = evaluate_in(tmp_path, follow=False)
  assert result.step == 2


def test_training_that_evaluates_is_refused_beside_an_eval_job(tmp_path, other):
  say(tmp_path, 'eval', other.pid, writes=TESTED)
  with pytest.raises(errors.UsageError, match='without --eval_on_test'):
    train_in(tmp_path, eval_on_test=True)
  train_in(tmp_path)


def test_training_that_decodes_is_refused_beside_a_decode_job(tmp_path, other):
  say(tmp_path, 'decode', other.pid, writes=['decode_test_test'])
  task = tiny_task.make_task(num_train_steps=2, decode_interval_steps=1)
  with pytest.raises(errors.UsageError, match='decode_interval_steps=None'):
    train.train_and_evaluate_spmd_model(
      task,
      tiny_task.make_input(),
      str(tmp_path),
      decode_input_p=make_source(),
    )


def test_a_second_eval_job_is_refused_while_one_lives(tmp_path, other):
  train_in(tmp_path)
  say(tmp_path, 'eval', other.pid, writes=TESTED)
  with pytest.raises(errors.UsageError, match=f'Process {other.pid} '):
    evaluate_in(tmp_path)


def test_what_is_claimed_is_written_before_the_others_are_looked_at(
  tmp_path, other
):
  train_in(tmp_path)
  say(tmp_path, 'eval', other.pid, writes=TESTED)
  job = session.build(
    'train', tiny_task.make_task(num_train_steps=2), str(tmp_path)
  )
  with pytest.raises(errors.UsageError):
    _claims.claim(job, TESTED)
  # So had both started at once, the other one would be refused too.
  claimed = (tmp_path / 'status/train.writes').read_text()
  assert json.loads(claimed) == list(TESTED)


@pytest.mark.parametrize('is_alive', [True, False])
def test_a_job_on_another_machine_lives_if_it_says_something_new(
  tmp_path, is_alive
):
  say(tmp_path, 'train', 1, host='elsewhere', writes=TESTED)

  @dataclasses.dataclass
  class Clock(fake_clock.FakeClock):
    step: int = 3

    def __post_init__(self):
      super().__init__()

    def sleep_s(self, duration_s):
      super().sleep_s(duration_s)
      self.step += 1
      if is_alive:
        say(
          tmp_path,
          'train',
          1,
          host='elsewhere',
          step=self.step,
          writes=TESTED,
        )

  job = session.build(
    'eval', tiny_task.make_task(num_train_steps=2), str(tmp_path)
  )
  if is_alive:
    with pytest.raises(errors.UsageError, match='at work'):
      _claims.claim(job, TESTED, clock=Clock())
  else:
    _claims.claim(job, TESTED, clock=Clock())
