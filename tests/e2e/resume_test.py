"""A run killed at any moment and started again is the run never killed."""

import random
import signal

import numpy as np
import pytest

from paxlike import checkpoint, reporting
from paxlike.core import trees
from tests.e2e import program

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def flags(experiment, job_log_dir):
  return (
    f'--exp=tests.e2e.toys.{experiment}',
    '--mode=train',
    f'--job_log_dir={job_log_dir}',
  )


def numbers(job_log_dir):
  """What must be the same at every step, by what the run wrote down."""
  return [
    (line['step'], line['loss'], line['learning_rate'], line['batch_ids'])
    for line in reporting.read_metrics(str(job_log_dir), 'train')
  ]


def last_step(job_log_dir):
  lines = numbers(job_log_dir) if (job_log_dir / 'metrics').exists() else []
  return lines[-1][0] if lines else 0


def last_state(job_log_dir):
  with checkpoint.CheckpointManager(
    job_log_dir / 'checkpoints', read_only=True
  ) as manager:
    restored = manager.restore()
  return restored.step, dict(trees.flatten_with_names(restored.state))


@pytest.mark.parametrize('experiment', ['SmallLm', 'SmallCnn'])
def test_three_kills_at_random_moments_change_no_bit(experiment, tmp_path):
  straight, killed = tmp_path / 'straight', tmp_path / 'killed'
  program.run_ok(*flags(experiment, straight))
  seed = random.randrange(1 << 30)
  print('seed', seed)  # shown by pytest if the test fails
  moments = random.Random(seed)
  killed_at = []
  for third in (range(1, 16), range(20, 35), range(39, 50)):
    after = moments.choice(third)
    process = program.start(*flags(experiment, killed))
    was_killed = program.kill_when(
      process, lambda after=after: last_step(killed) >= after
    )
    assert was_killed
    assert process.returncode == -signal.SIGKILL
    killed_at.append(last_step(killed))
  assert 1 <= killed_at[0] < killed_at[1] < killed_at[2] < 60
  program.run_ok(*flags(experiment, killed))
  assert numbers(killed) == numbers(straight)
  assert [step for step, *_ in numbers(killed)] == list(range(1, 61))
  (step, ours), (_, theirs) = last_state(killed), last_state(straight)
  assert step == 60
  assert ours.keys() == theirs.keys()
  rooms = {name.partition('/')[0] for name in ours}
  assert rooms == {'step', 'mdl_vars', 'opt_states', 'extra'}
  for name in ours:
    np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
