"""Deleting is slow on a large disk, and nobody waits for it."""

import os
import threading

import numpy as np
import pytest

from paxlike import checkpoint, sync
from paxlike.core import errors
from tests.checkpoint import samples
from tests.fakes import faulty_fs
from tests.fakes import world as fake_world


class Deletions(faulty_fs.Fault):
  """Files of steps that go are removed only once they may be."""

  def __init__(self):
    self.may_end = threading.Event()
    self.has_begun = threading.Event()

  def before(self, number, call):
    if call.method == 'remove' and 'todelete_' in call.path:
      self.has_begun.set()
      assert self.may_end.wait(30)


def test_saves_go_on_while_a_step_is_being_deleted(tmp_path):
  deletions = Deletions()
  manager = checkpoint.CheckpointManager(
    tmp_path,
    keep_policy=checkpoint.KeepPolicy(max_to_keep=1),
    file_system=faulty_fs.FaultyFileSystem(deletions),
  )
  for step in range(1, 6):
    assert manager.save(step, samples.small(step))
  manager.wait()
  assert deletions.has_begun.wait(30)
  assert manager.steps() == [5]
  assert manager.restore(samples.small()).step == 5
  # Half deleted, they are no steps, for nobody.
  with checkpoint.CheckpointManager(tmp_path, read_only=True) as reader:
    assert reader.steps() == [5]
  going = [n for n in os.listdir(tmp_path) if n.startswith('todelete_')]
  assert len(going) == 4
  deletions.may_end.set()
  # The end waits for what is being deleted.
  manager.close()
  assert sorted(os.listdir(tmp_path)) == [
    'checkpoint_00000005',
    'checkpoints.pb',
  ]


def test_what_an_ended_process_did_not_delete_goes_at_the_next_start(tmp_path):
  with checkpoint.CheckpointManager(tmp_path) as manager:
    for step in (1, 2):
      manager.save(step, samples.small(step))
  os.rename(
    tmp_path / 'checkpoint_00000001',
    tmp_path / 'todelete_5.0.checkpoint_00000001',
  )
  with checkpoint.CheckpointManager(tmp_path) as manager:
    assert manager.steps() == [2]
  assert sorted(os.listdir(tmp_path)) == [
    'checkpoint_00000002',
    'checkpoints.pb',
  ]


def test_only_process_0_deletes(tmp_path):
  def job(world):
    disk = faulty_fs.FaultyFileSystem()
    with checkpoint.CheckpointManager(
      tmp_path,
      keep_policy=checkpoint.KeepPolicy(max_to_keep=1),
      file_system=disk,
      world=world,
    ) as manager:
      for step in range(4):
        manager.save(step, {'x': np.zeros(3)})
    return {c.method for c in disk.calls} & {'remove', 'rename', 'exchange'}

  first, second = fake_world.run(2, job)
  assert first >= {'remove', 'rename'}
  assert second == set()


@pytest.mark.parametrize('kind', ['GDA', 'FLAX', 'MULTI_HOST_FLAX'])
def test_with_one_kept_a_failed_save_leaves_the_old_step(tmp_path, kind):
  broken = []
  disk = faulty_fs.FaultyFileSystem(
    faulty_fs.FailWhen(
      lambda _, call: bool(broken) and call.method == 'write_new',
      lambda: OSError(28, 'No space left on device'),
    )
  )
  manager = checkpoint.CheckpointManager(
    tmp_path,
    config=checkpoint.CheckpointConfig(type=kind, on_save_error='warn'),
    keep_policy=checkpoint.KeepPolicy(max_to_keep=1),
    file_system=disk,
    world=sync.SoloWorld(),
  )
  with manager:
    manager.save(1, samples.small(1))
    manager.wait()
    broken.append(True)
    manager.save(2, samples.small(2))
    manager.wait()
    broken.clear()
    found = manager.restore(samples.small())
  samples.assert_equal(found.state, samples.small(1))


def test_leftovers_alone_are_a_fresh_start_and_are_told(tmp_path, caplog):
  (tmp_path / 'tmp_5.checkpoint_00000100').mkdir(parents=True)
  # Where a step was asked for, they are none.
  with (
    checkpoint.CheckpointManager(tmp_path, read_only=True) as reader,
    pytest.raises(errors.CheckpointNotFoundError, match='no step'),
  ):
    reader.restore(samples.small())
  with checkpoint.CheckpointManager(tmp_path) as manager:
    assert manager.latest_step() is None
    assert manager.save(100, samples.small(100))
  assert 'left by a save that never ended' in caplog.text
  with checkpoint.CheckpointManager(tmp_path, read_only=True) as reader:
    samples.assert_equal(
      reader.restore(samples.small()).state, samples.small(100)
    )
