"""Training goes on over 4, 3, 4 and 2 devices with the same numbers."""

import jax
import numpy as np
import pytest

from paxlike import checkpoint, elastic, parallel, programs
from paxlike.core import errors
from paxlike.elastic import _facts, _memory, snapshots
from tests.fakes import tiny_task

_BATCH_ROWS = 12
_DIM = 12


class _Run:
  """A run whose devices a test takes away and gives back."""

  def __init__(self, tmp_path, num_devices: int, config=None):
    self.manager = checkpoint.CheckpointManager(tmp_path / 'checkpoints')
    self.task = tiny_task.make_task(
      dim=_DIM, noise=0.1, learner={'num_micro_batches': 1}
    )
    self.source = tiny_task.make_input(
      rows=60, dim=_DIM, batch_size=_BATCH_ROWS
    )
    self.config = config or parallel.MeshConfig()
    self.memory = _memory.Memory(str(tmp_path / 'memory'))
    self.losses: list[float] = []
    self.example_ids: list[list[int]] = []
    self.generation = 0
    self.rebuilt = None
    self.reform(num_devices)

  def reform(self, num_devices: int) -> None:
    """What happens when the devices change: only they are told."""
    self.generation += 1
    self.rebuilt = elastic.elastic_handler(
      jax.devices()[:num_devices],
      mesh_config=self.config,
      segment=lambda p: programs.TrainProgram(self.task, p),
      manager=self.manager,
      snapshot=self.snapshot(),
      resume=lambda restored: (
        restored.state,
        restored.step,
        restored.items['position'],
      ),
      otherwise=lambda program: (program.init_state(), 0, 0),
    )
    self.state, self.step, self.position = self.rebuilt.start
    del self.losses[self.step :], self.example_ids[self.step :]
    self.taker = snapshots.Taker(
      self.memory.root,
      job_id='job',
      generation=self.generation,
      process=0,
      count=1,
    )

  def snapshot(self):
    pieces = [piece for piece, _ in self.memory.pieces()]
    if not pieces:
      return None
    return snapshots.Planned(
      (_facts.Source(piece=pieces[-1], address='here'),),
      secret=b'',
      own_address='here',
      own_root=self.memory.root,
    )

  def train(self, count: int) -> None:
    partitioner = self.rebuilt.partitioner
    for _ in range(count):
      rows = partitioner.local_rows(_BATCH_ROWS)
      batch = self.source.read(self.position, rows)
      ids = np.asarray(batch['example_id'])
      self.example_ids.append(ids.tolist())
      self.state, out = self.rebuilt.program.run(
        self.state, partitioner.put_batch(batch, _BATCH_ROWS)
      )
      self.losses.append(float(out.loss.value))
      self.position += 1
      self.step += 1

  def take_snapshot(self) -> None:
    items = {'position': self.position}
    self.taker.take(self.state, self.step, items=items)
    self.taker.wait()


def test_devices_that_go_and_come_change_neither_losses_nor_examples(tmp_path):
  straight = _Run(tmp_path / 'straight', 4)
  straight.train(20)
  run = _Run(tmp_path / 'elastic', 4)
  for num_devices in (3, 4, 2):
    run.train(4)
    run.take_snapshot()
    run.train(2)  # lost
    run.reform(num_devices)
    assert run.rebuilt.partitioner.mesh.size == num_devices
  run.train(20 - run.step)
  assert run.example_ids == straight.example_ids
  np.testing.assert_allclose(run.losses, straight.losses, rtol=1e-5)


@pytest.mark.parametrize('num_devices', [3, 5])
def test_whatever_is_lost_or_comes_means_stay_means_and_sums_stay_sums(
  tmp_path, num_devices
):
  run = _Run(tmp_path, 4)
  run.train(1)
  run.take_snapshot()
  run.reform(num_devices)  # 12 rows do not divide by 5
  before = np.asarray(run.state.mdl_vars['params']['kernel'])
  batch = run.source.read(run.position, range(_BATCH_ROWS))
  run.train(1)
  after = run.state.mdl_vars
  # 0.1 times the mean gradient over the examples, whoever holds them; the
  # noise of the loss is the same draw on any mesh.
  straight = _Run(tmp_path / 'straight', 4)
  straight.train(2)
  np.testing.assert_allclose(
    np.asarray(after['params']['kernel']) - before,
    np.asarray(straight.state.mdl_vars['params']['kernel']) - before,
    rtol=1e-5,
    atol=1e-7,
  )
  assert float(after['non_trainable']['seen']) == 2 * _BATCH_ROWS
  assert batch['example_weights'].sum() == _BATCH_ROWS


def test_every_array_lives_on_the_devices_that_are_there(tmp_path):
  run = _Run(tmp_path, 4)
  run.train(1)
  run.take_snapshot()
  run.reform(3)
  run.train(1)
  there = set(jax.devices()[:3])
  for leaf in jax.tree.leaves(run.state):
    assert leaf.sharding.device_set <= there


def test_the_step_counts_completed_updates(tmp_path):
  run = _Run(tmp_path, 2)
  run.train(3)
  run.take_snapshot()
  run.reform(2)
  assert run.step == 3
  assert int(run.state.step) == 3
  assert run.position == 3


def test_every_checkpoint_newer_than_the_snapshot_is_forgotten(tmp_path):
  run = _Run(tmp_path, 2)
  for step in (1, 2, 3, 4):
    run.train(1)
    if step == 2:
      run.take_snapshot()
    if step != 3:
      run.manager.save(step, run.state)
  run.manager.wait()
  run.manager.forget_above(1)
  run.manager.save(4, run.state)
  run.manager.wait()
  snapshot = run.snapshot()
  snapshot.step = 4  # as if it were the newest, which restores step 2
  rebuilt = elastic.elastic_handler(
    jax.devices()[:2],
    mesh_config=run.config,
    segment=lambda p: programs.TrainProgram(run.task, p),
    manager=run.manager,
    snapshot=snapshot,
    resume=lambda restored: restored.step,
    otherwise=lambda program: None,
  )
  assert rebuilt.start == 2
  assert run.manager.steps() == [1]
  assert run.manager.save(3, run.state), 'forgotten steps can be taken again'
  run.manager.close()


def test_a_checkpoint_that_is_newer_than_the_snapshot_loses_less(tmp_path):
  run = _Run(tmp_path, 2)
  run.train(1)
  run.take_snapshot()
  run.train(2)
  run.manager.save(3, run.state)
  run.manager.wait()
  rebuilt = elastic.elastic_handler(
    jax.devices()[:2],
    mesh_config=run.config,
    segment=lambda p: programs.TrainProgram(run.task, p),
    manager=run.manager,
    snapshot=run.snapshot(),
    resume=lambda restored: 'snapshot',
    otherwise=lambda program: 'checkpoint',
  )
  assert rebuilt.start == 'checkpoint'
  assert not rebuilt.from_snapshot
  assert run.manager.steps() == [3]
  run.manager.close()


def test_devices_over_which_the_mesh_cannot_be_laid_are_refused(tmp_path):
  run = _Run(tmp_path, 4, parallel.MeshConfig(mdl=2))
  run.train(1)
  run.take_snapshot()
  with pytest.raises(errors.ConfigError, match='3 devices'):
    run.reform(3)
  run.reform(2)
  assert run.step == 1


@pytest.mark.parametrize(
  ('sizes', 'micro', 'legal'),
  [
    ({}, 1, ()),
    ({'mdl': 2}, 1, (2, 4, 6)),
    ({'replica': 1, 'data': 4}, 1, (4,)),
    # 16 rows on 3 hosts are padded to 18, which 4 does not divide.
    ({}, 4, (1, 2, 4, 5)),
  ],
)
def test_the_legal_numbers_of_hosts_are_told(sizes, micro, legal):
  found = elastic.legal_hosts(
    parallel.MeshConfig(**sizes),
    devices_per_host=1,
    max_hosts=6,
    batch_size=16,
    num_micro_batches=micro,
  )
  assert found == legal
