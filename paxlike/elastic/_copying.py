"""Copies the snapshots of a host to its buddy, in the background."""

import dataclasses
import threading

from absl import logging

from paxlike.core import errors
from paxlike.elastic import _facts, _memory, _serving, _transfer


@dataclasses.dataclass(frozen=True)
class Copied:
  """A copy has ended.

  Attributes:
    piece: Of what.
    is_whole: Whether the buddy has it.
  """

  piece: _facts.Piece
  is_whole: bool


class Pusher:
  """Copies one piece at a time; what became of it goes into `inbox`."""

  def __init__(self, secret: bytes, inbox: _serving.Inbox):
    self._secret = secret
    self._inbox = inbox
    self._peers: dict[str, _transfer.Peer] = {}
    self._wake = threading.Condition()
    self._next: tuple[str, _facts.Piece, str] | None = None
    self._is_closed = False
    self._thread = threading.Thread(
      target=self._run, name='elastic-push', daemon=True
    )
    self._thread.start()

  def push(
    self, address: str, memory: _memory.Memory, generation: int, rank: int
  ) -> None:
    """Copies this worker's newest piece; one not begun yet is passed over.

    One that is on its way to another host is given up: that host is no
    member any more, and may take half a minute to be found dead.
    """
    piece_and_path = memory.newest_own(generation, rank)
    if piece_and_path is None:
      return
    with self._wake:
      self._next = (address, *piece_and_path)
      self._wake.notify()
      for other in [known for known in self._peers if known != address]:
        self._peers.pop(other).close()

  def close(self) -> None:
    """Stops; a transfer under way is given up."""
    with self._wake:
      self._is_closed = True
      for peer in self._peers.values():
        peer.close()
      self._wake.notify()

  def _run(self) -> None:
    while True:
      with self._wake:
        self._wake.wait_for(lambda: self._next or self._is_closed)
        if self._is_closed:
          return
        assert self._next is not None
        (address, piece, path), self._next = self._next, None
      self._inbox.put(Copied(piece, self._copy(address, piece, path)))

  def _copy(self, address: str, piece: _facts.Piece, path: str) -> bool:
    try:
      if _transfer.push(self._peer(address), piece, path):
        return True
      logging.info('Snapshot %s was overwritten on its way.', piece.name)
    except (errors.PaxlikeError, OSError) as error:
      logging.info('Snapshot %s was not copied: %s', piece.name, error)
    with self._wake:
      if address in self._peers:
        self._peers.pop(address).close()
    return False

  def _peer(self, address: str) -> _transfer.Peer:
    with self._wake:
      if address in self._peers:
        return self._peers[address]
    peer = _transfer.Peer(address, self._secret)
    with self._wake:
      self._peers[address] = peer
    return peer
