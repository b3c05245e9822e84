"""After a crash at any call there is the old step, or the old and the new."""

import contextlib
import errno
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.checkpoint import tools
from paxlike.core import errors
from tests.checkpoint import samples as states
from tests.fakes import clock as fake_clock
from tests.fakes import faulty_fs


@pytest.fixture
def tmp_path():
  """A directory in memory: these tests sync a thousand times."""
  with tempfile.TemporaryDirectory(dir='/dev/shm') as path:
    yield pathlib.Path(path)


def manager(directory, disk=None, *, kind='GDA', keep=1, async_save=False):
  return checkpoint.CheckpointManager(
    directory,
    config=checkpoint.CheckpointConfig(type=kind, async_save=async_save),
    keep_policy=checkpoint.KeepPolicy(max_to_keep=keep),
    file_system=disk,
  )


def disk_of(fault=None, *, in_place=False):
  """One writer thread, so that the n-th call is always the same."""
  return faulty_fs.FaultyFileSystem(fault, num_threads=1, in_place=in_place)


def save_second(directory, disk, **options):
  with manager(directory, disk, **options) as m:
    m.save(2, states.small(2), items={'input_state': 2}, metrics={'loss': 2.0})


def newest(directory):
  with manager(directory) as m:
    found = m.restore(states.small())
    states.assert_equal(found.state, states.small(found.step))
    assert found.items == {'input_state': found.step}
    return found.step


@pytest.mark.parametrize('is_torn', [False, True])
@pytest.mark.parametrize(
  ('kind', 'in_place', 'async_save'),
  [
    ('GDA', False, True),
    ('GDA', False, False),
    ('GDA', True, False),
    ('FLAX', False, False),
    ('FLAX', True, False),
    ('MULTI_HOST_FLAX', False, False),
    ('MULTI_HOST_FLAX', True, False),
  ],
)
def test_a_crash_at_any_call_leaves_a_whole_step(
  tmp_path, kind, in_place, async_save, is_torn
):
  options = {'kind': kind, 'async_save': async_save}
  whole = disk_of(in_place=in_place)
  make_first(tmp_path / 'whole', disk_of(in_place=in_place), kind)
  save_second(tmp_path / 'whole', whole, **options)
  found = set()
  for number in range(1, len(whole.calls) + 1):
    directory = tmp_path / str(number)
    make_first(directory, disk_of(in_place=in_place), kind)
    fault = faulty_fs.StopAt(number, is_torn=is_torn)
    with contextlib.suppress(faulty_fs.Stopped, errors.SaveError):
      save_second(directory, disk_of(fault, in_place=in_place), **options)
    found.add(newest(directory))
    # The next run saves again and leaves no litter.
    with manager(directory, disk_of(in_place=in_place), kind=kind) as m:
      m.save(3, states.small(3), items={'input_state': 3})
    assert newest(directory) == 3
    assert sorted(os.listdir(directory)) in (
      ['checkpoint_00000003', 'checkpoints.pb'],
      ['.checkpoints.pb.tmp', 'checkpoint_00000003', 'checkpoints.pb'],
    )
  assert found == {1, 2}


def make_first(directory, disk, kind):
  with manager(directory, disk, kind=kind) as m:
    m.save(1, states.small(1), items={'input_state': 1})


@pytest.mark.parametrize('is_torn', [False, True])
def test_a_crash_while_overwriting_leaves_one_of_the_two(tmp_path, is_torn):
  def overwrite(directory, disk):
    with manager(directory, disk) as m:
      m.save(1, states.small(7), overwrite=True)

  whole = disk_of()
  make_first(tmp_path / 'whole', disk_of(), 'GDA')
  overwrite(tmp_path / 'whole', whole)
  found = set()
  for number in range(1, len(whole.calls) + 1):
    directory = tmp_path / str(number)
    make_first(directory, disk_of(), 'GDA')
    with contextlib.suppress(faulty_fs.Stopped, errors.SaveError):
      overwrite(directory, disk_of(faulty_fs.StopAt(number, is_torn=is_torn)))
    with manager(directory) as m:
      found.add(int(m.restore(states.small()).state['step']))
  assert found == {1, 7}


def test_an_error_at_any_call_leaves_a_whole_step_and_no_litter(tmp_path):
  whole = disk_of()
  make_first(tmp_path / 'whole', disk_of(), 'GDA')
  save_second(tmp_path / 'whole', whole)
  for number in range(1, len(whole.calls) + 1):
    directory = tmp_path / str(number)
    make_first(directory, disk_of(), 'GDA')
    fault = faulty_fs.FailWhen(
      lambda n, call, number=number: n == number,
      lambda: OSError(errno.EIO, 'Input/output error'),
    )
    try:
      save_second(directory, disk_of(fault))
      saved = True
    except (errors.CheckpointError, OSError):
      saved = False
    assert newest(directory) in ((2,) if saved else (1, 2))
    assert not [n for n in os.listdir(directory) if n.startswith('tmp_')]


@pytest.mark.parametrize('call', ['write_at', 'finish', 'rename'])
def test_a_killed_process_leaves_a_whole_step(tmp_path, call):
  make_first(tmp_path, disk_of(), 'GDA')
  program = f"""
import os, signal
import numpy as np
from paxlike import checkpoint
from paxlike.core import fs
from tests.checkpoint import commit_test
from tests.fakes import clock as fake_clock
from tests.fakes import faulty_fs

class Kill(faulty_fs.Fault):
  def before(self, number, call):
    if call.method == {call!r}:
      os.kill(os.getpid(), signal.SIGKILL)

commit_test.save_second({str(tmp_path)!r}, commit_test.disk_of(Kill()))
"""
  done = subprocess.run([sys.executable, '-c', program], timeout=120)
  assert done.returncode == -9
  assert newest(tmp_path) == 1
  assert sorted(os.listdir(tmp_path)) == [
    'checkpoint_00000001',
    'checkpoints.pb',
  ]


def test_a_copied_directory_is_a_valid_checkpoint(tmp_path):
  make_first(tmp_path / 'a', disk_of(), 'GDA')
  subprocess.run(['cp', '-r', tmp_path / 'a', tmp_path / 'b'], check=True)
  os.unlink(tmp_path / 'b' / 'checkpoints.pb')
  assert newest(tmp_path / 'b') == 1


def test_files_and_calls_of_a_save_do_not_grow_with_the_arrays(tmp_path):
  counts = []
  for size in (10, 1000):
    disk = disk_of()
    with manager(tmp_path / str(size), disk) as m:
      m.save(1, {f'x{i}': np.ones(3) for i in range(size)})
    counts.append(len(disk.calls))
    assert len(list((tmp_path / str(size)).rglob('*'))) == 5
  assert counts[0] == counts[1]


@pytest.mark.parametrize('in_place', [False, True])
@pytest.mark.parametrize('can_exchange', [True, False])
def test_an_overwritten_step_keeps_its_pin(tmp_path, in_place, can_exchange):
  disk = disk_of(in_place=in_place)
  if not can_exchange:
    disk.exchange = lambda one, other: False
  with manager(tmp_path, disk, keep=2) as m:
    m.save(1, states.small(1))
    m.save(2, states.small(2))
    tools.pin(tmp_path, [1])
    m.save(1, states.small(7), overwrite=True)
    for step in (3, 4, 5):
      m.save(step, states.small(step))
    assert m.steps() == [1, 4, 5]
    found = m.restore(states.small(), step=1)
  states.assert_equal(found.state, states.small(7))
  assert 'pinned' in tools.list_steps(tmp_path).steps[0].keep


def test_an_overwritten_step_stays_preserved_by_the_interval(tmp_path):
  clock = fake_clock.FakeClock()
  keep = checkpoint.KeepPolicy(max_to_keep=1, keep_interval=3600.0)
  with checkpoint.CheckpointManager(
    tmp_path, keep_policy=keep, clock=clock
  ) as m:
    for step in (1, 2):
      m.save(step, states.small(step))
    m.save(1, states.small(7), overwrite=True)
    m.save(3, states.small(3))
    m.wait()
    assert m.steps() == [1, 3]
