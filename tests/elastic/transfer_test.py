"""Pieces go from host to host whole or not at all, and nothing else does."""

import os

import pytest

from paxlike.elastic import _facts, _memory, _messages, _transfer, snapshots
from tests.elastic import states


@pytest.fixture
def memory(tmp_path):
  return _memory.Memory(str(tmp_path / 'host'))


def test_a_snapshot_is_restored_from_another_hosts_memory(memory, tmp_path):
  state = states.state(states.mesh(4), 5.0)
  states.take(states.taker(memory), state, 5, items={'position': 9})
  ((piece, _),) = memory.pieces()
  with states.serving_host(memory) as address:
    restored = snapshots.Planned(
      (_facts.Source(piece=piece, address=address),),
      secret=states.SECRET,
      own_address='127.0.0.1:9',
      own_root=str(tmp_path / 'elsewhere'),
    ).restore(states.target(states.state(states.mesh(2))))
  assert states.equal(restored.state, state)
  assert restored.items == {'position': 9}


def test_a_copy_at_the_buddy_is_as_good(memory, tmp_path):
  state = states.state(states.mesh(4), 5.0)
  states.take(states.taker(memory), state, 5, items={})
  ((piece, directory),) = memory.pieces()
  buddy = _memory.Memory(str(tmp_path / 'buddy'))
  with states.serving_host(buddy) as address:
    peer = _transfer.Peer(address, states.SECRET)
    assert _transfer.push(peer, piece, directory)
    peer.close()
  memory.remove()
  ((held, path),) = buddy.pieces()
  assert held == piece
  assert path.startswith(buddy.held)
  assert states.equal(
    states.restore(buddy, states.target(state), 5).state, state
  )


def test_a_piece_that_is_overwritten_while_sent_is_dropped(
  memory, tmp_path, monkeypatch
):
  taker = states.taker(memory)
  mesh = states.mesh(1)
  for step in (1, 2, 3):
    states.take(taker, states.state(mesh), step, items={})
  piece, directory = memory.pieces()[0]
  listed = os.listdir(directory)

  def overwritten(path):
    monkeypatch.undo()
    states.take(taker, states.state(mesh), 4, items={})
    return []

  assert 'p00000.data' in listed
  buddy = _memory.Memory(str(tmp_path / 'buddy'))
  with states.serving_host(buddy) as address:
    peer = _transfer.Peer(address, states.SECRET)
    monkeypatch.setattr(os, 'listdir', overwritten)
    assert not _transfer.push(peer, piece, directory)
    peer.close()
  assert buddy.pieces() == []


@pytest.mark.parametrize(
  'name', ['../own/x', '/etc/passwd', '..', '', 'a/b', 7]
)
def test_only_files_of_pieces_are_given_out(memory, name):
  with states.serving_host(memory) as address:
    peer = _transfer.Peer(address, states.SECRET)
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
  with states.serving_host(memory) as address:
    connection = _messages.dial(address, states.SECRET)
    message = {'kind': 'write', 'piece': 'x', 'file': 'y', 'offset': 0}
    connection.send(message, b'half')
    connection.receive()
    assert os.listdir(memory.held) != []
    connection.close()
  assert os.listdir(memory.held) == []
