"""What a trainer sees of its checkpoint manager."""

import errno
import inspect
import math
import os
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.core import errors, fs
from tests.checkpoint import samples as states
from tests.fakes import clock as fake_clock
from tests.fakes import faulty_fs


def manager(directory, *, every=1, keep=None, world=None, **options):
  own = {
    k: options.pop(k)
    for k in ('clock', 'file_system', 'read_only', 'save_policy')
    if k in options
  }
  own.setdefault('save_policy', checkpoint.SavePolicy(every_steps=every))
  return checkpoint.CheckpointManager(
    directory,
    config=checkpoint.CheckpointConfig(**options),
    keep_policy=checkpoint.KeepPolicy(max_to_keep=keep),
    world=world,
    **own,
  )


def disk_that_fails(picks, number=errno.ENOSPC):
  """A disk that raises at the calls (method, path) for which `picks` is."""
  return faulty_fs.FaultyFileSystem(
    faulty_fs.FailWhen(
      lambda _, call: picks(call.method, call.path),
      lambda: OSError(number, os.strerror(number)),
    )
  )


def save_and_wait(m, step, state):
  m.save(step, state)
  m.wait()


def save_and_fail(m):
  with m:
    m.save(1, states.small())
    raise ZeroDivisionError


# What a caller whose types nobody checks may give it.
unchecked_save = inspect.unwrap(checkpoint.CheckpointManager.save)


class Gate(faulty_fs.FaultyFileSystem):
  """A disk that writes no data file until it is told to."""

  def __init__(self):
    super().__init__()
    self.opened = threading.Event()

  def create(self, path, size_bytes):
    assert self.opened.wait(30)
    return super().create(path, size_bytes)


# --- when


def test_nothing_saved_yet_is_due(tmp_path):
  with manager(tmp_path, every=10) as m:
    assert m.should_save(3)


def test_saves_fall_on_multiples_after_a_restart_off_the_period(tmp_path):
  with manager(tmp_path, every=256) as m:
    m.save(2050, states.small())
  with manager(tmp_path, every=256) as m:
    saved = []
    for step in range(2051, 2600):
      if m.should_save(step):
        m.save(step, states.small())
        saved.append(step)
  assert saved == [2304, 2560]


def test_the_time_rule_counts_from_the_last_save(tmp_path):
  clock = fake_clock.FakeClock()
  policy = checkpoint.SavePolicy(every_steps=1000, every_s=60.0)
  with manager(tmp_path, clock=clock, save_policy=policy) as m:
    m.save(1, states.small())
    m.wait()
    clock.advance_s(59.0)
    assert not m.should_save(2)
    clock.advance_s(1.0)
    assert m.should_save(2)


def test_continuous_is_due_as_soon_as_the_last_one_is_durable(tmp_path):
  disk = Gate()
  policy = checkpoint.SavePolicy(every_steps=1000, continuous=True)
  with manager(tmp_path, file_system=disk, save_policy=policy) as m:
    m.save(1, states.small())
    assert not m.should_save(2)
    disk.opened.set()
    m.wait()
    assert m.should_save(2)


def test_a_step_that_is_not_due_does_not_wait_for_the_writer(tmp_path):
  disk = Gate()
  with manager(tmp_path, every=100, file_system=disk) as m:
    m.save(100, states.small())
    assert [s for s in range(101, 200) if m.should_save(s)] == []
    assert m.is_saving()
    disk.opened.set()


# --- what


def test_a_step_that_is_there_is_not_written_again(tmp_path):
  with manager(tmp_path) as m:
    assert m.save(5, states.small(1))
    assert not m.save(5, states.small(2))
    assert int(m.restore(states.small()).state['step']) == 1


def test_overwrite_replaces_a_step(tmp_path):
  with manager(tmp_path) as m:
    m.save(5, states.small(1))
    assert m.save(5, states.small(2), overwrite=True)
    assert int(m.restore(states.small()).state['step']) == 2
    assert m.steps() == [5]


def test_an_older_step_is_loudly_not_saved(tmp_path, caplog):
  with manager(tmp_path) as m:
    m.save(126_000, states.small())
    assert not m.save(1, states.small())
  assert 'Step 1 is NOT saved' in caplog.text
  assert 'newer' in caplog.text


def test_what_changes_after_save_returns_is_not_saved(tmp_path):
  disk = Gate()
  state = {'numpy': np.zeros(1000), 'jax': jnp.zeros(1000)}
  with manager(tmp_path, file_system=disk) as m:
    m.save(1, state)
    state['numpy'][:] = 9
    advance = jax.jit(lambda x: x + 9, donate_argnums=0)
    advance(state['jax'])
    disk.opened.set()
    found = m.restore().state
  np.testing.assert_array_equal(found['numpy'], 0)
  np.testing.assert_array_equal(found['jax'], 0)


def test_a_second_save_waits_and_says_so_once(tmp_path, caplog):
  disk = Gate()
  with manager(tmp_path, file_system=disk) as m:
    m.save(1, states.small(1))
    threading.Timer(0.2, disk.opened.set).start()
    m.save(2, states.small(2))
    assert m.records()[0].step == 1
  assert caplog.text.count('waits for step 1') == 1


def test_the_memory_of_the_copy_is_used_again(tmp_path):
  with manager(tmp_path) as m:
    for step in range(1, 4):
      m.save(step, states.small(step))
      m.wait()
      if step == 1:
        size = m._arena.size_bytes
    assert m._arena.size_bytes == size
    for step in range(1, 4):
      states.assert_equal(
        m.restore(states.small(), step=step).state, states.small(step)
      )


def test_mixed_keys_are_refused_before_anything_is_written(tmp_path):
  with manager(tmp_path) as m, pytest.raises(errors.ConfigError, match='mixes'):
    m.save(1, {0: np.zeros(1), '0': np.zeros(1)})
  assert os.listdir(tmp_path) == []


def test_an_item_that_is_not_json_is_refused(tmp_path):
  with manager(tmp_path) as m:
    with pytest.raises(errors.ConfigError, match="Item 'x'"):
      m.save(1, states.small(), items={'x': object()})
    with pytest.raises(errors.ConfigError, match='cannot name an item'):
      m.save(1, states.small(), items={'../x': 1})


@pytest.mark.parametrize('step', [True, False, 1.5, -1, '7', None, np.bool_(1)])
def test_what_is_no_step_is_refused_at_its_save(tmp_path, step):
  with manager(tmp_path) as m:
    m.save(1, states.small())
    with pytest.raises(errors.UsageError, match=r'^Step .* cannot be saved'):
      unchecked_save(m, step, states.small(), force=True)
    assert m.save(np.int64(2), states.small())
    assert m.save(jnp.int32(3), states.small())
    m.wait()
    assert m.steps() == [1, 2, 3]


@pytest.mark.parametrize('metric', ['x', '1.5', None, [1.0], b'1'])
def test_what_is_no_metric_is_refused_at_its_save(tmp_path, metric):
  with manager(tmp_path) as m:
    with pytest.raises(errors.UsageError, match=r"metric 'a'.*no number"):
      unchecked_save(m, 1, states.small(), metrics={'a': metric})
    assert m.steps() == []
    assert m.save(1, states.small(), metrics={'a': 1.0})


def test_metrics_of_any_number_are_kept(tmp_path):
  metrics = {
    'nan': math.nan,
    'int': 2,
    'numpy': np.float32(0.5),
    'jax': jnp.float32(0.25),
  }
  with manager(tmp_path) as m:
    m.save(1, states.small(), metrics=metrics)
    m.wait()
    found = dict(m.records()[0].metrics)
  assert math.isnan(found.pop('nan'))
  assert found == {'int': 2.0, 'numpy': 0.5, 'jax': 0.25}


def test_saving_through_a_reader_is_refused(tmp_path):
  with (
    manager(tmp_path, read_only=True) as m,
    pytest.raises(errors.UsageError, match='read_only'),
  ):
    m.save(1, states.small())


# --- failures


@pytest.mark.parametrize('async_save', [True, False])
@pytest.mark.parametrize('method', ['create', 'write_at', 'finish', 'rename'])
def test_a_failed_save_is_raised_and_the_last_step_stays(
  tmp_path, async_save, method
):
  bad = []
  disk = disk_that_fails(lambda m, p: m == method and bool(bad))
  with manager(tmp_path, keep=1, async_save=async_save, file_system=disk) as m:
    m.save(1, states.small(1))
    m.wait()
    bad.append(1)
    with pytest.raises(errors.SaveError, match=r'process 0.*No space left'):
      save_and_wait(m, 2, states.small(2))
    bad.clear()
    assert m.steps() == [1]
    states.assert_equal(m.restore(states.small()).state, states.small(1))
    assert m.save(3, states.small(3))
    m.wait()
    assert m.steps() == [3]
  assert [n for n in os.listdir(tmp_path) if n.startswith('tmp_')] == []


def test_a_failed_item_means_no_step(tmp_path):
  disk = disk_that_fails(
    lambda m, p: m == 'write_new' and p.endswith('input_state')
  )
  m = manager(tmp_path, file_system=disk)
  m.save(1, states.small(), items={'input_state': 3})
  with pytest.raises(errors.SaveError):
    m.close()
  assert not list(tmp_path.glob('checkpoint_*'))


def test_the_warn_policy_goes_on_after_a_failed_save(tmp_path, caplog):
  bad = [1]
  disk = disk_that_fails(lambda m, p: m == 'create' and bool(bad))
  with manager(tmp_path, on_save_error='warn', file_system=disk) as m:
    m.save(1, states.small(1))
    m.wait()
    bad.clear()
    m.save(2, states.small(2))
    m.wait()
    assert m.steps() == [2]
  assert 'Step 1 was not saved' in caplog.text


def test_a_history_that_cannot_be_written_does_not_undo_the_step(tmp_path):
  disk = disk_that_fails(
    lambda m, p: m == 'write_new' and 'checkpoints.pb' in p
  )
  with manager(tmp_path, file_system=disk) as m:
    m.save(1, states.small(1))
  with manager(tmp_path) as m:
    assert m.steps() == [1]


def test_an_error_in_the_block_is_not_hidden_by_a_failed_save(tmp_path):
  disk = disk_that_fails(lambda m, p: m == 'create')
  with pytest.raises(ZeroDivisionError):
    save_and_fail(manager(tmp_path, file_system=disk))


def test_an_unwritable_directory_fails_at_the_start(tmp_path):
  disk = disk_that_fails(lambda m, p: m == 'write_new', errno.EACCES)
  with pytest.raises(errors.SaveError, match='cannot be written'):
    manager(tmp_path / 'new', file_system=disk)


# --- finding


def test_steps_are_ordered_by_number_whatever_the_padding(tmp_path):
  with manager(tmp_path) as m:
    for step in (9, 10, 99, 100, 1_000_000):
      m.save(step, states.small(step))
  os.rename(tmp_path / 'checkpoint_00000099', tmp_path / 'checkpoint_99')
  os.rename(
    tmp_path / 'checkpoint_00000010', tmp_path / 'checkpoint_0000000010'
  )
  with manager(tmp_path) as m:
    assert m.steps() == [9, 10, 99, 100, 1_000_000]
    assert int(m.restore(states.small(), step=99).state['step']) == 99


def test_foreign_names_are_neither_counted_nor_touched(tmp_path):
  names = [
    'checkpoint_00000100.backup',
    'foo_100',
    'checkpoint_100 (copy)',
    '.DS_Store',
    'lost+found',
    'tmp_notours',
    'checkpoint_',
  ]
  for name in names:
    (tmp_path / name).mkdir()
    (tmp_path / name / 'MANIFEST').write_bytes(b'x')
  (tmp_path / 'checkpoint_00000200').write_bytes(b'a file')
  with manager(tmp_path, keep=1) as m:
    for step in (1, 2, 3):
      m.save(step, states.small())
    m.wait()
    assert m.steps() == [3]
  assert set(names) < set(os.listdir(tmp_path))
  assert (tmp_path / 'checkpoint_00000200').read_bytes() == b'a file'


def test_a_directory_without_manifest_is_no_step(tmp_path):
  with manager(tmp_path) as m:
    m.save(7, states.small(7))
  (tmp_path / 'checkpoint_00000008').mkdir()
  (tmp_path / 'checkpoint_00000009').mkdir()
  (tmp_path / 'checkpoint_00000009' / 'p00000.data').write_bytes(b'')
  with manager(tmp_path) as m:
    assert m.steps() == [7]
    assert m.save(8, states.small(8))
    m.wait()
    assert m.steps() == [7, 8]


def test_only_what_has_its_marker_counts_and_only_what_is_whole_restores(
  tmp_path,
):
  with manager(tmp_path) as m:
    for step in (4, 6, 7):
      m.save(step, states.small(step), items={'input_state': step})
  (tmp_path / 'checkpoints.pb').unlink()
  (tmp_path / 'checkpoint_00000005').mkdir()
  # Metadata alone, and a marker with data that was cut off.
  for name in ('MANIFEST', 'p00000.data'):
    (tmp_path / 'checkpoint_00000006' / name).unlink()
  data = tmp_path / 'checkpoint_00000007' / 'p00000.data'
  os.truncate(data, data.stat().st_size // 2)
  with manager(tmp_path, read_only=True) as m:
    assert m.steps() == [4, 7]
    with pytest.raises(errors.CheckpointDamagedError, match=r'7/p00000\.data'):
      m.restore(states.small())
  with manager(tmp_path, read_only=True, fallback=True) as m:
    assert m.restore(states.small()).step == 4


def test_a_reader_that_starts_amid_a_save_leaves_it_alone(tmp_path):
  disk = Gate()
  with manager(tmp_path, file_system=disk) as m:
    m.save(1, states.small(1))
    while not (being_written := list(tmp_path.glob('tmp_*'))):
      assert m.is_saving()
    with manager(tmp_path, read_only=True) as reader:
      assert reader.steps() == []
      with pytest.raises(errors.CheckpointNotFoundError, match='no step'):
        reader.restore(states.small())
    assert list(tmp_path.glob('tmp_*')) == being_written
    disk.opened.set()
    m.wait()
    states.assert_equal(m.restore(states.small()).state, states.small(1))


def test_leftovers_are_cleared_by_the_owner_and_by_no_one_else(
  tmp_path, caplog
):
  left = tmp_path / 'tmp_17.checkpoint_00000100'
  left.mkdir()
  (left / 'p00000.data').write_bytes(b'x')
  (tmp_path / 'todelete_17.0.checkpoint_00000050').mkdir()
  with manager(tmp_path, read_only=True) as m:
    assert m.latest_step() is None
  assert left.exists()
  with manager(tmp_path) as m:
    assert m.save(100, states.small())
  assert sorted(os.listdir(tmp_path)) == [
    'checkpoint_00000100',
    'checkpoints.pb',
  ]
  assert 'left by a save that never ended' in caplog.text


def test_a_reader_sees_steps_as_they_come(tmp_path):
  with (
    manager(tmp_path) as writer,
    manager(tmp_path, read_only=True) as reader,
  ):
    assert reader.latest_step() is None
    for step in (1, 2):
      writer.save(step, states.small(step))
      writer.wait()
      assert reader.latest_step() == step


def test_steps_without_a_save_do_not_touch_the_disk(tmp_path):
  disk = faulty_fs.FaultyFileSystem()
  with manager(tmp_path, every=10_000, file_system=disk) as m:
    m.save(1, states.small())
    m.wait()
    before = len(disk.calls)
    for step in range(2, 1000):
      m.should_save(step)
      m.latest_step()
    assert len(disk.calls) == before


# --- damage


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 4
  path.write_bytes(data)


def test_a_damaged_newest_step_is_an_error_that_names_it(tmp_path):
  with manager(tmp_path) as m:
    for step in (1, 2):
      m.save(step, {'weights': np.arange(1000.0)})
    m.wait()
    flip(tmp_path / 'checkpoint_00000002' / 'p00000.data')
    with pytest.raises(
      errors.CheckpointDamagedError,
      match=r"checkpoint_00000002/p00000.data.*bytes.*array 'weights'",
    ):
      m.restore()


def test_fallback_takes_the_step_before_and_says_so(tmp_path, caplog):
  with manager(tmp_path, fallback=True) as m:
    for step in (1, 2):
      m.save(step, states.small(step))
    m.wait()
    flip(tmp_path / 'checkpoint_00000002' / 'p00000.data')
    assert m.restore(states.small()).step == 1
    assert m.latest_step() == 1
    assert m.save(2, states.small(2))
  assert 'Falling back' in caplog.text
  # Nothing that is damaged is deleted, and it is in nobody's way.
  (aside,) = tmp_path.glob('damaged_*.checkpoint_00000002')
  assert (aside / 'p00000.data').exists()
  with manager(tmp_path) as m:
    assert m.restore(states.small()).step == 2


def test_a_manifest_that_is_a_directory_is_damaged(tmp_path):
  with manager(tmp_path) as m:
    for step in (1, 2):
      m.save(step, states.small(step))
  manifest = tmp_path / 'checkpoint_00000002' / 'MANIFEST'
  manifest.unlink()
  manifest.mkdir()
  with (
    manager(tmp_path, read_only=True) as m,
    pytest.raises(
      errors.CheckpointDamagedError, match=r'MANIFEST is damaged.*fallback'
    ),
  ):
    m.restore(states.small())
  (damage,) = checkpoint.tools.verify(tmp_path, step=2).damage
  assert damage.file == str(manifest)
  with manager(tmp_path, fallback=True) as m:
    assert m.restore(states.small()).step == 1
    assert m.save(2, states.small(2))


def test_a_damaged_step_that_was_asked_for_is_never_replaced(tmp_path):
  with manager(tmp_path, fallback=True) as m:
    for step in (1, 2):
      m.save(step, states.small(step))
    m.wait()
    flip(tmp_path / 'checkpoint_00000002' / 'MANIFEST')
    with pytest.raises(errors.CheckpointDamagedError, match='MANIFEST'):
      m.restore(states.small(), step=2)


# --- deleting and keeping


def test_forget_above_deletes_every_newer_step(tmp_path):
  with manager(tmp_path) as m:
    for step in (1, 2, 3, 4):
      m.save(step, states.small(step))
    m.forget_above(2)
    assert m.steps() == [1, 2]
    assert m.save(3, states.small(3))
  with manager(tmp_path) as m:
    assert m.steps() == [1, 2, 3]


def test_deleting_what_is_absent_is_fine(tmp_path):
  with manager(tmp_path) as m:
    m.save(1, states.small())
    m.delete(5)
    m.delete(1)
    m.delete(1)
    assert m.steps() == []


def test_lowering_max_to_keep_takes_effect_with_the_next_save(tmp_path):
  with manager(tmp_path) as m:
    for step in range(20):
      m.save(step, states.small())
  with manager(tmp_path, keep=3) as m:
    m.save(20, states.small())
    m.wait()
    assert m.steps() == [18, 19, 20]
  assert len(list(tmp_path.glob('checkpoint_*'))) == 3


def test_a_pinned_step_is_never_swept(tmp_path):
  with manager(tmp_path, keep=1) as m:
    m.save(1, states.small())
    m.wait()
    checkpoint.tools.pin(tmp_path, [1])
    for step in (2, 3):
      m.save(step, states.small())
    m.wait()
    assert m.steps() == [1, 3]
    checkpoint.tools.unpin(tmp_path, [1])
    m.save(4, states.small())
    m.wait()
    assert m.steps() == [4]


def test_a_leased_step_stays_until_the_lease_ends(tmp_path):
  clock = fake_clock.FakeClock()
  with manager(tmp_path, keep=1, clock=clock) as m:
    m.save(1, states.small())
    m.wait()
    lease = tmp_path / 'checkpoint_00000001' / 'lease_reader'
    lease.write_text(f'{clock.now_s() + 60:.0f}')
    m.save(2, states.small())
    m.wait()
    assert m.steps() == [1, 2]
    clock.advance_s(61)
    m.save(3, states.small())
    m.wait()
    assert m.steps() == [3]


def test_a_reader_leaves_no_lease_behind(tmp_path):
  with manager(tmp_path) as m:
    m.save(1, states.small())
  with manager(tmp_path, read_only=True) as m:
    m.restore(states.small())
  names = os.listdir(tmp_path / 'checkpoint_00000001')
  assert not [n for n in names if re.match('lease', n)]


def test_a_reader_without_write_permission_restores(tmp_path):
  with manager(tmp_path) as m:
    m.save(1, states.small(1))
  disk = disk_that_fails(
    lambda m, p: m in ('write_new', 'remove', 'make_dirs', 'rename'),
    errno.EROFS,
  )
  with manager(tmp_path, read_only=True, file_system=disk) as m:
    states.assert_equal(m.restore(states.small()).state, states.small(1))


def test_a_step_that_vanishes_while_it_is_read_gives_way_to_the_next(tmp_path):
  with manager(tmp_path) as m:
    m.save(1, states.small(1))

  class Vanishing(fs.LocalFileSystem):
    def open_read(self, path):
      if 'checkpoint_00000001' in path:
        with manager(tmp_path) as m:
          m.save(2, states.small(2))
          m.wait()
          m.delete(1)
      return super().open_read(path)

  with manager(tmp_path, read_only=True, file_system=Vanishing()) as m:
    assert m.restore(states.small()).step == 2


def test_memory_that_is_being_readied_is_not_written_into_a_step(tmp_path):
  state = {'x': np.random.default_rng(0).standard_normal(1 << 20)}
  with manager(tmp_path) as m:
    m.prepare(state)
    m.save(1, state)
    np.testing.assert_array_equal(m.restore().state['x'], state['x'])


def test_asking_for_the_steps_does_not_raise_what_a_save_must(tmp_path):
  disk = disk_that_fails(lambda m, p: m == 'create')
  m = manager(tmp_path, file_system=disk)
  m.save(1, states.small())
  while m.is_saving():
    pass
  assert m.steps() == []
  with pytest.raises(errors.SaveError):
    m.wait()
  m.close()
