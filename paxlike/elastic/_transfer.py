"""Pieces of snapshots from one host's memory to another's.

A host gives out whole files of pieces in ranges, each in a message of its own
and so proven by the job's secret; what arrives is checked once more by the
checksums of the checkpoint format when it is restored.
"""

import contextlib
import os
import threading
from typing import Any

from absl import logging

from paxlike.core import errors, fs
from paxlike.elastic import _facts, _memory, _messages

_CHUNK_BYTES = 4 << 20
_TIMEOUT_S = 30.0


class TransferError(errors.PaxlikeError):
  """A piece could not be had from another host."""


def serve(memory: _memory.Memory, connection: _messages.Connection) -> None:
  """Answers one caller until it hangs up."""
  connection.set_timeout(None)
  received = _Receiving(memory)
  try:
    while True:
      message, payload = connection.receive()
      try:
        reply, data = _answer(memory, received, message, payload)
      except (OSError, KeyError, TypeError, ValueError) as error:
        reply, data = {'error': f'{type(error).__name__}: {error}'}, b''
      connection.send(reply, data)
  except _messages.ClosedError:
    return
  except _messages.MessageError as error:
    logging.warning('Ended a transfer: %s', error)
  finally:
    received.give_up()


def _answer(
  memory: _memory.Memory,
  received: '_Receiving',
  message: dict[str, Any],
  payload: bytes,
) -> tuple[dict[str, Any], bytes]:
  kind = message['kind']
  if kind == 'size' or kind == 'read':
    piece, file = _checked(message['piece']), _checked(message['file'])
    directory = memory.find(piece)
    if directory is None:
      raise FileNotFoundError(f'{piece} is not here')
    path = os.path.join(directory, file)
    if kind == 'size':
      return {'size': os.path.getsize(path)}, b''
    with open(path, 'rb') as opened:
      count = min(int(message['count']), _messages.MAX_PAYLOAD_BYTES)
      return {}, os.pread(opened.fileno(), count, int(message['offset']))
  if kind == 'write':
    received.write(
      _checked(message['piece']),
      _checked(message['file']),
      int(message['offset']),
      payload,
    )
    return {}, b''
  if kind == 'whole':
    received.finish(_facts.from_message(_facts.Piece, message['facts']))
    return {}, b''
  raise ValueError(f'kind {kind!r}')


def _checked(name: str) -> str:
  """A bare file name: never a path out of the directory."""
  if (
    not isinstance(name, str)
    or os.path.basename(name) != name
    or (name in ('', '.', '..'))
  ):
    raise ValueError(f'{name!r} is no file name')
  return name


class _Receiving:
  """The piece that one caller is sending."""

  def __init__(self, memory: _memory.Memory):
    self._memory = memory
    self._directory: str | None = None
    self._files: dict[str, int] = {}

  def write(self, piece: str, file: str, offset: int, data: bytes) -> None:
    """Puts some bytes of a file in their place."""
    if self._directory is None:
      name = f'w-{os.getpid()}-{threading.get_ident()}-{piece}'
      self._directory = os.path.join(self._memory.receiving, name)
      os.makedirs(self._directory, mode=0o700, exist_ok=True)
    if file not in self._files:
      path = os.path.join(self._directory, file)
      self._files[file] = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    view = memoryview(data)
    while view:
      done = os.pwrite(self._files[file], view, offset)
      view, offset = view[done:], offset + done

  def finish(self, piece: _facts.Piece) -> None:
    """Makes the piece whole."""
    self._close()
    if self._directory is None:
      raise ValueError('nothing was sent')
    _memory.write_piece(self._directory, piece)
    self._directory = None

  def give_up(self) -> None:
    """Removes what is not whole."""
    self._close()
    if self._directory is not None:
      _memory.remove(self._directory)
      self._directory = None

  def _close(self) -> None:
    for fd in self._files.values():
      os.close(fd)
    self._files = {}


class Peer:
  """Another host's memory; from any thread, one question at a time."""

  def __init__(self, address: str, secret: bytes):
    self._address = address
    self._connection = _messages.dial(address, secret)
    self._connection.set_timeout(_TIMEOUT_S)
    self._lock = threading.Lock()

  def ask(
    self, message: dict[str, Any], payload: bytes | memoryview = b''
  ) -> tuple[dict[str, Any], bytes]:
    """Sends a question and waits for its answer.

    Raises:
      TransferError: The other host cannot do it, or is gone.
    """
    try:
      with self._lock:
        self._connection.send(message, payload)
        reply, data = self._connection.receive()
    except (_messages.ClosedError, _messages.MessageError) as error:
      raise TransferError(f'{self._address}: {error}') from error
    if 'error' in reply:
      raise TransferError(f'{self._address}: {reply["error"]}')
    return reply, data

  def close(self) -> None:
    """Hangs up."""
    self._connection.close()


def push(peer: Peer, piece: _facts.Piece, directory: str) -> bool:
  """Copies a piece of this host into another host's memory.

  Returns:
    Whether it went whole; False if the worker used the memory anew meanwhile.
  """
  for file in sorted(os.listdir(directory)):
    if file == _memory.PIECE:
      continue
    with open(os.path.join(directory, file), 'rb') as opened:
      offset = 0
      while data := opened.read(_CHUNK_BYTES):
        message = {
          'kind': 'write',
          'piece': piece.name,
          'file': file,
          'offset': offset,
        }
        peer.ask(message, data)
        offset += len(data)
  # The worker takes the name away before it touches the memory again: if the
  # name is there, all that was read before was whole.
  # (transfer_test.py::test_a_piece_that_is_overwritten_while_sent_is_dropped)
  if _memory.read_piece(directory) != piece:
    return False
  peer.ask({'kind': 'whole', 'facts': _facts.to_message(piece)})
  return True


class PieceFiles(fs.LocalFileSystem):
  """The files of all pieces of one snapshot, wherever each lies.

  Pieces on this host are read in place, others by ranges from their host.
  """

  num_threads = 4

  def __init__(
    self,
    sources: tuple[_facts.Source, ...],
    secret: bytes,
    *,
    own_address: str,
    own_root: str,
  ):
    self._sources = {source.piece.process: source for source in sources}
    self._secret = secret
    self._own_address = own_address
    self._own_root = own_root
    self._peers: dict[str, Peer] = {}
    self._lock = threading.Lock()

  def close(self) -> None:
    """Hangs up on all other hosts."""
    for peer in self._peers.values():
      peer.close()

  def read_bytes(self, path: str) -> bytes:
    with contextlib.closing(self.open_read(path)) as reader:
      data = bytearray(reader.size)
      reader.read_into(0, memoryview(data))
      return bytes(data)

  def open_read(self, path: str) -> fs.Reader:
    file = os.path.basename(path)
    # p00003.data and p00003.index are one process's; MANIFEST and the items
    # are in every piece.
    process = int(file[1:6]) if file[1:6].isdigit() else min(self._sources)
    source = self._nearest(process, is_common=not file[1:6].isdigit())
    if source.address == self._own_address:
      local = self._local(source.piece, file)
      if local is not None:
        return super().open_read(local)
    return _RemoteReader(self._peer(source.address), source.piece.name, file)

  def _nearest(self, process: int, *, is_common: bool) -> _facts.Source:
    if is_common:
      for source in self._sources.values():
        if source.address == self._own_address:
          return source
    return self._sources[process]

  def _local(self, piece: _facts.Piece, file: str) -> str | None:
    directory = _memory.find(self._own_root, piece.name)
    return None if directory is None else os.path.join(directory, file)

  def _peer(self, address: str) -> Peer:
    with self._lock:
      if address not in self._peers:
        try:
          self._peers[address] = Peer(address, self._secret)
        except (_messages.ClosedError, _messages.MessageError) as error:
          raise TransferError(f'{address}: {error}') from error
      return self._peers[address]


class _RemoteReader:
  """A file of a piece on another host."""

  def __init__(self, peer: Peer, piece: str, file: str):
    self._peer = peer
    self._where = {'piece': piece, 'file': file}
    self.size: int = peer.ask({'kind': 'size', **self._where})[0]['size']

  def read_into(self, offset: int, into: memoryview) -> int:
    """Fills `into` from `offset`; fewer bytes only at the end."""
    done = 0
    while done < len(into):
      message = {
        'kind': 'read',
        'offset': offset + done,
        'count': min(len(into) - done, _CHUNK_BYTES),
        **self._where,
      }
      _, data = self._peer.ask(message)
      if not data:
        break
      into[done : done + len(data)] = data
      done += len(data)
    return done

  def close(self) -> None:
    """The connection is its peer's."""
