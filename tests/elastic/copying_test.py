"""Copies go to the buddy of the day, and a dead one holds nobody up."""

import queue
import threading

import jax.numpy as jnp
import pytest

from paxlike.elastic import (
  _copying,
  _facts,
  _memory,
  _serving,
  _transfer,
  snapshots,
)

_SECRET = b'a secret of at least sixteen bytes'


@pytest.fixture
def memory(tmp_path):
  memory = _memory.Memory(str(tmp_path / 'host'))
  taker = snapshots.Taker(
    memory.root, job_id='job', generation=1, process=0, count=2
  )
  for step in (10, 20):
    taker.take({'weights': jnp.arange(64.0)}, step, items={})
  taker.wait()
  return memory


@pytest.fixture
def pusher():
  made = _copying.Pusher(_SECRET, queue.SimpleQueue())
  yield made
  made.close()


def _buddy(tmp_path) -> tuple[_memory.Memory, str]:
  buddy = _memory.Memory(str(tmp_path / 'buddy'))
  address = _serving.listen(
    '127.0.0.1:0', _SECRET, lambda c: _transfer.serve(buddy, c)
  )
  return buddy, address


def _next(pusher) -> _copying.Copied:
  return pusher._inbox.get(timeout=10.0)


def test_the_newest_piece_is_copied_and_told(memory, pusher, tmp_path):
  buddy, address = _buddy(tmp_path)
  pusher.push(address, memory, 1, 0)
  copied = _next(pusher)
  assert copied.is_whole
  assert [piece for piece, _ in buddy.pieces()] == [copied.piece]
  assert copied.piece.step == 20


def test_a_buddy_that_is_gone_is_told_as_well(memory, pusher):
  pusher.push('127.0.0.1:9', memory, 1, 0)
  assert not _next(pusher).is_whole


def test_pieces_of_another_process_are_not_copied(memory, pusher):
  pusher.push('127.0.0.1:9', memory, 1, 1)
  pusher.push('127.0.0.1:9', memory, 2, 0)
  with pytest.raises(queue.Empty):
    pusher._inbox.get(timeout=0.1)


def test_a_buddy_that_hangs_is_given_up_once_there_is_another(
  memory, pusher, tmp_path
):
  begun = threading.Event()

  def hang(connection):
    connection.receive()
    begun.set()
    threading.Event().wait(20.0)  # longer than the test waits for an answer

  buddy, address = _buddy(tmp_path)
  pusher.push(_serving.listen('127.0.0.1:0', _SECRET, hang), memory, 1, 0)
  assert begun.wait(10.0)
  pusher.push(address, memory, 1, 0)
  assert not _next(pusher).is_whole
  assert _next(pusher).is_whole
  assert isinstance(buddy.pieces()[0][0], _facts.Piece)
