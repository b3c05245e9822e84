import itertools
import os
import pathlib
import shutil
import threading
import time

import jax
import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.checkpoint import tools
from paxlike.core import errors
from tests.checkpoint import states
from tests.fakes import clock as fake_clock


@pytest.fixture(params=states.KINDS)
def run(request, tmp_path):
  """A job_log_dir with steps 100 and 200 of one of the types."""
  job_log_dir = tmp_path / 'run'
  states.save_steps(job_log_dir / 'checkpoints', request.param)
  return job_log_dir


@pytest.fixture
def gda(tmp_path):
  job_log_dir = tmp_path / 'gda'
  states.save_steps(job_log_dir / 'checkpoints')
  return job_log_dir


def step_dir(run: pathlib.Path, step: int) -> pathlib.Path:
  return run / 'checkpoints' / f'checkpoint_{step:08d}'


# --- paths


def test_a_job_its_checkpoints_and_one_step_are_all_accepted(run):
  for path in (run, run / 'checkpoints', f'{run}/'):
    assert [s.step for s in tools.list_steps(path).steps] == [100, 200]
  (only,) = tools.list_steps(step_dir(run, 100)).steps
  assert only.step == 100


def test_a_job_that_has_not_saved_yet_has_no_steps(tmp_path):
  (tmp_path / 'checkpoints').mkdir()
  assert tools.list_steps(tmp_path).steps == ()


def test_a_typo_is_one_line_with_the_near_name(gda):
  with pytest.raises(errors.UsageError) as caught:
    tools.list_steps(gda.with_name('gdaa'))
  assert f'Did you mean {gda}?' in str(caught.value)
  assert '\n' not in str(caught.value)


def test_the_parent_of_a_job_names_the_job(gda):
  with pytest.raises(errors.UsageError, match=f'Did you mean {gda}'):
    tools.list_steps(gda.parent)


def test_a_step_that_is_not_there_tells_which_are(gda):
  with pytest.raises(errors.CheckpointNotFoundError, match='It has 100, 200'):
    tools.show(gda, step=150)


def test_a_step_path_beside_another_step_is_refused(gda):
  with pytest.raises(errors.UsageError, match='is step 100, and step 200'):
    tools.show(step_dir(gda, 100), step=200)


# --- ls


def test_ls_tells_type_size_age_and_why_kept(tmp_path):
  clock = fake_clock.FakeClock(start_s=1_000_000.0)
  states.save_steps(tmp_path, 'FLAX', clock=clock)
  clock.advance_s(60.0)
  tools.pin(tmp_path, [100])
  first, second = tools.list_steps(tmp_path, clock=clock).steps
  assert (first.state, first.type, first.age_s) == ('complete', 'FLAX', 60.0)
  assert first.keep == ('pinned',)
  assert second.keep == ('newest',)
  files = [p for p in (tmp_path / second.name).rglob('*') if p.is_file()]
  assert second.size_bytes == sum(p.stat().st_size for p in files)
  assert second.metrics == {'loss': 1 / 201}


def test_ls_tells_what_the_keep_interval_preserved(tmp_path):
  keep = checkpoint.KeepPolicy(max_to_keep=1, keep_interval=0.0)
  with states.manager(tmp_path, keep_policy=keep) as manager:
    for step in (1, 2):
      manager.save(step, states.plain(step))
  first, second = tools.list_steps(tmp_path).steps
  assert (first.keep, second.keep) == (('interval',), ('newest',))


def test_ls_shows_what_is_not_complete_without_touching_it(gda):
  shutil.copytree(
    step_dir(gda, 200), gda / 'checkpoints/tmp_5.checkpoint_00000300'
  )
  shutil.copytree(
    step_dir(gda, 200), gda / 'checkpoints/todelete_5.0.checkpoint_00000050'
  )
  (gda / 'checkpoints/100.backup').mkdir()
  (step_dir(gda, 100) / 'MANIFEST').write_bytes(b'torn')
  before = sorted(gda.rglob('*'))
  found = {s.step: s.state for s in tools.list_steps(gda).steps}
  assert found == {
    50: 'deleting',
    100: 'damaged',
    200: 'complete',
    300: 'incomplete',
  }
  assert sorted(gda.rglob('*')) == before


def test_names_that_are_not_exactly_ours_are_left_alone(gda):
  for name in ('100', 'checkpoint_x', 'checkpoint_1.bak', 'lost+found'):
    (gda / 'checkpoints' / name).mkdir()
  (gda / 'checkpoints' / 'checkpoint_00000005').write_bytes(b'a file')
  assert [s.step for s in tools.list_steps(gda).steps] == [100, 200]
  assert tools.verify(gda).damage == ()


def test_ls_warns_of_a_torn_history(gda):
  (gda / 'checkpoints/checkpoints.pb').write_bytes(b'\x0a')
  listing = tools.list_steps(gda)
  assert [s.step for s in listing.steps] == [100, 200]
  (warning,) = listing.warnings
  assert 'checkpoints.pb is damaged' in warning


def test_ls_says_leased_while_a_reader_holds_a_step(gda):
  clock = fake_clock.FakeClock(start_s=1_000.0)
  (step_dir(gda, 100) / 'lease_host_1_ab').write_bytes(b'1600')
  assert tools.list_steps(gda, clock=clock).steps[0].keep == ('leased',)
  clock.advance_s(601.0)
  assert tools.list_steps(gda, clock=clock).steps[0].keep == ()


def test_a_state_without_a_single_byte_is_still_a_step(tmp_path):
  state = {'none': None, 'empty': np.zeros((0, 3)), 'number': 3}
  for kind in states.KINDS:
    states.save_steps(tmp_path / kind, kind, (1,), state=lambda _: state)
    assert tools.verify(tmp_path / kind).damage == ()
    with states.manager(tmp_path / kind, read_only=True) as manager:
      states.assert_equal(manager.restore().state, state)


# --- show


def test_show_tells_every_leaf_of_the_newest_step(run):
  contents = tools.show(run)
  assert contents.step == 200
  arrays = {a.name: (a.dtype, a.shape, a.num_bytes) for a in contents.arrays}
  assert arrays == {
    'mdl_vars/empty': ('int32', (0, 3), 0),
    'mdl_vars/params/half': ('bfloat16', (5, 33), 330),
    'mdl_vars/params/w': ('float32', (64, 33), 8448),
    'opt_states/0/mu': ('float64', (33,), 264),
    'opt_states/0/nu': ('bool', (33,), 33),
    'step': ('int64', (), 8),
  }
  assert contents.others == {'opt_states/1': '<empty None>'}
  assert set(contents.items) == {'input_state'}


def test_show_adds_numbers_that_equal_those_of_numpy(run):
  contents = tools.show(run, step=100, stats=True)
  stats = {a.name: a.stats for a in contents.arrays}
  want = states.plain(100)['mdl_vars']['params']['w'].astype(np.float64)
  found = stats['mdl_vars/params/w']
  assert found is not None
  np.testing.assert_allclose(
    [found.norm, found.mean, found.min, found.max],
    [np.linalg.norm(want), want.mean(), want.min(), want.max()],
    rtol=1e-12,
  )
  empty = stats['mdl_vars/empty']
  assert empty is not None
  assert (empty.norm, empty.mean, empty.min) == (0.0, None, None)


def test_show_counts_what_is_not_finite(tmp_path):
  values = np.array([1.0, np.nan, np.inf, -3.0], np.float32)
  states.save_steps(tmp_path, steps=(1,), state=lambda _: {'x': values})
  (array,) = tools.show(tmp_path, stats=True).arrays
  assert array.stats is not None
  assert (array.stats.num_non_finite, array.stats.min) == (2, -3.0)


def test_show_tells_sharding_and_typed_keys(tmp_path):
  mesh = jax.make_mesh((4,), ('data',), devices=jax.devices()[:4])
  sharding = jax.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  state = {
    'w': jax.device_put(np.zeros((8, 2), np.float32), sharding),
    'key': jax.random.key(3),
  }
  states.save_steps(tmp_path, steps=(1,), state=lambda _: state)
  key, weights = tools.show(tmp_path, stats=True).arrays
  assert (key.dtype, key.shape, key.stats) == ('key<threefry2x32>', (), None)
  assert (weights.num_boxes, 'data' in weights.sharding) == (4, True)


# --- diff


def test_steps_of_other_types_and_shardings_can_be_equal(tmp_path):
  for kind in states.KINDS:
    states.save_steps(tmp_path / kind, kind, (7,), state=states.varied)
  for kind in states.KINDS[1:]:
    found = tools.diff(tmp_path / 'GDA', tmp_path / kind)
    assert found.is_equal
    assert found.num_equal == 19


def test_diff_tells_structure_first_then_values(tmp_path):
  w = np.arange(4, dtype=np.float32)
  a = {'w': w, 'gone': w, 'shape': w, 'kind': 1, 'same': w}
  other = np.array([0, 1, 2, 4], np.float32)
  b = {'w': other, 'new': w, 'shape': w[:2], 'kind': 2, 'same': w}
  states.save_steps(tmp_path / 'a', steps=(1,), state=lambda _: a)
  states.save_steps(tmp_path / 'b', steps=(1,), state=lambda _: b)
  found = tools.diff(tmp_path / 'a', tmp_path / 'b')
  assert found.only_a == (('gone', 'float32[4]'),)
  assert found.only_b == (('new', 'float32[4]'),)
  assert found.changed == (
    ('kind', 'int 1', 'int 2'),
    ('shape', 'float32[4]', 'float32[2]'),
  )
  (array,) = found.arrays
  assert (array.name, array.num_different) == ('w', 1)
  assert (array.max_abs, array.max_relative) == (1.0, 0.25)
  assert not found.is_equal


def test_diff_compares_values_across_dtypes(tmp_path):
  w = np.linspace(0, 1, 100, dtype=np.float32)
  half = w.astype(np.float16)
  states.save_steps(tmp_path / 'a', steps=(1,), state=lambda _: {'w': w})
  states.save_steps(tmp_path / 'b', steps=(1,), state=lambda _: {'w': half})
  found = tools.diff(tmp_path / 'a', tmp_path / 'b')
  assert found.changed == (('w', 'float32[100]', 'float16[100]'),)
  want = np.abs(w.astype(np.float64) - half.astype(np.float64)).max()
  assert found.arrays[0].max_abs == want


@pytest.mark.parametrize(
  ('a', 'b', 'max_abs'),
  [
    (np.float32([np.nan, 1]), np.float32([0, 1]), np.inf),
    (np.float32([0.0]), np.float32([-0.0]), 0.0),
    (np.int64([2**62]), np.int64([2**62 + 1]), 1.0),
    (np.uint8([0]), np.uint8([255]), 255.0),
    (np.array([True]), np.array([False]), 1.0),
    (np.complex64([3j]), np.complex64([0]), 3.0),
  ],
)
def test_diff_sees_every_bit(tmp_path, a, b, max_abs):
  states.save_steps(tmp_path / 'a', steps=(1,), state=lambda _: {'x': a})
  states.save_steps(tmp_path / 'b', steps=(1,), state=lambda _: {'x': b})
  found = tools.diff(tmp_path / 'a', tmp_path / 'b')
  assert [d.max_abs for d in found.arrays] == [max_abs]
  assert not found.is_equal
  assert tools.diff(tmp_path / 'a', tmp_path / 'a').is_equal


def test_diff_takes_what_is_within_the_tolerance_as_equal(tmp_path):
  a, b = {'x': np.float32([100.0])}, {'x': np.float32([100.5])}
  states.save_steps(tmp_path / 'a', steps=(1,), state=lambda _: a)
  states.save_steps(tmp_path / 'b', steps=(1,), state=lambda _: b)
  assert tools.diff(tmp_path / 'a', tmp_path / 'b', rtol=0.01).is_equal
  assert tools.diff(tmp_path / 'a', tmp_path / 'b', atol=0.5).is_equal
  assert not tools.diff(tmp_path / 'a', tmp_path / 'b', atol=0.4).is_equal


def test_diff_names_items_that_differ(gda):
  found = tools.diff(gda, gda, step_a=100, step_b=200)
  assert found.items == ('input_state',)


# --- rm, pin, unpin


def test_rm_takes_away_a_step_and_its_record(run):
  assert tools.remove(run, [100]) == [100]
  assert [s.step for s in tools.list_steps(run).steps] == [200]
  assert sorted(os.listdir(run / 'checkpoints')) == [
    'checkpoint_00000200',
    'checkpoints.pb',
  ]
  with states.manager(run / 'checkpoints', read_only=True) as reader:
    assert reader.steps() == [200]


def test_rm_needs_a_step(gda):
  with pytest.raises(errors.UsageError, match=r'Which steps .* rm \S+ 100$'):
    tools.remove(gda)
  assert tools.remove(step_dir(gda, 100)) == [100]


def test_rm_of_the_newest_needs_force(gda):
  with pytest.raises(errors.UsageError, match=r'200 is the newest.*--force'):
    tools.remove(gda, [100, 200])
  assert len(tools.list_steps(gda).steps) == 2
  assert tools.remove(gda, [200], force=True) == [200]


def test_rm_of_a_pinned_or_leased_step_needs_force(gda):
  tools.pin(gda, [100])
  with pytest.raises(errors.UsageError, match='step 100 is pinned'):
    tools.remove(gda, [100])
  tools.unpin(gda, [100])
  (step_dir(gda, 100) / 'lease_x').write_bytes(b'99999999999')
  with pytest.raises(errors.UsageError, match='step 100 is being read'):
    tools.remove(gda, [100])
  assert tools.remove(gda, [100], force=True) == [100]


def test_rm_of_an_absent_step_removes_nothing(gda):
  with pytest.raises(errors.CheckpointNotFoundError, match='no complete step'):
    tools.remove(gda, [100, 150])
  assert len(tools.list_steps(gda).steps) == 2


def test_a_pinned_step_survives_the_sweep_until_unpinned(run):
  tools.pin(run, [100])
  directory = run / 'checkpoints'
  keep = checkpoint.KeepPolicy(max_to_keep=1)
  with states.manager(directory, keep_policy=keep) as manager:
    manager.save(300, states.plain(300))
    assert manager.steps() == [100, 300]
    tools.unpin(step_dir(run, 100))
    manager.save(400, states.plain(400))
    assert manager.steps() == [400]


def test_a_step_removed_beside_a_live_trainer_is_forgotten_by_it(gda):
  directory = gda / 'checkpoints'
  keep = checkpoint.KeepPolicy(max_to_keep=3)
  with states.manager(directory, keep_policy=keep) as manager:
    manager.save(300, states.plain(300))
    tools.remove(gda, [200])
    manager.save(400, states.plain(400))
    # The step that is gone does not count as one of the three.
    assert manager.steps() == [100, 300, 400]
  assert tools.verify(gda).damage == ()


def test_a_pinned_step_of_another_padding_survives_the_sweep(tmp_path):
  states.save_steps(tmp_path, steps=(7,))
  (tmp_path / 'checkpoint_00000007').rename(tmp_path / 'checkpoint_7')
  tools.pin(tmp_path, [7])
  keep = checkpoint.KeepPolicy(max_to_keep=1)
  with states.manager(tmp_path, keep_policy=keep) as manager:
    manager.save(8, states.plain(8))
    assert manager.steps() == [7, 8]
  assert (tmp_path / 'checkpoint_7').is_dir()


def test_the_best_step_says_why_it_is_kept(tmp_path):
  policy = checkpoint.KeepPolicy(
    max_to_keep=1, num_best=1, best_metric='loss', best_mode='min'
  )
  with checkpoint.CheckpointManager(
    tmp_path,
    config=checkpoint.CheckpointConfig(async_save=False),
    keep_policy=policy,
  ) as manager:
    for step, loss in enumerate([3.0, 1.0, 2.0, 0.5]):
      manager.save(step, states.plain(step), metrics={'loss': loss})
      found = {
        s.step: s.keep
        for s in tools.list_steps(tmp_path).steps
        if s.state == 'complete'
      }
      best = {0: 0, 1: 1, 2: 1, 3: 3}[step]
      assert sorted(found) == sorted({best, step})
      assert 'best' in found[best]
      assert ('best' in found[step]) == (best == step)


def test_what_is_swept_while_it_is_verified_is_no_damage(tmp_path):
  stop = threading.Event()

  def train():
    with checkpoint.CheckpointManager(
      tmp_path, keep_policy=checkpoint.KeepPolicy(max_to_keep=2)
    ) as manager:
      for step in itertools.count():
        if stop.is_set():
          break
        manager.save(step, states.plain(step))

  trainer = threading.Thread(target=train)
  trainer.start()
  try:
    while not (tmp_path / 'checkpoints.pb').exists():
      time.sleep(0.01)
    for _ in range(60):
      assert tools.verify(tmp_path).damage == ()
  finally:
    stop.set()
    trainer.join()
