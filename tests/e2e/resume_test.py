"""A run killed at any moment and started again is the run never killed."""

import random

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
  num_kills = 0
  for after in sorted(moments.sample(range(1, 58), 3)):

    def reached(after=after):
      lines = numbers(killed) if (killed / 'metrics').exists() else []
      return bool(lines) and lines[-1][0] >= after

    process = program.start(*flags(experiment, killed))
    num_kills += program.kill_when(process, reached)
  program.run_ok(*flags(experiment, killed))
  assert num_kills >= 2
  assert numbers(killed) == numbers(straight)
  assert [step for step, *_ in numbers(killed)] == list(range(1, 61))
  (step, ours), (_, theirs) = last_state(killed), last_state(straight)
  assert step == 60
  assert ours.keys() == theirs.keys()
  for name in ours:
    np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
