"""Snapshots are whole or not there, on any mesh, and older ones outlive them."""

import contextlib
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from paxlike import checkpoint
from paxlike.core import errors
from paxlike.elastic import (
  _facts,
  _memory,
  _messages,
  _serving,
  _transfer,
  snapshots,
)

_SECRET = b'a secret of at least sixteen bytes'


def _mesh(count: int) -> jax.sharding.Mesh:
  return jax.sharding.Mesh(np.array(jax.devices()[:count]), ('data',))


def _state(mesh: jax.sharding.Mesh, value: float = 0.0):
  split = NamedSharding(mesh, PartitionSpec('data'))
  whole = NamedSharding(mesh, PartitionSpec())
  weights = np.arange(24 * 64, dtype=np.float32).reshape(24, 64) + value
  return {
    'weights': jax.device_put(jnp.array(weights), split),
    'step': jax.device_put(jnp.int32(value), whole),
    'rng': jax.random.key(3),
  }


def _target(state):
  return jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding),
    state,
  )


def _equal(a, b) -> bool:
  same = jax.tree.map(lambda x, y: bool((_raw(x) == _raw(y)).all()), a, b)
  return all(jax.tree.leaves(same))


def _raw(leaf):
  is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
  return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


@pytest.fixture
def memory(tmp_path):
  return _memory.Memory(str(tmp_path / 'host'))


def _taker(memory, generation=1, job_id='job'):
  return snapshots.Taker(
    memory.root, job_id=job_id, generation=generation, process=0, count=1
  )


def _take(taker, state, step, *, items):
  taker.take(state, step, items=items)
  return taker.wait()


def _restore(memory, target, step, address='127.0.0.1:9'):
  (piece,) = [piece for piece, _ in memory.pieces() if piece.step == step]
  return snapshots.Planned(
    (_facts.Source(piece=piece, address=address),),
    secret=_SECRET,
    own_address='127.0.0.1:9',
    own_root=memory.root,
  ).restore(target)


def test_a_snapshot_comes_back_bit_for_bit_with_its_items(memory):
  state = _state(_mesh(4), 5.0)
  _take(_taker(memory), state, 5, items={'position': 9})
  restored = _restore(memory, _target(state), 5)
  assert restored.step == 5
  assert restored.items == {'position': 9}
  assert _equal(restored.state, state)


def test_the_state_may_change_before_its_snapshot_is_whole(memory, monkeypatch):
  may_go_on = threading.Event()
  write = checkpoint.pieces.Copy.write

  def late(copy, *args, **kwargs):
    may_go_on.wait(10.0)
    return write(copy, *args, **kwargs)

  monkeypatch.setattr(checkpoint.pieces.Copy, 'write', late)
  state, taker = _state(_mesh(4), 5.0), _taker(memory)
  taker.take(state, 5, items={})
  jax.tree.map(lambda array: array.delete(), state)
  assert memory.pieces() == [], 'what is not whole cannot be seen'
  may_go_on.set()
  taker.wait()
  same = _state(_mesh(4), 5.0)
  assert _equal(_restore(memory, _target(same), 5).state, same)


@pytest.mark.parametrize('count', [1, 2, 3, 8])
def test_a_snapshot_fits_any_other_mesh(memory, count):
  state = _state(_mesh(4), 5.0)
  _take(_taker(memory), state, 5, items={})
  other = _state(_mesh(count))
  restored = _restore(memory, _target(other), 5).state
  assert restored['weights'].sharding == other['weights'].sharding
  assert _equal(restored, state)


def test_what_is_restored_is_no_view_of_the_memory(memory):
  taker = _taker(memory)
  mesh = _mesh(1)
  _take(taker, _state(mesh, 1.0), 1, items={})
  restored = _restore(memory, _target(_state(mesh)), 1).state
  for step in range(2, 6):
    _take(taker, _state(mesh, float(step)), step, items={})
  assert _equal(restored, _state(mesh, 1.0))


def test_two_whole_snapshots_are_there_while_a_third_is_written(
  memory, monkeypatch
):
  taker = _taker(memory)
  mesh = _mesh(2)
  for step in range(1, 6):
    _take(taker, _state(mesh, float(step)), step, items={})
  seen = []

  def interrupted(*args, **kwargs):
    seen.extend(piece.step for piece, _ in memory.pieces())
    raise KeyboardInterrupt

  monkeypatch.setattr(taker._cutter, 'copy', interrupted)
  with pytest.raises(KeyboardInterrupt):
    _take(taker, _state(mesh), 6, items={})
  assert seen == [4, 5]
  for step in (4, 5):
    found = _restore(memory, _target(_state(mesh)), step)
    assert _equal(found.state, _state(mesh, float(step)))


def test_memory_does_not_grow_with_the_number_of_snapshots(memory):
  taker = _taker(memory)
  sizes = set()
  for step in range(3, 20):
    _take(taker, _state(_mesh(2)), step, items={})
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
  state = _state(_mesh(2), 5.0)
  _take(_taker(memory), state, 5, items={})
  ((_, directory),) = memory.pieces()
  path = os.path.join(directory, 'p00000.data')
  with open(path, 'r+b') as file:
    file.seek(4096 + 100)
    byte = file.read(1)
    file.seek(4096 + 100)
    file.write(bytes([byte[0] ^ 1]))
  with pytest.raises(snapshots.UnreadableError, match='checksum'):
    _restore(memory, _target(state), 5)


def test_a_piece_of_another_snapshot_does_not_pass(memory, tmp_path):
  state = _state(_mesh(2), 5.0)
  _take(_taker(memory), state, 5, items={})
  other = _memory.Memory(str(tmp_path / 'other'))
  _take(_taker(other, job_id='another job'), state, 5, items={})
  ((_, ours),), ((_, theirs),) = memory.pieces(), other.pieces()
  os.replace(
    os.path.join(theirs, 'p00000.data'), os.path.join(ours, 'p00000.data')
  )
  with pytest.raises(snapshots.UnreadableError, match='another attempt'):
    _restore(memory, _target(state), 5)


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
    _taker(memory).prepare(_state(_mesh(1)))
  assert os.listdir(memory.own) == []


def test_what_has_no_room_in_memory_goes_to_the_disk(tmp_path, monkeypatch):
  memory = _spilling(tmp_path)
  _room(monkeypatch, {'host': 4096, 'disk': 1 << 30})
  state, taker = _state(_mesh(2), 5.0), _taker(memory)
  for step in range(1, 7):
    _take(taker, state, step, items={'position': step})
  assert os.listdir(memory.own) == []
  assert [piece.step for piece, _ in memory.pieces()] == [4, 5, 6]
  assert len(os.listdir(tmp_path / 'disk' / 'own')) == 3
  restored = _restore(memory, _target(state), 6)
  assert restored.items == {'position': 6}
  assert _equal(restored.state, state)
  memory.remove()
  assert os.listdir(tmp_path) == []


def test_where_memory_suffices_the_disk_is_left_alone(tmp_path):
  memory = _spilling(tmp_path)
  _take(_taker(memory), _state(_mesh(2), 5.0), 5, items={})
  assert len(os.listdir(memory.own)) == 1
  assert os.listdir(tmp_path / 'disk' / 'own') == []


def test_a_disk_without_room_is_told_as_well(tmp_path, monkeypatch):
  memory = _spilling(tmp_path)
  _room(monkeypatch, {'host': 4096, 'disk': 4096})
  with pytest.raises(errors.ConfigError, match=r'and .*disk 0 MiB'):
    _taker(memory).prepare(_state(_mesh(1)))


def test_pieces_of_others_lie_beside_those_of_this_host(tmp_path, monkeypatch):
  memory, sender = _spilling(tmp_path), _memory.Memory(str(tmp_path / 'other'))
  state = _state(_mesh(4), 5.0)
  _take(_taker(sender), state, 5, items={})
  ((piece, directory),) = sender.pieces()
  _room(monkeypatch, {'host': 4096, 'disk': 1 << 30})
  _take(_taker(memory, generation=0), state, 5, items={})
  with _serving_host(memory) as address:
    peer = _transfer.Peer(address, _SECRET)
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
  mesh = _mesh(1)
  old = _taker(memory, generation=1)
  for step in range(3):
    _take(old, _state(mesh), step, items={})
  free_bytes = 9 * old._cutter.data_bytes - _memory.size_bytes(memory.root)

  class Tight:
    f_bavail, f_frsize = free_bytes, 1

  monkeypatch.setattr(os, 'statvfs', lambda path: Tight)
  _take(_taker(memory, generation=2), _state(mesh), 5, items={})
  assert [piece.step for piece, _ in memory.pieces()] == [0, 1, 2, 5]


# --- what an agent keeps


def test_an_agent_that_starts_again_finds_whole_pieces_only(tmp_path):
  before = _memory.Memory(str(tmp_path / 'host'))
  _take(_taker(before), _state(_mesh(1)), 5, items={})
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
  mesh = _mesh(1)
  old = _taker(memory, generation=1)
  for step in (10, 20):
    _take(old, _state(mesh), step, items={})
  new = _taker(memory, generation=2)
  _take(new, _state(mesh), 30, items={})
  memory.prune(2, (20, 1))
  assert [p.step for p, _ in memory.pieces()] == [10, 20, 30]
  _take(new, _state(mesh), 40, items={})
  memory.prune(2, (20, 1))
  assert [p.step for p, _ in memory.pieces()] == [30, 40]


def test_memory_does_not_grow_with_generations_that_die_young(memory):
  mesh = _mesh(1)
  restored, counts = None, []
  for generation in range(1, 12):
    taker = _taker(memory, generation=generation)
    _take(taker, _state(mesh), 10 * generation, items={})
    memory.prune(generation, restored)
    restored = (10 * generation, generation)
    counts.append(len(memory.pieces()))
  assert counts == [1, 2, *[3] * 9]
  assert [p.step for p, _ in memory.pieces()] == [90, 100, 110]


def test_what_was_newer_than_what_is_gone_on_from_is_of_no_use(memory):
  mesh = _mesh(1)
  old = _taker(memory, generation=1)
  for step in (10, 20, 30):
    _take(old, _state(mesh), step, items={})
  _take(_taker(memory, generation=2), _state(mesh), 25, items={})
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


@contextlib.contextmanager
def _serving_host(memory):
  """Another host that gives out its memory; yields its address."""
  done = threading.Event()

  def serve(connection):
    _transfer.serve(memory, connection)
    done.set()

  yield _serving.listen('127.0.0.1:0', _SECRET, serve)
  assert done.wait(10.0)


def test_a_snapshot_is_restored_from_another_hosts_memory(memory, tmp_path):
  state = _state(_mesh(4), 5.0)
  _take(_taker(memory), state, 5, items={'position': 9})
  ((piece, _),) = memory.pieces()
  with _serving_host(memory) as address:
    restored = snapshots.Planned(
      (_facts.Source(piece=piece, address=address),),
      secret=_SECRET,
      own_address='127.0.0.1:9',
      own_root=str(tmp_path / 'elsewhere'),
    ).restore(_target(_state(_mesh(2))))
  assert _equal(restored.state, state)
  assert restored.items == {'position': 9}


def test_a_copy_at_the_buddy_is_as_good(memory, tmp_path):
  state = _state(_mesh(4), 5.0)
  _take(_taker(memory), state, 5, items={})
  ((piece, directory),) = memory.pieces()
  buddy = _memory.Memory(str(tmp_path / 'buddy'))
  with _serving_host(buddy) as address:
    peer = _transfer.Peer(address, _SECRET)
    assert _transfer.push(peer, piece, directory)
    peer.close()
  memory.remove()
  ((held, path),) = buddy.pieces()
  assert held == piece
  assert path.startswith(buddy.held)
  assert _equal(_restore(buddy, _target(state), 5).state, state)


def test_a_piece_that_is_overwritten_while_sent_is_dropped(
  memory, tmp_path, monkeypatch
):
  taker = _taker(memory)
  mesh = _mesh(1)
  for step in (1, 2, 3):
    _take(taker, _state(mesh), step, items={})
  piece, directory = memory.pieces()[0]
  listed = os.listdir(directory)

  def overwritten(path):
    monkeypatch.undo()
    _take(taker, _state(mesh), 4, items={})
    return []

  assert 'p00000.data' in listed
  buddy = _memory.Memory(str(tmp_path / 'buddy'))
  with _serving_host(buddy) as address:
    peer = _transfer.Peer(address, _SECRET)
    monkeypatch.setattr(os, 'listdir', overwritten)
    assert not _transfer.push(peer, piece, directory)
    peer.close()
  assert buddy.pieces() == []


@pytest.mark.parametrize(
  'name', ['../own/x', '/etc/passwd', '..', '', 'a/b', 7]
)
def test_only_files_of_pieces_are_given_out(memory, name):
  with _serving_host(memory) as address:
    peer = _transfer.Peer(address, _SECRET)
    for message in (
      {'kind': 'size', 'piece': name, 'file': 'MANIFEST'},
      {'kind': 'read', 'piece': 'x', 'file': name, 'offset': 0, 'count': 9},
      {'kind': 'write', 'piece': name, 'file': 'x', 'offset': 0},
      {'kind': name},
    ):
      with pytest.raises(_transfer.TransferError):
        peer.ask(message)
    peer.close()


def test_a_piece_whose_sender_dies_leaves_nothing(memory):
  with _serving_host(memory) as address:
    connection = _messages.dial(address, _SECRET)
    message = {'kind': 'write', 'piece': 'x', 'file': 'y', 'offset': 0}
    connection.send(message, b'half')
    connection.receive()
    assert os.listdir(memory.held) != []
    connection.close()
  assert os.listdir(memory.held) == []
