import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import tasks
from paxlike.core import errors


def rates(schedule, steps, num_train_steps):
  return [float(schedule.rate(jnp.int32(s), num_train_steps)) for s in steps]


def test_warm_up_starts_at_zero_and_reaches_the_peak():
  schedule = tasks.WarmupCosine(peak=0.8, warmup_steps=4)
  assert rates(schedule, range(5), 100) == pytest.approx(
    [0.0, 0.2, 0.4, 0.6, 0.8]
  )


def test_by_default_the_cosine_ends_where_the_run_ends():
  schedule = tasks.WarmupCosine(peak=1.0, end_fraction=0.1)
  assert rates(schedule, [0, 50, 100], 100) == pytest.approx([1.0, 0.55, 0.1])
  assert rates(schedule, [250, 500], 500) == pytest.approx([0.55, 0.1])


def test_total_steps_outlives_a_shorter_run():
  schedule = tasks.WarmupCosine(peak=1.0, total_steps=200)
  assert rates(schedule, [100], 100) == pytest.approx([0.5])


def test_a_trial_run_shorter_than_its_warm_up_still_has_rates():
  schedule = tasks.WarmupCosine(peak=1.0, warmup_steps=100)
  for steps in (1, 2, 50):
    assert np.isfinite(rates(schedule, range(steps), steps)).all()


def test_a_cosine_that_ends_within_the_warm_up_is_refused():
  with pytest.raises(errors.ConfigError, match=r'total_steps is 5.*\(10\)'):
    tasks.WarmupCosine(peak=1.0, warmup_steps=10, total_steps=5)


def test_constant_is_constant():
  assert rates(tasks.Constant(value=0.5), [0, 7], 10) == [0.5, 0.5]


@pytest.mark.parametrize('rate', [float('nan'), float('inf'), -1.0])
def test_a_rate_that_no_run_can_mean_is_refused(rate):
  with pytest.raises(errors.ConfigError, match='finite'):
    tasks.Constant(value=rate)
  with pytest.raises(errors.ConfigError, match='finite'):
    tasks.WarmupCosine(peak=rate)


def test_a_schedule_says_where_it_ends_and_whether_the_run_does_too():
  def said(num_train_steps, total_steps=None):
    schedule = tasks.WarmupCosine(
      peak=0.1, warmup_steps=5, end_fraction=0.5, total_steps=total_steps
    )
    return schedule.describe(num_train_steps)

  assert said(20) == (
    'goes up to 0.1 in 5 steps, then along a cosine down to 0.05 at step 20'
  )
  assert said(30, 20).endswith('and STAYS at 0.05 for the other 10 of 30 steps')
  assert said(10, 20).endswith('which the run does NOT reach: it ends at 10')
  assert tasks.Constant(value=0.1).describe(20) == 'is 0.1 throughout'
