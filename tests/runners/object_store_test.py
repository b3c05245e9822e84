"""Followers of a training job in a real S3 server on this machine."""

import pytest

from paxlike import reporting
from paxlike.runners import decode, evaluate, train
from tests.fakes import s3, tiny_task
from tests.runners import decode_test, follow_test

pytestmark = [
  pytest.mark.filterwarnings('ignore::DeprecationWarning'),
  # The server and its clients leave sockets to the garbage collector.
  pytest.mark.filterwarnings('ignore::ResourceWarning'),
  pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning'),
]


@pytest.fixture(name='job_log_dir')
def _job_log_dir():
  with s3.bucket() as bucket:
    yield f'{bucket}/job'


def test_a_follower_takes_each_step_of_a_store_and_ends_with_the_trainer(
  job_log_dir,
):
  follow_test.say(job_log_dir, 'running', 0)

  def train_to(step):
    def event():
      follow_test.train_in(job_log_dir, step, save_max_to_keep=1)
      if step < 4:
        follow_test.say(job_log_dir, 'running', step)

    return event

  nothing = follow_test.nothing
  clock = follow_test.ScriptedClock(
    nothing, train_to(1), nothing, train_to(2), train_to(4)
  )
  taken = follow_test.follow(job_log_dir, clock)
  # Training keeps one, and what comes after the first look.
  assert taken == [1, 2, 3, 4]
  # One look every five seconds, and none after training has ended.
  assert clock.slept_s == 5 * 5.0


def test_the_jobs_work_in_a_store_whole(job_log_dir):
  task = decode_test.make_task()
  train.train_and_evaluate_spmd_model(task, tiny_task.make_input(), job_log_dir)
  source = decode_test.make_source()
  results = evaluate.evaluate_spmd_model(task, [source], job_log_dir)
  assert [result.step for result in results] == [0, 2, 4]
  assert evaluate.evaluate_spmd_model(task, [source], job_log_dir) == []
  decoded = decode.decode_once_spmd_model(
    task, [source], job_log_dir, follow=True
  )
  assert [result.step for result in decoded] == [0, 2, 4]
  for step in (0, 2, 4):
    pattern = f'{job_log_dir}/decoder_out/test/decoder_out_{step}_*'
    pairs = list(reporting.read_key_values(pattern))
    assert [key for key, _ in pairs] == decode_test.KEYS
