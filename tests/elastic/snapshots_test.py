"""Snapshots are whole or not there, on any mesh, and older ones outlive them."""

import os

import jax
import pytest

from paxlike.core import errors
from paxlike.elastic import (
  _memory,
  _transfer,
  snapshots,
)
from tests.elastic import states


@pytest.fixture
def memory(tmp_path):
  return _memory.Memory(str(tmp_path / 'host'))


def test_a_snapshot_comes_back_bit_for_bit_with_its_items(memory):
  state = states.state(states.mesh(4), 5.0)
  states.take(states.taker(memory), state, 5, items={'position': 9})
  restored = states.restore(memory, states.target(state), 5)
  assert restored.step == 5
  assert restored.items == {'position': 9}
  assert states.equal(restored.state, state)


def test_the_state_may_change_before_its_snapshot_is_whole(memory, monkeypatch):
  may_go_on = states.write_late(monkeypatch)
  state, taker = states.state(states.mesh(4), 5.0), states.taker(memory)
  taker.take(state, 5, items={})
  jax.tree.map(lambda array: array.delete(), state)
  assert memory.pieces() == [], 'what is not whole cannot be seen'
  may_go_on.set()
  taker.wait()
  same = states.state(states.mesh(4), 5.0)
  assert states.equal(
    states.restore(memory, states.target(same), 5).state, same
  )


@pytest.mark.parametrize('count', [1, 2, 3, 8])
def test_a_snapshot_fits_any_other_mesh(memory, count):
  state = states.state(states.mesh(4), 5.0)
  states.take(states.taker(memory), state, 5, items={})
  other = states.state(states.mesh(count))
  restored = states.restore(memory, states.target(other), 5).state
  assert restored['weights'].sharding == other['weights'].sharding
  assert states.equal(restored, state)


def test_what_is_restored_is_no_view_of_the_memory(memory):
  taker = states.taker(memory)
  mesh = states.mesh(1)
  states.take(taker, states.state(mesh, 1.0), 1, items={})
  restored = states.restore(memory, states.target(states.state(mesh)), 1).state
  for step in range(2, 6):
    states.take(taker, states.state(mesh, float(step)), step, items={})
  assert states.equal(restored, states.state(mesh, 1.0))


def test_two_whole_snapshots_are_there_while_a_third_is_written(
  memory, monkeypatch
):
  taker = states.taker(memory)
  mesh = states.mesh(2)
  for step in range(1, 6):
    states.take(taker, states.state(mesh, float(step)), step, items={})
  seen = []

  def interrupted(*args, **kwargs):
    seen.extend(piece.step for piece, _ in memory.pieces())
    raise KeyboardInterrupt

  monkeypatch.setattr(taker._cutter, 'copy', interrupted)
  with pytest.raises(KeyboardInterrupt):
    states.take(taker, states.state(mesh), 6, items={})
  assert seen == [4, 5]
  for step in (4, 5):
    found = states.restore(memory, states.target(states.state(mesh)), step)
    assert states.equal(found.state, states.state(mesh, float(step)))


def test_memory_does_not_grow_with_the_number_of_snapshots(memory):
  taker = states.taker(memory)
  sizes = set()
  for step in range(3, 20):
    states.take(taker, states.state(states.mesh(2)), step, items={})
    if step >= 6:
      names = sorted(os.listdir(memory.own))
      sizes.add((len(names), _bytes_of(memory.own)))
  assert len(sizes) == 1
  assert next(iter(sizes))[0] == 3


def _bytes_of(root: str) -> int:
  return sum(
    os.path.getsize(os.path.join(parent, name))
    for parent, _, names in os.walk(root)
    for name in names
    if name.endswith('.data')
  )


def test_a_flipped_bit_is_found(memory):
  state = states.state(states.mesh(2), 5.0)
  states.take(states.taker(memory), state, 5, items={})
  ((_, directory),) = memory.pieces()
  path = os.path.join(directory, 'p00000.data')
  with open(path, 'r+b') as file:
    file.seek(4096 + 100)
    byte = file.read(1)
    file.seek(4096 + 100)
    file.write(bytes([byte[0] ^ 1]))
  with pytest.raises(snapshots.UnreadableError, match='checksum'):
    states.restore(memory, states.target(state), 5)


def test_a_piece_of_another_snapshot_does_not_pass(memory, tmp_path):
  state = states.state(states.mesh(2), 5.0)
  states.take(states.taker(memory), state, 5, items={})
  other = _memory.Memory(str(tmp_path / 'other'))
  states.take(states.taker(other, job_id='another job'), state, 5, items={})
  ((_, ours),), ((_, theirs),) = memory.pieces(), other.pieces()
  os.replace(
    os.path.join(theirs, 'p00000.data'), os.path.join(ours, 'p00000.data')
  )
  with pytest.raises(snapshots.UnreadableError, match='another attempt'):
    states.restore(memory, states.target(state), 5)


def _room(monkeypatch, free_bytes: dict[str, int]) -> None:
  """Pretends that in each directory so many bytes are free, by its name."""

  class Found:
    f_frsize = 1

    def __init__(self, path):
      name = os.path.basename(os.path.realpath(path))
      self.f_bavail = free_bytes[name]

  monkeypatch.setattr(os, 'statvfs', Found)


def test_too_little_memory_is_told_before_any_step(memory, monkeypatch):
  _room(monkeypatch, {'host': 4096})
  with pytest.raises(errors.ConfigError, match='--snapshot_spill_dir'):
    states.taker(memory).prepare(states.state(states.mesh(1)))
  assert os.listdir(memory.own) == []


def test_what_has_no_room_in_memory_goes_to_the_disk(tmp_path, monkeypatch):
  memory = _spilling(tmp_path)
  _room(monkeypatch, {'host': 4096, 'disk': 1 << 30})
  state, taker = states.state(states.mesh(2), 5.0), states.taker(memory)
  for step in range(1, 7):
    states.take(taker, state, step, items={'position': step})
  assert os.listdir(memory.own) == []
  assert [piece.step for piece, _ in memory.pieces()] == [4, 5, 6]
  assert len(os.listdir(tmp_path / 'disk' / 'own')) == 3
  restored = states.restore(memory, states.target(state), 6)
  assert restored.items == {'position': 6}
  assert states.equal(restored.state, state)
  memory.remove()
  assert os.listdir(tmp_path) == []


def test_where_memory_suffices_the_disk_is_left_alone(tmp_path):
  memory = _spilling(tmp_path)
  states.take(
    states.taker(memory), states.state(states.mesh(2), 5.0), 5, items={}
  )
  assert len(os.listdir(memory.own)) == 1
  assert os.listdir(tmp_path / 'disk' / 'own') == []


def test_a_disk_without_room_is_told_as_well(tmp_path, monkeypatch):
  memory = _spilling(tmp_path)
  _room(monkeypatch, {'host': 4096, 'disk': 4096})
  with pytest.raises(errors.ConfigError, match=r'and .*disk 0\.00 MiB'):
    states.taker(memory).prepare(states.state(states.mesh(1)))


def test_pieces_of_others_lie_beside_those_of_this_host(tmp_path, monkeypatch):
  memory, sender = _spilling(tmp_path), _memory.Memory(str(tmp_path / 'other'))
  state = states.state(states.mesh(4), 5.0)
  states.take(states.taker(sender), state, 5, items={})
  ((piece, directory),) = sender.pieces()
  _room(monkeypatch, {'host': 4096, 'disk': 1 << 30})
  states.take(states.taker(memory, generation=0), state, 5, items={})
  with states.serving_host(memory) as address:
    peer = _transfer.Peer(address, states.SECRET)
    assert _transfer.push(peer, piece, directory)
    peer.close()
  assert os.listdir(memory.held) == []
  assert os.listdir(tmp_path / 'disk' / 'held') == [piece.name]
  assert memory.find(piece.name) is not None


def test_hosts_on_one_machine_share_its_memory(tmp_path, monkeypatch):
  roots = [
    _memory.root_of(str(tmp_path), job_id='job', name=f'host{index}')
    for index in range(4)
  ]
  for root in roots:
    _memory.Memory(root)
  _memory.Memory(_memory.root_of(str(tmp_path), job_id='other', name='host0'))
  _room(monkeypatch, {'paxlike-job-host0': 4000})
  held_bytes = sum(map(_memory.size_bytes, roots))
  budget_bytes = _memory.budget_bytes(roots[0], job_id='job')
  assert budget_bytes == (4000 + held_bytes) // 4


def test_an_agent_that_was_killed_leaves_its_links_to_the_next(tmp_path):
  before = _spilling(tmp_path)
  for lock in before._locks:
    os.close(lock)
  assert _spilling(tmp_path).pieces() == []


def _spilling(tmp_path) -> _memory.Memory:
  return _memory.Memory(
    str(tmp_path / 'host'), spill_root=str(tmp_path / 'disk')
  )


def test_what_earlier_generations_hold_is_no_lack_of_room(memory, monkeypatch):
  mesh = states.mesh(1)
  old = states.taker(memory, generation=1)
  for step in range(3):
    states.take(old, states.state(mesh), step, items={})
  free_bytes = 9 * old._cutter.data_bytes - _memory.size_bytes(memory.root)

  class Tight:
    f_bavail, f_frsize = free_bytes, 1

  monkeypatch.setattr(os, 'statvfs', lambda path: Tight)
  states.take(
    states.taker(memory, generation=2), states.state(mesh), 5, items={}
  )
  assert [piece.step for piece, _ in memory.pieces()] == [0, 1, 2, 5]


# --- what an agent keeps


def test_an_agent_that_starts_again_finds_whole_pieces_only(tmp_path):
  before = _memory.Memory(str(tmp_path / 'host'))
  states.take(states.taker(before), states.state(states.mesh(1)), 5, items={})
  os.makedirs(os.path.join(before.own, 'w-half'))
  os.close(before._locks[0])  # as its death would
  after = _memory.Memory(str(tmp_path / 'host'))
  assert [piece.step for piece, _ in after.pieces()] == [5]
  assert len(os.listdir(after.own)) == 1


def test_two_agents_cannot_have_one_memory(tmp_path):
  first = _memory.Memory(str(tmp_path / 'host'))
  with pytest.raises(errors.UsageError, match='--name'):
    _memory.Memory(str(tmp_path / 'host'))
  first.remove()


def test_earlier_generations_stay_until_there_are_two_snapshots_of_this(
  memory,
):
  mesh = states.mesh(1)
  old = states.taker(memory, generation=1)
  for step in (10, 20):
    states.take(old, states.state(mesh), step, items={})
  new = states.taker(memory, generation=2)
  states.take(new, states.state(mesh), 30, items={})
  memory.prune(2, (20, 1))
  assert [p.step for p, _ in memory.pieces()] == [10, 20, 30]
  states.take(new, states.state(mesh), 40, items={})
  memory.prune(2, (20, 1))
  assert [p.step for p, _ in memory.pieces()] == [30, 40]


def test_memory_does_not_grow_with_generations_that_die_young(memory):
  mesh = states.mesh(1)
  restored, counts = None, []
  for generation in range(1, 12):
    taker = states.taker(memory, generation=generation)
    states.take(taker, states.state(mesh), 10 * generation, items={})
    memory.prune(generation, restored)
    restored = (10 * generation, generation)
    counts.append(len(memory.pieces()))
  assert counts == [1, 2, *[3] * 9]
  assert [p.step for p, _ in memory.pieces()] == [90, 100, 110]


def test_what_was_newer_than_what_is_gone_on_from_is_of_no_use(memory):
  mesh = states.mesh(1)
  old = states.taker(memory, generation=1)
  for step in (10, 20, 30):
    states.take(old, states.state(mesh), step, items={})
  states.take(
    states.taker(memory, generation=2), states.state(mesh), 25, items={}
  )
  memory.prune(2, (20, 1))
  assert [p.step for p, _ in memory.pieces()] == [10, 20, 25]


def test_memory_of_dead_jobs_is_swept_and_of_living_ones_is_not(tmp_path):
  parent = str(tmp_path)
  alive = _memory.Memory(_memory.root_of(parent, job_id='alive', name='a'))
  dead = _memory.Memory(_memory.root_of(parent, job_id='dead', name='a'))
  os.close(dead._locks[0])
  foreign = tmp_path / 'paxos'
  foreign.mkdir()
  _memory.sweep(parent, job_id='mine')
  assert os.path.isdir(alive.root)
  assert not os.path.exists(dead.root)
  assert foreign.is_dir()


def test_the_steps_that_a_worker_wrote_outlive_it(memory):
  assert memory.completed_steps() == -1
  cell = _memory.StepCell(memory.step_file)
  cell.set(42)
  assert memory.completed_steps() == 42


# --- other hosts
