"""Settings refuse nonsense when they are built."""

import datetime
import math

import pytest

from paxlike import checkpoint
from paxlike.core import errors


@pytest.mark.parametrize(
  ('kind', 'values'),
  [
    (checkpoint.CheckpointConfig, {'type': 'ZARR'}),
    (checkpoint.CheckpointConfig, {'on_save_error': 'ignore'}),
    (checkpoint.CheckpointConfig, {'timeout_s': 0.0}),
    (checkpoint.CheckpointConfig, {'lease_s': -1.0}),
    (checkpoint.CheckpointConfig, {'max_host_bytes': (8 << 20) - 1}),
    (checkpoint.SavePolicy, {'every_steps': 0}),
    (checkpoint.SavePolicy, {'every_s': 0.0, 'every_steps': 1}),
    (checkpoint.KeepPolicy, {'max_to_keep': 0}),
    (checkpoint.KeepPolicy, {'keep_interval': -1.0}),
    (checkpoint.KeepPolicy, {'num_best': 1}),
    (checkpoint.KeepPolicy, {'best_metric': 'loss'}),
    (checkpoint.KeepPolicy, {'best_mode': 'most'}),
  ],
)
def test_nonsense_is_refused_with_its_value(kind, values):
  with pytest.raises(errors.ConfigError) as caught:
    kind(**values)
  assert str(next(iter(values.values()))) in str(caught.value)


def test_due_counts_steps_or_seconds():
  policy = checkpoint.SavePolicy(every_steps=1000, every_s=60.0)
  assert not policy.due(steps_since=5, s_since=59.0)
  assert policy.due(steps_since=6, s_since=60.0)
  assert policy.due(steps_since=1000, s_since=0.0)


def test_only_rules_that_look_at_a_clock_need_process_0():
  assert not checkpoint.SavePolicy(every_steps=1).needs_clock
  assert checkpoint.SavePolicy(every_steps=1, every_s=9.0).needs_clock
  assert checkpoint.SavePolicy(every_steps=1, continuous=True).needs_clock


def test_a_keep_interval_is_seconds_or_a_timedelta():
  for interval in (7200.0, datetime.timedelta(hours=2)):
    policy = checkpoint.KeepPolicy(keep_interval=interval)
    assert policy.keep_interval_s == 7200.0
  assert checkpoint.KeepPolicy().keep_interval_s == math.inf
