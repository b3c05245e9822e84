"""The kept steps are those of an independent model, whatever happens between."""

import contextlib
import datetime
import math
import os
import time

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from paxlike import checkpoint
from paxlike.checkpoint import _history, _sweep
from tests.checkpoint import samples
from tests.fakes import clock as fake_clock

HOUR_S = 3600.0


class Model:
  """The retention rules told again, with lists of numbers and no records.

  Written from the description of the rules, apart from the code: keeps the
  set of steps preserved for good, and works the rest out anew at each save.
  """

  def __init__(self):
    self.saved = []  # (step, time, metric), all that are on disk
    self.preserved = {}  # step -> time

  def save(self, step, now_s, metric, policy):
    self.saved.append((step, now_s, metric))
    if policy.max_to_keep is None:
      return
    candidates = [s for s in self.saved if s[0] not in self.preserved]
    newest = {s[0] for s in self.saved[-policy.max_to_keep :]}
    gone = set()
    for old_step, old_s, _ in candidates:
      if old_step in newest:
        continue
      last_s = self.preserved[max(self.preserved)] if self.preserved else None
      interval_s = policy.keep_interval_s
      if math.isfinite(interval_s) and (
        last_s is None or old_s - last_s >= interval_s
      ):
        self.preserved[old_step] = old_s
      elif old_step not in self.best(policy):
        gone.add(old_step)
    self.saved = [s for s in self.saved if s[0] not in gone]

  def best(self, policy):
    scored = [s for s in self.saved if s[2] is not None and s[2] == s[2]]
    by_step = sorted(scored, key=lambda s: s[0], reverse=True)
    ranked = sorted(
      by_step, key=lambda s: s[2], reverse=policy.best_mode == 'max'
    )
    return {s[0] for s in ranked[: policy.num_best]}

  @property
  def steps(self):
    return [s[0] for s in self.saved]


def record(step, hours, *, reason='', metrics=None):
  return _history.Record(step, hours * HOUR_S, 'GDA', reason, metrics or {})


def kept_after(records, policy):
  decision = _sweep.decide(records, policy)
  return [r.step for r in decision.kept]


def test_the_long_term_steps_of_the_ancestor_survive_a_restart():
  hours = [0, 120, 240, 360, 480, 570, 580, 590]
  policy = checkpoint.KeepPolicy(
    max_to_keep=3, keep_interval=datetime.timedelta(hours=12)
  )
  records = [record(h, h) for h in hours]
  for _ in range(3):
    decision = _sweep.decide(records, policy)
    records = list(decision.kept)
  assert [r.step for r in records] == hours


def test_without_max_to_keep_nothing_goes():
  records = [record(i, i) for i in range(100)]
  policy = checkpoint.KeepPolicy(keep_interval=1.0)
  assert kept_after(records, policy) == list(range(100))


def test_nan_and_missing_metrics_are_never_the_best():
  values = [math.nan, 0.9, 0.5, math.nan, math.inf, None]
  records = [
    record(i, i, metrics={} if v is None else {'loss': v})
    for i, v in enumerate(values)
  ]
  policy = checkpoint.KeepPolicy(max_to_keep=1, best_metric='loss', num_best=1)
  assert kept_after(records, policy) == [2, 5]
  records = [record(i, i, metrics={'loss': math.nan}) for i in range(3)]
  assert kept_after(records, policy) == [2]


def test_the_best_by_most_are_the_largest():
  records = [
    record(i, i, metrics={'accuracy': v})
    for i, v in enumerate([0.1, 0.9, 0.5, 0.2])
  ]
  policy = checkpoint.KeepPolicy(
    max_to_keep=1, best_metric='accuracy', best_mode='max', num_best=2
  )
  assert kept_after(records, policy) == [1, 2, 3]


def test_the_newest_step_is_never_surplus_even_when_clocks_go_back():
  records = [record(1, 100), record(2, 50), record(3, 10)]
  policy = checkpoint.KeepPolicy(max_to_keep=1, keep_interval=HOUR_S)
  assert kept_after(records, policy) == [1, 3]


@contextlib.contextmanager
def time_zone(name):
  before = os.environ.get('TZ')
  os.environ['TZ'] = name
  time.tzset()
  try:
    yield
  finally:
    if before is None:
      del os.environ['TZ']
    else:
      os.environ['TZ'] = before
    time.tzset()


EVENTS = st.lists(
  st.tuples(
    st.floats(0.0, 8.0),  # hours since the last save
    st.sampled_from([None, math.nan, 0.1, 0.5, 0.5, 2.0, math.inf]),
    st.sampled_from(['', '', '', 'restart', 'zone', 'back']),
  ),
  min_size=1,
  max_size=25,
)
POLICIES = st.builds(
  lambda keep, interval, best, mode: checkpoint.KeepPolicy(
    max_to_keep=keep,
    keep_interval=interval,
    best_metric='loss' if best else '',
    num_best=best,
    best_mode=mode,
  ),
  st.sampled_from([None, 1, 2, 3, 5]),
  st.sampled_from([None, 0.0, HOUR_S, datetime.timedelta(hours=6)]),
  st.integers(0, 2),
  st.sampled_from(['min', 'max']),
)
ZONES = ['UTC', 'America/New_York', 'Asia/Kolkata']
# Two hours before clocks in New York go forward.
BEFORE_DST_S = 1_710_054_000.0


@hypothesis.settings(max_examples=500, deadline=None)
@hypothesis.given(events=EVENTS, policy=POLICIES)
def test_random_histories_keep_what_the_model_keeps(events, policy):
  records, model = [], Model()
  now_s = BEFORE_DST_S
  for step, (hours, metric, event) in enumerate(events):
    now_s += hours * HOUR_S
    if event == 'back':
      now_s -= 3 * HOUR_S
    with time_zone(ZONES[step % 3] if event == 'zone' else 'UTC'):
      if event == 'restart':
        records = _history.decode(_history.encode(records), path='x')
      metrics = {} if metric is None else {'loss': metric}
      records.append(_history.Record(step, now_s, 'GDA', '', metrics))
      records = list(_sweep.decide(records, policy).kept)
      model.save(step, now_s, metric, policy)
      assert [r.step for r in records] == model.steps


@pytest.mark.parametrize('zone', ZONES)
def test_a_real_directory_keeps_what_the_model_keeps(tmp_path, zone):
  policy = checkpoint.KeepPolicy(
    max_to_keep=2,
    keep_interval=datetime.timedelta(hours=2),
    best_metric='loss',
    num_best=1,
  )
  clock, model = fake_clock.FakeClock(BEFORE_DST_S), Model()
  rng = np.random.default_rng(0)
  manager = None
  with time_zone(zone):
    for step in range(24):
      if manager is None:
        manager = checkpoint.CheckpointManager(
          tmp_path, keep_policy=policy, clock=clock
        )
      loss = float(rng.random())
      manager.save(step, {'x': np.zeros(1)}, metrics={'loss': loss})
      manager.wait()
      model.save(step, clock.now_s(), loss, policy)
      assert manager.steps() == model.steps
      clock.advance_s(float(rng.integers(600, 7200)))
      if step % 5 == 3:
        manager.close()
        manager = None
    on_disk = sorted(
      int(p.name.removeprefix('checkpoint_'))
      for p in tmp_path.glob('checkpoint_*')
    )
    if manager is not None:
      manager.close()
  assert on_disk == model.steps


def read_history(directory):
  path = directory / 'checkpoints.pb'
  return path.read_bytes() if path.exists() else b''


@pytest.mark.parametrize('zone', ZONES)
def test_a_resumed_run_keeps_the_same_set_as_an_uninterrupted_one(
  tmp_path, zone
):
  policy = checkpoint.KeepPolicy(
    max_to_keep=1, keep_interval=datetime.timedelta(hours=2)
  )

  def run(directory, restarts, *, is_killed=False):
    clock = fake_clock.FakeClock(BEFORE_DST_S)
    manager = checkpoint.CheckpointManager(
      directory, keep_policy=policy, clock=clock
    )
    history = b''
    for step in range(12):
      if step in restarts:
        manager.close()
        if is_killed:
          # Amid the next save, and before the last one was in the history.
          (directory / 'checkpoints.pb').write_bytes(history)
          (directory / f'tmp_17.checkpoint_{step:08d}').mkdir()
        manager = checkpoint.CheckpointManager(
          directory, keep_policy=policy, clock=clock
        )
      history = read_history(directory)
      manager.save(step, samples.small(step))
      manager.wait()
      clock.advance_s(HOUR_S)
    steps = manager.steps()
    manager.close()
    return steps

  with time_zone(zone):
    straight = run(tmp_path / 'a', ())
    assert straight == [0, 2, 4, 6, 8, 10, 11]
    assert run(tmp_path / 'b', (1, 4, 7, 8)) == straight
    assert run(tmp_path / 'c', (2, 4, 7, 8), is_killed=True) == straight


@pytest.mark.parametrize('zone', ZONES)
def test_a_change_of_zone_or_of_summer_time_is_no_clock_that_went_back(
  tmp_path, caplog, zone
):
  clock = fake_clock.FakeClock(BEFORE_DST_S)
  for step in range(4):
    with (
      time_zone(zone if step % 2 else 'Asia/Kolkata'),
      checkpoint.CheckpointManager(tmp_path, clock=clock) as manager,
    ):
      manager.save(step, samples.small(step))
    clock.advance_s(HOUR_S)
  assert 'clock went back' not in caplog.text


def test_a_clock_that_went_back_is_told_and_loses_nothing(tmp_path, caplog):
  clock = fake_clock.FakeClock()
  policy = checkpoint.KeepPolicy(max_to_keep=2)
  for step in (1, 2):
    with checkpoint.CheckpointManager(
      tmp_path, keep_policy=policy, clock=clock
    ) as manager:
      manager.save(step, samples.small(step))
    clock.set_wall_s(clock.now_s() - 10 * HOUR_S)
  assert 'clock went back' in caplog.text
  with checkpoint.CheckpointManager(tmp_path, clock=clock) as manager:
    assert manager.steps() == [1, 2]
