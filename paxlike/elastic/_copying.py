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
    """Copies this worker's newest piece; one not begun yet is passed over."""
    piece_and_path = memory.newest_own(generation, rank)
    if piece_and_path is None:
      return
    with self._wake:
      self._next = (address, *piece_and_path)
      self._wake.notify()

  def close(self) -> None:
    """Stops; does not wait for a transfer under way."""
    with self._wake:
      self._is_closed = True
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
      if address not in self._peers:
        self._peers[address] = _transfer.Peer(address, self._secret)
      if _transfer.push(self._peers[address], piece, path):
        return True
      logging.info('Snapshot %s was overwritten on its way.', piece.name)
    except (errors.PaxlikeError, OSError) as error:
      logging.info('Snapshot %s was not copied: %s', piece.name, error)
    if address in self._peers:
      self._peers.pop(address).close()
    return False
