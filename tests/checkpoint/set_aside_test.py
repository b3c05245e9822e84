"""What is damaged is told and kept, where there is a rename and where not."""

import itertools
import os
import shutil

import pytest

from paxlike import checkpoint
from paxlike.checkpoint import tools
from paxlike.core import errors, fs
from tests.checkpoint import states
from tests.fakes import faulty_fs

NEWEST = 'checkpoint_00000002'


def store(fault=None):
  """A disk that acts as a store does: no rename, MANIFEST is the commit."""
  return faulty_fs.FaultyFileSystem(fault, in_place=True)


def manager(directory, disk=None, *, fallback=False, **options):
  return checkpoint.CheckpointManager(
    directory,
    config=checkpoint.CheckpointConfig(fallback=fallback, async_save=False),
    file_system=disk or store(),
    **options,
  )


def fill(directory, steps=(1, 2)):
  with manager(directory) as m:
    for step in steps:
      m.save(step, states.plain(step), items={'input_state': step})


def contents(path):
  """The files of a step but for marks, and what is in them."""
  return {
    p.name: p.read_bytes()
    for p in path.iterdir()
    if p.name != 'MANIFEST' and not p.name.startswith('damaged_')
  }


@pytest.fixture
def lost(tmp_path):
  """Steps 1 and 2 of a store, of which 2 has lost its MANIFEST."""
  fill(tmp_path)
  (tmp_path / NEWEST / 'MANIFEST').unlink()
  return tmp_path


@pytest.mark.parametrize('read_only', [False, True])
def test_on_a_store_a_listed_newest_step_without_manifest_is_an_error(
  lost, read_only
):
  before = contents(lost / NEWEST)
  with (
    pytest.raises(errors.CheckpointDamagedError, match=f'{NEWEST}/MANIFEST'),
    manager(lost, read_only=read_only) as m,
  ):
    m.restore()
  assert contents(lost / NEWEST) == before


def test_on_a_store_that_does_not_answer_no_step_is_passed_over(lost):
  fault = faulty_fs.FailWhen(
    lambda _, call: call.method == 'read_bytes' and call.path.endswith('.pb'),
    lambda: errors.StorageError('No answer.'),
  )
  for read_only in (False, True):
    with (
      pytest.raises((errors.StorageError, errors.CheckpointError)),
      manager(lost, store(fault), read_only=read_only) as m,
    ):
      m.restore()


def test_on_a_store_fallback_passes_it_over_says_so_and_keeps_it(lost, caplog):
  before = contents(lost / NEWEST)
  with manager(lost, fallback=True, read_only=True) as reader:
    assert reader.restore().step == 1
  assert f'{NEWEST}/MANIFEST is missing' in caplog.text
  caplog.clear()
  with manager(lost, fallback=True) as m:
    assert m.restore().step == 1
    assert f'{NEWEST} is damaged' in caplog.text
    m.save(3, states.plain(3))
    m.save(4, states.plain(4))
  with manager(lost) as m:
    assert m.steps() == [1, 3, 4]
    m.save(5, states.plain(5))
  assert contents(lost / NEWEST) == before


def test_on_a_store_a_damaged_step_that_is_saved_again_stays_beneath(lost):
  before = contents(lost / NEWEST)
  keep = checkpoint.KeepPolicy(max_to_keep=1)
  with manager(lost, fallback=True) as m:
    m.save(2, states.plain(77))
  with manager(lost, keep_policy=keep) as m:
    states.assert_equal(m.restore().state, states.plain(77))
    m.save(2, states.plain(78), overwrite=True)
    m.save(3, states.plain(3))
    # Nobody would keep it but for what lies beneath.
    assert m.steps() == [2, 3]
  after = contents(lost / NEWEST)
  assert before.items() <= after.items()


def test_on_a_store_a_step_that_fallback_passed_over_is_set_aside(tmp_path):
  fill(tmp_path)
  (data,) = (tmp_path / NEWEST).glob('*.data')
  broken = bytearray(data.read_bytes())
  broken[5000] ^= 1
  data.write_bytes(broken)
  before = contents(tmp_path / NEWEST)
  manifest = (tmp_path / NEWEST / 'MANIFEST').read_bytes()
  with manager(tmp_path, fallback=True) as m:
    assert m.restore().step == 1
  # The next run has no need to fall back, and clears nothing.
  with manager(tmp_path) as m:
    assert m.restore().step == 1
    assert contents(tmp_path / NEWEST) == before
    m.save(2, states.plain(77))
  assert before.items() <= contents(tmp_path / NEWEST).items()
  (aside,) = (tmp_path / NEWEST).glob('damaged_*.MANIFEST')
  assert aside.read_bytes() == manifest
  with manager(tmp_path, read_only=True) as reader:
    states.assert_equal(reader.restore().state, states.plain(77))


@pytest.mark.parametrize('loses', ['MANIFEST', '*.data'])
@pytest.mark.parametrize('in_place', [True, False])
def test_a_run_that_ends_while_it_sets_aside_keeps_every_byte(
  tmp_path, in_place, loses
):
  def disk(fault=None):
    return faulty_fs.FaultyFileSystem(fault, in_place=in_place)

  template = tmp_path / 'template'
  with manager(template, disk()) as m:
    for step in (1, 2):
      m.save(step, states.plain(step), items={'input_state': step})
  (lost,) = (template / NEWEST).glob(loses)
  lost.unlink()
  before = contents(template / NEWEST)
  manifests = [p.read_bytes() for p in (template / NEWEST).glob('MANIFEST')]

  def run(directory, a_disk):
    with manager(directory, a_disk, fallback=True) as m:
      m.restore()
      m.save(2, states.plain(77))

  for number in itertools.count(1):
    directory = tmp_path / str(number)
    shutil.copytree(template, directory)
    try:
      run(directory, disk(faulty_fs.StopAt(number)))
      break
    except faulty_fs.Stopped:
      pass
    finally:
      run(directory, disk())
      found = [p for p in directory.rglob('*') if p.is_file()]
      kept = {(p.name, p.read_bytes()) for p in found}
      assert before.items() <= kept, number
      assert set(manifests) <= {data for _, data in kept}, number
      with manager(directory, disk(), read_only=True) as reader:
        states.assert_equal(reader.restore().state, states.plain(77))
  assert number > 20


def test_on_a_store_an_older_step_without_manifest_is_kept(tmp_path, caplog):
  fill(tmp_path, (1, 2, 3))
  (tmp_path / NEWEST / 'MANIFEST').unlink()
  before = contents(tmp_path / NEWEST)
  for step in (4, 5, 6):
    with manager(tmp_path) as m:
      m.save(step, states.plain(step))
  assert contents(tmp_path / NEWEST) == before
  assert f'{NEWEST} is damaged' in caplog.text


def test_on_a_store_a_manifest_that_is_lost_during_a_run_is_kept(tmp_path):
  with manager(tmp_path) as m:
    m.save(1, states.plain(1))
    m.save(2, states.plain(2))
    (tmp_path / NEWEST / 'MANIFEST').unlink()
    before = contents(tmp_path / NEWEST)
    for step in (3, 4, 5):
      m.save(step, states.plain(step))
    assert m.steps() == [1, 3, 4, 5]
  assert contents(tmp_path / NEWEST) == before


@pytest.mark.parametrize('history', [None, b'torn'])
def test_on_a_store_without_its_history_what_may_be_damaged_is_kept(
  lost, history
):
  (lost / 'checkpoints.pb').unlink()
  if history is not None:
    (lost / 'checkpoints.pb').write_bytes(history)
  before = contents(lost / NEWEST)
  for step in (3, 4):
    with manager(lost) as m:
      m.save(step, states.plain(step))
  assert contents(lost / NEWEST) == before


@pytest.mark.parametrize('steps', [(), (1,)])
def test_on_a_store_what_no_history_lists_is_an_unfinished_save(
  tmp_path, steps, caplog
):
  caplog.set_level('INFO')
  if steps:
    fill(tmp_path, steps)
  (tmp_path / NEWEST).mkdir()
  (tmp_path / NEWEST / 'p00000-12345678.data').write_bytes(b'')
  with manager(tmp_path, read_only=True) as reader:
    assert reader.steps() == list(steps)
  with manager(tmp_path):
    pass
  assert not list(tmp_path.glob(f'{NEWEST}/*'))
  assert 'was left by a save that never ended' in caplog.text


def test_on_a_store_a_step_that_the_history_missed_is_listed_from_then_on(
  tmp_path,
):
  """A run was killed between MANIFEST and history; then MANIFEST is lost."""
  fill(tmp_path, (1,))
  history = (tmp_path / 'checkpoints.pb').read_bytes()
  fill(tmp_path, (2,))
  (tmp_path / 'checkpoints.pb').write_bytes(history)
  with manager(tmp_path) as m:
    assert m.steps() == [1, 2]
  (tmp_path / NEWEST / 'MANIFEST').unlink()
  with pytest.raises(errors.CheckpointDamagedError, match=NEWEST):
    manager(tmp_path)


class Watch(faulty_fs.Fault):
  """Looks at a store as another reader would, before each call."""

  def __init__(self, directory):
    self._directory = directory
    self.seen = set()

  def before(self, number, call):
    with manager(self._directory, read_only=True) as reader:
      self.seen.add(reader.restore().step)


@pytest.mark.parametrize('forget', [True, False])
def test_on_a_store_a_reader_beside_a_deletion_sees_no_damage(tmp_path, forget):
  fill(tmp_path, (1, 2, 3))
  watch = Watch(tmp_path)
  with manager(tmp_path, store(watch)) as m:
    if forget:
      m.forget_above(1)
    else:
      m.delete(3)
  assert watch.seen == ({1, 2, 3} if forget else {2, 3})


def test_on_a_store_a_history_that_is_not_written_lets_no_step_go(tmp_path):
  fault = faulty_fs.FailWhen(
    lambda _, call: call.method == 'rename' and 'checkpoints.pb' in call.path,
    lambda: OSError(5, 'Input/output error'),
  )
  fill(tmp_path)
  keep = checkpoint.KeepPolicy(max_to_keep=1)
  with manager(tmp_path, store(fault), keep_policy=keep) as m:
    m.save(3, states.plain(3))
    assert m.steps() == [1, 2, 3]
  assert (tmp_path / NEWEST / 'MANIFEST').exists()


def test_verify_names_the_manifest_that_a_store_has_lost(lost, monkeypatch):
  monkeypatch.setattr(fs, 'LOCAL', store())
  path = str(lost / NEWEST / 'MANIFEST')
  damage = {d.file: d.reason for d in tools.verify(lost).damage}
  assert damage[path] == 'it is missing'
  with manager(lost, fallback=True):
    pass
  found = tools.verify(lost)
  assert (found.damage, found.incomplete) == ((), ())


def test_on_a_disk_what_lost_its_manifest_is_set_aside_not_overwritten(
  tmp_path,
):
  states.save_steps(tmp_path, steps=(1, 2))
  (tmp_path / 'checkpoints.pb').unlink()
  (tmp_path / NEWEST / 'MANIFEST').unlink()
  before = contents(tmp_path / NEWEST)
  with states.manager(tmp_path) as m:
    assert m.steps() == [1]
    m.save(2, states.plain(77))
    states.assert_equal(m.restore().state, states.plain(77))
  (aside,) = tmp_path.glob(f'damaged_*.{NEWEST}')
  assert contents(aside) == before
  assert not [n for n in os.listdir(tmp_path) if n.startswith('todelete_')]


def test_on_a_disk_an_older_one_that_is_saved_again_is_set_aside_twice(
  tmp_path,
):
  states.save_steps(tmp_path, steps=(1, 2, 3))
  for _ in range(2):
    (tmp_path / NEWEST / 'MANIFEST').unlink()
    with states.manager(tmp_path) as m:
      assert m.save(2, states.plain(2), force=True)
  assert len(list(tmp_path.glob(f'damaged_*.{NEWEST}'))) == 2


def test_on_a_store_the_next_start_clears_a_killed_overwrite(tmp_path):
  fill(tmp_path)
  before = contents(tmp_path / NEWEST)
  for name in (
    'p00000-12345678.data',
    'p00000-12345678.0001.data',
    'p00000-12345678.index',
    'p00012-12345678.index',
    'state-12345678.msgpack',
    '003/state-12345678.msgpack',
  ):
    path = tmp_path / NEWEST / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'of an attempt that was killed')
  # Whose this is nobody knows.
  (tmp_path / NEWEST / 'notes-20240131').write_bytes(b'of the user')
  with manager(tmp_path) as m:
    assert m.restore().step == 2
  (tmp_path / NEWEST / 'notes-20240131').unlink()
  (tmp_path / NEWEST / '003').rmdir()
  assert contents(tmp_path / NEWEST) == before


@pytest.mark.parametrize('damage', ['cut', 'set aside'])
def test_on_a_store_nothing_is_cleared_where_it_may_be_damaged(
  tmp_path, damage
):
  fill(tmp_path)
  left = tmp_path / NEWEST / 'p00000-12345678.data'
  left.write_bytes(b'of some attempt')
  if damage == 'cut':
    manifest = tmp_path / NEWEST / 'MANIFEST'
    manifest.write_bytes(manifest.read_bytes()[:-1])
  else:
    (tmp_path / NEWEST / 'damaged_5.MANIFEST').write_bytes(b'')
  with manager(tmp_path):
    pass
  assert left.read_bytes() == b'of some attempt'


@pytest.mark.parametrize('what', ['file', 'link'])
def test_what_lies_where_a_listed_step_was_is_no_reason_to_go_back(
  tmp_path, what
):
  states.save_steps(tmp_path / 'steps', steps=(1, 2))
  step = tmp_path / 'steps' / 'checkpoint_00000002'
  shutil.rmtree(step)
  if what == 'file':
    step.write_text('')
  else:
    step.symlink_to('/nowhere')
  for options in ({'read_only': True}, {}):
    with (
      pytest.raises(errors.CheckpointDamagedError, match=f'{step}/MANIFEST'),
      checkpoint.CheckpointManager(tmp_path / 'steps', **options) as opened,
    ):
      opened.restore()
  assert os.path.lexists(step)
