"""Messages between processes that prove themselves to each other.

Promises: whoever does not hold the job's secret can neither read an answer out
of us nor have one byte of a message looked at; nothing is replayed, from this
connection or another; nothing longer than the limits is ever held in memory;
nothing is unpickled. What a message means is the caller's.

Handshake: the server sends a nonce, the client its own and a proof, the server
a proof. Both then hold a key of this connection alone. A frame is, big-endian:

    4 bytes magic 'pxe1'   4 bytes length of the header   4 bytes of the payload
    32 bytes HMAC-SHA256 of (who sends, running number, the 12 bytes above,
    header, payload)       header: a JSON object          payload: raw bytes
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import struct
import threading
from typing import Any

from paxlike.core import errors

MAX_HEADER_BYTES = 4 << 20
MAX_PAYLOAD_BYTES = 8 << 20
MIN_SECRET_BYTES = 16
_HELLO = b'paxlike1'
_MAGIC = b'pxe1'
_FRAME = struct.Struct('>4sII')
_NUMBER = struct.Struct('>Q')
_NONCE_BYTES = 32
_MAC_BYTES = 32
_SEND_TIMEOUT_S = 30.0

Message = dict[str, Any]


class MessageError(errors.PaxlikeError):
  """The other end is no holder of the secret, or sends what is no message."""


class ClosedError(errors.PaxlikeError):
  """The other end is gone."""


def load_secret(path: str | None, *, variable: str) -> bytes:
  """The job's secret, from a file or else from the environment.

  Args:
    path: A file that holds it; white space around it does not count.
    variable: The environment variable to look at without a file.

  Raises:
    UsageError: There is none, or it is too short to be one.
  """
  if path is not None:
    try:
      with open(path, 'rb') as file:
        secret = file.read().strip()
    except OSError as error:
      raise errors.UsageError(
        f'The secret file {path} cannot be read: {error}.'
      ) from error
    source = path
  else:
    secret, source = os.environ.get(variable, '').encode(), f'${variable}'
  if len(secret) < MIN_SECRET_BYTES:
    raise errors.UsageError(
      f'The secret in {source} has {len(secret)} bytes; at least '
      f'{MIN_SECRET_BYTES} are needed. Make one: python -c "import secrets; '
      f'print(secrets.token_hex(32))" > secret; chmod 600 secret; then give '
      f'--secret_file=secret or {variable} to every process of the job.'
    )
  return secret


class Connection:
  """One end of an authenticated connection; `send` from any thread."""

  def __init__(self, sock: socket.socket, key: bytes, *, is_server: bool):
    self._sock = sock
    self._key = key
    self._sending, self._hearing = (b'S', b'C') if is_server else (b'C', b'S')
    self._lock = threading.Lock()
    self._num_sent = 0
    self._num_received = 0

  def send(self, message: Message, payload: bytes | memoryview = b'') -> None:
    """Sends one message.

    Raises:
      ClosedError: The other end is gone, or takes nothing for half a minute.
    """
    header = json.dumps(message, separators=(',', ':')).encode()
    if len(header) > MAX_HEADER_BYTES or len(payload) > MAX_PAYLOAD_BYTES:
      raise ValueError(
        f'A message of {len(header)} + {len(payload)} bytes is too long.'
      )
    lengths = _FRAME.pack(_MAGIC, len(header), len(payload))
    with self._lock:
      mac = self._mac(self._sending, self._num_sent, lengths, header, payload)
      self._num_sent += 1
      try:
        self._sock.sendall(lengths + mac + header)
        if payload:
          self._sock.sendall(payload)
      except OSError as error:
        raise ClosedError(f'The other end is gone: {error}.') from error

  def receive(self) -> tuple[Message, bytes]:
    """Waits for the next message; one thread at a time.

    Raises:
      ClosedError: The other end is gone.
      MessageError: What came is not a message of the other end. The
        connection is of no use any more.
    """
    lengths = _receive_exactly(self._sock, _FRAME.size)
    magic, header_bytes, payload_bytes = _FRAME.unpack(lengths)
    # Looked at before the sum, so that nobody makes us hold gigabytes.
    if (
      magic != _MAGIC
      or header_bytes > MAX_HEADER_BYTES
      or payload_bytes > MAX_PAYLOAD_BYTES
    ):
      raise MessageError(
        f'Not a message: it begins with {magic!r} and lengths {header_bytes}, '
        f'{payload_bytes}.'
      )
    mac = _receive_exactly(self._sock, _MAC_BYTES)
    header = _receive_exactly(self._sock, header_bytes)
    payload = _receive_exactly(self._sock, payload_bytes)
    wanted = self._mac(
      self._hearing, self._num_received, lengths, header, payload
    )
    self._num_received += 1
    if not hmac.compare_digest(mac, wanted):
      raise MessageError('A message was changed, repeated or forged.')
    try:
      message = json.loads(header)
    except ValueError as error:
      raise MessageError(f'The header is no JSON: {error}.') from error
    if not isinstance(message, dict):
      raise MessageError('The header is no JSON object.')
    return message, payload

  def set_timeout(self, timeout_s: float | None) -> None:
    """How long `receive` waits before it raises ClosedError; None: for ever."""
    self._sock.settimeout(timeout_s)

  def has_hung_up(self) -> bool:
    """Whether the other end is closed, whatever of it is still to be read."""
    hang_up = select.poll()
    try:
      hang_up.register(self._sock, 0)  # which hears of nothing else
    except (OSError, ValueError):  # closed here
      return True
    return bool(hang_up.poll(0))

  def close(self) -> None:
    """Ends the connection for both; wakes a thread that is in `receive`."""
    with contextlib.suppress(OSError):
      self._sock.shutdown(socket.SHUT_RDWR)
    self._sock.close()

  def _mac(
    self,
    sender: bytes,
    number: int,
    lengths: bytes,
    header: bytes,
    payload: bytes | memoryview,
  ) -> bytes:
    total = hmac.new(self._key, digestmod=hashlib.sha256)
    for part in (sender, _NUMBER.pack(number), lengths, header, payload):
      total.update(part)
    return total.digest()


def serve(
  sock: socket.socket, secret: bytes, *, timeout_s: float = 5.0
) -> Connection:
  """The handshake of the end that was called.

  Raises:
    MessageError: The caller does not hold the secret.
    ClosedError: It is gone, or says nothing for `timeout_s`.
  """
  _prepare(sock, timeout_s)
  ours = secrets.token_bytes(_NONCE_BYTES)
  _send_all(sock, _HELLO + ours)
  answer = _receive_exactly(sock, _NONCE_BYTES + _MAC_BYTES)
  theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
  if not hmac.compare_digest(proof, _prove(secret, b'client', ours, theirs)):
    raise MessageError('The caller does not hold the secret of this job.')
  _send_all(sock, _prove(secret, b'server', ours, theirs))
  return _connected(sock, secret, ours, theirs, is_server=True)


def call(
  sock: socket.socket, secret: bytes, *, timeout_s: float = 5.0
) -> Connection:
  """The handshake of the end that calls.

  Raises:
    MessageError: What answers does not hold the secret.
    ClosedError: It is gone, or says nothing for `timeout_s`.
  """
  _prepare(sock, timeout_s)
  hello = _receive_exactly(sock, len(_HELLO) + _NONCE_BYTES)
  if not hello.startswith(_HELLO):
    raise MessageError(f'Not one of ours: it begins with {hello[:8]!r}.')
  theirs, ours = hello[len(_HELLO) :], secrets.token_bytes(_NONCE_BYTES)
  _send_all(sock, ours + _prove(secret, b'client', theirs, ours))
  proof = _receive_exactly(sock, _MAC_BYTES)
  if not hmac.compare_digest(proof, _prove(secret, b'server', theirs, ours)):
    raise MessageError('What answers does not hold the secret of this job.')
  return _connected(sock, secret, theirs, ours, is_server=False)


def dial(address: str, secret: bytes, *, timeout_s: float = 5.0) -> Connection:
  """Connects to HOST:PORT.

  Raises:
    ClosedError: Nobody answers there.
    MessageError: Who answers does not hold the secret.
  """
  try:
    sock = socket.create_connection(split_address(address), timeout=timeout_s)
  except OSError as error:
    raise ClosedError(f'{address} cannot be reached: {error}.') from error
  try:
    return call(sock, secret, timeout_s=timeout_s)
  except BaseException:
    sock.close()
    raise


def split_address(address: str) -> tuple[str, int]:
  """'host:port' or '[::1]:port' into host and port."""
  host, colon, port = address.rpartition(':')
  if not colon or not port.isdigit() or not host:
    raise errors.UsageError(f'{address!r} is no HOST:PORT.')
  return host.strip('[]'), int(port)


def _prove(secret: bytes, who: bytes, *nonces: bytes) -> bytes:
  return hmac.digest(secret, who + b''.join(nonces), 'sha256')


def _connected(
  sock: socket.socket,
  secret: bytes,
  *nonces: bytes,
  is_server: bool,
) -> Connection:
  sock.settimeout(None)
  # A dead receiver whose host is gone must not hold a sender for ever.
  seconds = struct.pack('ll', int(_SEND_TIMEOUT_S), 0)
  sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
  return Connection(sock, _prove(secret, b'key', *nonces), is_server=is_server)


def _prepare(sock: socket.socket, timeout_s: float) -> None:
  sock.settimeout(timeout_s)
  if sock.family != socket.AF_UNIX:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _send_all(sock: socket.socket, data: bytes) -> None:
  try:
    sock.sendall(data)
  except OSError as error:
    raise ClosedError(f'The other end is gone: {error}.') from error


def _receive_exactly(sock: socket.socket, count: int) -> bytes:
  data = bytearray(count)
  view, done = memoryview(data), 0
  while done < count:
    try:
      got = sock.recv_into(view[done:])
    except OSError as error:
      raise ClosedError(f'The other end is gone: {error}.') from error
    if not got:
      raise ClosedError('The other end is gone.')
    done += got
  return bytes(data)
