"""Only holders of the secret are heard, and nothing twice, huge or forged."""

import socket
import struct
import threading

import pytest

from paxlike.core import errors
from paxlike.elastic import _messages, _serving

_SECRET = b'a secret of at least sixteen bytes'


def _pair(secret_of_caller: bytes = _SECRET):
  """The results of both ends of a handshake, connections or errors."""
  ours, theirs = socket.socketpair()
  results = {}

  def serve():
    try:
      results['server'] = _messages.serve(ours, _SECRET)
    except errors.PaxlikeError as error:
      ours.close()
      results['server'] = error

  thread = threading.Thread(target=serve)
  thread.start()
  try:
    results['client'] = _messages.call(theirs, secret_of_caller)
  except errors.PaxlikeError as error:
    theirs.close()
    results['client'] = error
  thread.join()
  return results['server'], results['client']


@pytest.fixture
def ends():
  server, client = _pair()
  yield server, client
  server.close()
  client.close()


class _Tap:
  """A socket that keeps what is sent through it."""

  def __init__(self, sock):
    self._sock = sock
    self.sent = b''

  def sendall(self, data):
    self.sent += bytes(data)
    self._sock.sendall(data)

  def __getattr__(self, name):
    return getattr(self._sock, name)


def test_a_message_arrives_with_its_payload_both_ways(ends):
  server, client = ends
  client.send({'kind': 'ask', 'n': 3}, b'\0\xff' * 1000)
  assert server.receive() == ({'kind': 'ask', 'n': 3}, b'\0\xff' * 1000)
  server.send({'kind': 'answer'})
  assert client.receive() == ({'kind': 'answer'}, b'')


def test_a_caller_with_another_secret_is_refused():
  server, client = _pair(b'some other secret that is long enough')
  assert isinstance(server, _messages.MessageError)
  assert isinstance(client, _messages.ClosedError)


def test_a_server_without_the_secret_is_found_out():
  ours, theirs = socket.socketpair()
  ours.sendall(b'paxlike1' + b'n' * 32 + b'p' * 32)
  with pytest.raises(_messages.MessageError, match='does not hold the secret'):
    _messages.call(theirs, _SECRET)
  ours.close()
  theirs.close()


def test_whatever_else_answers_is_no_server_of_ours():
  ours, theirs = socket.socketpair()
  ours.sendall(b'HTTP/1.1 400 Bad Request\r\n\r\n'.ljust(64))
  with pytest.raises(_messages.MessageError, match='HTTP'):
    _messages.call(theirs, _SECRET)
  ours.close()
  theirs.close()


def test_a_flipped_bit_anywhere_is_found(ends):
  server, client = ends
  for at in (20, 50, 60):
    server, client = _pair()
    client._sock = tap = _Tap(client._sock)
    whole = tap._sock
    tap._sock = _Sink()
    client.send({'kind': 'ask'}, b'payload')
    changed = bytearray(tap.sent)
    changed[at] ^= 1
    whole.sendall(changed)
    with pytest.raises(_messages.MessageError, match='forged'):
      server.receive()
    server.close()
    whole.close()


class _Sink:
  def sendall(self, data):
    del data


def test_a_message_that_is_sent_again_by_somebody_is_refused(ends):
  server, client = ends
  client._sock = tap = _Tap(client._sock)
  client.send({'kind': 'kill'})
  tap._sock.sendall(tap.sent)
  assert server.receive()[0] == {'kind': 'kill'}
  with pytest.raises(_messages.MessageError, match='repeated'):
    server.receive()


def test_a_message_of_another_connection_is_refused(ends):
  _, client = ends
  client._sock = tap = _Tap(client._sock)
  client.send({'kind': 'kill'})
  other_server, other_client = _pair()
  other_client._sock.sendall(tap.sent)
  with pytest.raises(_messages.MessageError):
    other_server.receive()
  other_server.close()
  other_client.close()


def test_a_message_that_is_sent_back_to_its_sender_is_refused(ends):
  server, client = ends
  client._sock = tap = _Tap(client._sock)
  client.send({'kind': 'ask'})
  server._sock.sendall(tap.sent)
  client._sock = tap._sock
  with pytest.raises(_messages.MessageError):
    client.receive()


@pytest.mark.parametrize(
  'lengths', [(_messages.MAX_HEADER_BYTES + 1, 0), (0, 1 << 31)]
)
def test_a_length_beyond_the_limit_is_refused_before_anything_is_held(
  ends, lengths
):
  server, client = ends
  client._sock.sendall(struct.pack('>4sII', b'pxe1', *lengths))
  with pytest.raises(_messages.MessageError, match='Not a message'):
    server.receive()


@pytest.mark.parametrize('header', [b'[1]', b'\xff', b'\x80\x04N.'])
def test_a_header_that_is_no_json_object_is_refused(ends, header):
  server, client = ends
  lengths = struct.pack('>4sII', b'pxe1', len(header), 0)
  mac = client._mac(b'C', 0, lengths, header, b'')
  client._sock.sendall(lengths + mac + header)
  with pytest.raises(_messages.MessageError):
    server.receive()


def test_the_end_of_the_other_process_is_its_own_error(ends):
  server, client = ends
  client.close()
  with pytest.raises(_messages.ClosedError):
    server.receive()
  with pytest.raises(_messages.ClosedError):
    server.send({'kind': 'ask'})


def test_a_listener_serves_holders_and_closes_on_strangers():
  inbox = _serving.Inbox()
  address = _serving.listen(
    '127.0.0.1:0', _SECRET, lambda c: _serving.read_into(inbox, c)
  )
  with socket.create_connection(_messages.split_address(address)) as stranger:
    stranger.recv(64)
    stranger.sendall(b'\0' * 64)
    assert stranger.recv(64) == b''
  connection = _messages.dial(address, _SECRET)
  connection.send({'kind': 'hello'})
  assert inbox.get(timeout=10.0).message == {'kind': 'hello'}
  connection.close()
  assert inbox.get(timeout=10.0).message is None
  assert inbox.empty(), 'nothing of the stranger came through'


def test_only_the_given_address_is_listened_on():
  address = _serving.listen('127.0.0.1:0', _SECRET, lambda c: c.close())
  _, port = _messages.split_address(address)
  _messages.dial(f'127.0.0.1:{port}', _SECRET).close()
  with pytest.raises(_messages.ClosedError, match='cannot be reached'):
    _messages.dial(f'127.0.0.2:{port}', _SECRET)


def test_a_secret_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
  path = tmp_path / 'secret'
  path.write_bytes(_SECRET + b'\n')
  assert _messages.load_secret(str(path), variable='X_SECRET') == _SECRET
  monkeypatch.setenv('X_SECRET', _SECRET.decode())
  assert _messages.load_secret(None, variable='X_SECRET') == _SECRET


@pytest.mark.parametrize('secret', [None, '', 'short'])
def test_no_secret_or_a_short_one_is_wrong_use(monkeypatch, secret):
  monkeypatch.delenv('X_SECRET', raising=False)
  if secret is not None:
    monkeypatch.setenv('X_SECRET', secret)
  with pytest.raises(errors.UsageError, match='at least 16'):
    _messages.load_secret(None, variable='X_SECRET')


def test_nothing_of_the_room_can_unpickle():
  import pathlib

  sources = pathlib.Path(_messages.__file__).parent.glob('*.py')
  for source in sources:
    text = source.read_text()
    for word in ('import pickle', 'import marshal', 'eval(', 'exec('):
      assert word not in text, f'{source}: {word}'
