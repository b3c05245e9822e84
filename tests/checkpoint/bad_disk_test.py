"""Disks that are full, read-only, another user's, or fail when synced."""

import contextlib
import errno
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest

from paxlike import checkpoint, sync
from paxlike.checkpoint import tools
from paxlike.cli import ckpt
from paxlike.core import errors
from tests.checkpoint import states
from tests.fakes import disks, faulty_fs

_NOBODY = 65534
needs_root = pytest.mark.skipif(
  os.geteuid() != 0, reason='only root mounts disks and changes users'
)


def big(step: int) -> dict[str, np.ndarray]:
  """1 MiB."""
  return {'w': np.full(1 << 18, step, np.float32)}


def manager(directory, kind='GDA', on_save_error='stop', **options):
  return checkpoint.CheckpointManager(
    directory,
    config=checkpoint.CheckpointConfig(
      type=kind,
      async_save=options.pop('async_save', False),
      on_save_error=on_save_error,
    ),
    world=sync.SoloWorld(),
    **options,
  )


def names(directory: pathlib.Path) -> list[str]:
  return sorted(os.listdir(directory))


# --- full


@pytest.fixture
def small_disk() -> Iterator[pathlib.Path]:
  """A real disk with room for three steps."""
  with (
    tempfile.TemporaryDirectory() as path,
    disks.mounted(pathlib.Path(path), size='4m') as mount,
  ):
    yield mount


@needs_root
@pytest.mark.parametrize('async_save', [False, True])
@pytest.mark.parametrize('kind', states.KINDS)
def test_a_full_disk_stops_the_run_and_loses_nothing(
  small_disk, kind, async_save
):
  def train() -> None:
    with manager(small_disk, kind, async_save=async_save) as run:
      for step in range(1, 9):
        run.save(step, big(step))

  with pytest.raises(errors.SaveError) as caught:
    train()
  message = str(caught.value)
  assert 'No space left on device' in message
  assert 'Step 4 was not saved' in message
  assert names(small_disk) == [
    *(f'checkpoint_0000000{step}' for step in (1, 2, 3)),
    'checkpoints.pb',
  ]
  with manager(small_disk, kind, read_only=True) as reader:
    found = reader.restore()
  assert found.step == 3
  states.assert_equal(found.state, big(3))


@needs_root
@pytest.mark.parametrize('kind', states.KINDS)
def test_a_run_told_to_go_on_saves_again_once_there_is_room(small_disk, kind):
  with manager(small_disk, kind, on_save_error='warn') as run:
    for step in range(1, 6):
      run.save(step, big(step))
    assert run.steps() == [1, 2, 3]
    tools.remove(small_disk, [1])
    run.save(6, big(6))
    assert 6 in run.steps()
  states.assert_equal(manager(small_disk, kind).restore().state, big(6))


@needs_root
def test_a_disk_without_a_free_byte_keeps_the_step_before(small_disk):
  filler = small_disk / 'filler'
  with manager(small_disk / 'steps') as run:
    run.save(1, big(1))
    with filler.open('wb', buffering=0) as f, contextlib.suppress(OSError):
      while f.write(bytes(4096)):
        pass
    with pytest.raises(errors.SaveError, match='No space left'):
      run.save(2, big(2))
  filler.unlink()
  with manager(small_disk / 'steps') as run:
    assert run.steps() == [1]
    run.save(2, big(2))
  assert tools.verify(small_disk / 'steps').damage == ()


# --- ENOSPC where it is told last, at fsync


@pytest.mark.parametrize('on_save_error', ['stop', 'warn'])
@pytest.mark.parametrize('method', ['finish', 'write_new', 'sync_dir'])
def test_no_space_at_fsync_is_no_step(tmp_path, method, on_save_error):
  states.save_steps(tmp_path, steps=(1,))
  broken = []
  disk = faulty_fs.FaultyFileSystem(
    faulty_fs.FailWhen(
      lambda number, call: bool(broken) and call.method == method,
      lambda: OSError(errno.ENOSPC, 'No space left on device'),
    )
  )
  with manager(tmp_path, on_save_error=on_save_error, file_system=disk) as run:
    broken.append(True)
    if on_save_error == 'stop':
      with pytest.raises(errors.SaveError, match='No space left on device'):
        run.save(2, states.plain(2))
    else:
      run.save(2, states.plain(2))
    broken.clear()
    run.wait()
    left = [name for name in names(tmp_path) if not name.startswith('writer_')]
    assert left == ['checkpoint_00000001', 'checkpoints.pb']
    states.assert_equal(run.restore().state, states.plain(1))
    assert run.save(3, states.plain(3))
    assert run.steps() == [1, 3]


def test_what_could_not_be_cleaned_goes_at_the_owners_next_start(tmp_path):
  broken = []
  disk = faulty_fs.FaultyFileSystem(
    faulty_fs.FailWhen(
      lambda number, call: bool(broken) and call.method in ('finish', 'remove'),
      lambda: OSError(errno.EIO, 'Input/output error'),
    )
  )
  with manager(tmp_path, file_system=disk) as run:
    run.save(1, states.plain(1))
    broken.append(True)
    with pytest.raises(errors.SaveError, match='Input/output error'):
      run.save(2, states.plain(2))
  (left,) = [n for n in names(tmp_path) if n.startswith('tmp_')]
  with manager(tmp_path, read_only=True) as reader:
    assert reader.restore().step == 1
  tools.list_steps(tmp_path)
  tools.verify(tmp_path)
  assert left in names(tmp_path)
  manager(tmp_path).close()
  assert names(tmp_path) == ['checkpoint_00000001', 'checkpoints.pb']


# --- read-only


@pytest.fixture
def read_only_disk() -> Iterator[pathlib.Path]:
  """A disk with one step that was mounted read-only afterwards."""
  with tempfile.TemporaryDirectory() as path:
    subprocess.run(['mount', '-t', 'tmpfs', 'tmpfs', path], check=True)
    try:
      states.save_steps(path, steps=(1, 2))
      subprocess.run(['mount', '-o', 'remount,ro', path], check=True)
      yield pathlib.Path(path)
    finally:
      subprocess.run(['umount', path], check=True)


@needs_root
def test_a_read_only_disk_is_refused_before_training(read_only_disk):
  with pytest.raises(errors.SaveError) as caught:
    manager(read_only_disk)
  assert 'Read-only file system' in str(caught.value)
  assert 'Have that disk mounted for writing, or choose' in str(caught.value)


@needs_root
def test_a_read_only_disk_serves_readers_and_tools(read_only_disk, capsys):
  with manager(read_only_disk, read_only=True) as reader:
    states.assert_equal(reader.restore().state, states.plain(2))
  assert ckpt.main(['ls', str(read_only_disk)]) == 0
  assert ckpt.main(['verify', str(read_only_disk)]) == 0
  assert 'all well' in capsys.readouterr().out


@needs_root
@pytest.mark.parametrize('command', ['rm', 'pin'])
def test_a_read_only_disk_refuses_changes_in_one_line(read_only_disk, command):
  with pytest.raises(errors.CheckpointError, match='Read-only file system'):
    ckpt.main([command, str(read_only_disk), '1'])
  assert len(tools.list_steps(read_only_disk).steps) == 2


# --- another user's


@pytest.fixture
def shared() -> Iterator[pathlib.Path]:
  """A directory that every user may enter and only root may change."""
  with tempfile.TemporaryDirectory() as path:
    os.chmod(path, 0o755)
    states.save_steps(f'{path}/steps', steps=(1, 2))
    # Whatever is loaded on first use, before the user changes.
    with manager(f'{path}/steps', read_only=True) as reader:
      reader.restore()
    yield pathlib.Path(path) / 'steps'


@contextlib.contextmanager
def nobody() -> Iterator[None]:
  os.seteuid(_NOBODY)
  try:
    yield
  finally:
    os.seteuid(0)


@needs_root
def test_a_directory_of_another_user_is_refused_before_training(shared):
  with nobody(), pytest.raises(errors.SaveError) as caught:
    manager(shared)
  assert 'Permission denied' in str(caught.value)
  assert 'Nothing has been trained' in str(caught.value)


@needs_root
def test_another_user_restores_evaluates_and_looks(shared, capsys):
  before = sorted(shared.rglob('*'))
  with nobody():
    with manager(shared, read_only=True) as reader:
      states.assert_equal(reader.restore().state, states.plain(2))
    assert ckpt.main(['verify', str(shared)]) == 0
    with pytest.raises(errors.CheckpointError, match='Permission denied'):
      ckpt.main(['rm', str(shared), '1'])
  assert sorted(shared.rglob('*')) == before


@needs_root
@pytest.mark.parametrize('name', ['MANIFEST', 'p00000.index', 'p00000.data'])
def test_a_file_that_may_not_be_read_is_named_and_not_called_damaged(
  shared, name, capsys
):
  path = shared / 'checkpoint_00000002' / name
  path.chmod(0)
  with nobody(), manager(shared, read_only=True) as reader:
    with pytest.raises(errors.CheckpointAccessError) as caught:
      reader.restore()
    assert reader.restore(step=1).step == 1
    assert ckpt.main(['verify', str(shared)]) == 1
  said = capsys.readouterr().out
  assert str(path) in said
  for text in (str(caught.value), said):
    assert 'Permission denied' in text
    assert 'damaged' not in text.lower()
  assert str(path) in str(caught.value)
  assert f'Let user {_NOBODY} in there' in str(caught.value)
  assert caught.value.exit_status == 2


@needs_root
def test_what_may_not_be_read_is_no_reason_to_fall_back(shared):
  (shared / 'checkpoint_00000002' / 'p00000.data').chmod(0)
  config = checkpoint.CheckpointConfig(fallback=True)
  with (
    nobody(),
    checkpoint.CheckpointManager(
      shared, config=config, world=sync.SoloWorld(), read_only=True
    ) as reader,
    pytest.raises(errors.CheckpointAccessError),
  ):
    reader.restore()


@needs_root
def test_a_path_that_may_not_be_entered_is_one_line(shared):
  shared.chmod(0o700)
  with nobody(), pytest.raises(errors.CheckpointAccessError) as caught:
    tools.list_steps(shared)
  assert 'Permission denied' in str(caught.value)
  assert f'Let user {_NOBODY} in there' in str(caught.value)
