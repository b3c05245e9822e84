"""A connection from every process to process 0, to know who is alive.

Promises three things that JAX's service does not: nobody starts it before all
processes are there, so a missing one is an error that names it; a process
that dies is known within milliseconds, process 0 too; one that is stopped or
cut off is known when it has been silent for a minute. Nothing else travels.
"""

import contextlib
import dataclasses
import json
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable

from paxlike.core import errors
from paxlike.sync import _report, _sockets

# Told which process was lost, and what happened to it: 'ended without ...'.
OnLost = Callable[[int, str], None]

DEFAULT_SILENCE_S = 60.0
_BEATS_PER_SILENCE = 6
_MOST_OFTEN_S = 0.25
_MOST_BEATS_PER_S = 400  # that process 0 has to read
_BEAT = b'beat '
_BYE = b'bye\n'

ENDED = (
  'ended without saying why (killed? out of memory? See its own log and the '
  "kernel's)"
)


@dataclasses.dataclass(eq=False)
class _Peer:
  """The other end of one connection."""

  sock: socket.socket
  index: int = -1
  unread: bytes = b''
  heard_s: float = dataclasses.field(default_factory=time.monotonic)
  at: str = ''

  def lines(self, data: bytes) -> list[bytes]:
    """The whole lines that have come, `data` being the newest bytes."""
    self.heard_s = time.monotonic()
    *whole, self.unread = (self.unread + data).split(b'\n')
    for line in whole:
      if line.startswith(_BEAT):
        self.at = line.removeprefix(_BEAT).decode()
    return whole

  def last(self) -> str:
    """Where it last said that it was."""
    ago_s = time.monotonic() - self.heard_s
    return f'; {ago_s:.1f} s before it was at {self.at}' if self.at else ''


class Hub:
  """Process 0's end of all connections."""

  def __init__(
    self,
    address: str,
    num_processes: int,
    *,
    timeout_s: float,
    silence_s: float = DEFAULT_SILENCE_S,
  ):
    """Waits until all processes have connected.

    Raises:
      SyncError: Some did not in time; they are named. Those that did are told
        the same.
    """
    host, port = _sockets.split_address(address)
    self._count = num_processes
    self._silence_s = silence_s
    self._beat_s = _beat_s(silence_s, num_processes)
    self._selector = selectors.DefaultSelector()
    self._peers: dict[int, _Peer] = {}
    self._ending = threading.Event()
    self._left = threading.Event()
    self._is_watched = False
    try:
      self._listener = _sockets.listen(port)
    except OSError as error:
      raise errors.SyncError(
        f'Process 0 cannot listen on port {port} of {address}: {error}. '
        'Choose another --coordinator_address.'
      ) from error
    self._selector.register(self._listener, selectors.EVENT_READ)
    try:
      self._wait_for_all(address, timeout_s)
    except BaseException:
      self._close()
      raise
    service_port = _sockets.free_port()
    # The name by which the others reach process 0, with another port.
    self.service_address = f'{_sockets.bracketed(host)}:{service_port}'
    self._send_all(json.dumps({'service_port': service_port}).encode() + b'\n')

  def watch(self, on_lost: OnLost, *, where: Callable[[], str]) -> None:
    """Calls `on_lost` for each process that is lost from now on.

    Args:
      on_lost: Called in another thread.
      where: Where this process is, in words, for the others to know.
    """
    self._is_watched = True
    threading.Thread(
      target=self._watch,
      args=(on_lost, where),
      name='paxlike-lifeline',
      daemon=True,
    ).start()

  def last_heard(self, index: int) -> str:
    """Where a process last said that it was; '' if it did not."""
    peer = self._peers.get(index)
    return peer.at if peer else ''

  def cut(self) -> None:
    """Ends all connections as the death of this process would."""
    for peer in list(self._peers.values()):
      with contextlib.suppress(OSError):
        peer.sock.shutdown(socket.SHUT_RDWR)

  def leave(self, *, timeout_s: float) -> None:
    """Waits for all others to have left, then ends; losses count no more."""
    self._ending.set()
    self._send_all(_BYE)
    if self._is_watched:
      self._left.wait(timeout_s)
    else:
      self._close()

  def _close(self) -> None:
    for key in list(self._selector.get_map().values()):
      self._selector.unregister(key.fileobj)
      assert isinstance(key.fileobj, socket.socket)
      key.fileobj.close()
    self._selector.close()

  def _wait_for_all(self, address: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while len(self._peers) < self._count - 1:
      left_s = deadline_s - time.monotonic()
      if left_s <= 0:
        missing = set(range(1, self._count)) - set(self._peers)
        self._refuse(
          f'{len(missing)} of {self._count} processes did not connect to '
          f'process 0 at {address} within {timeout_s:.0f} s: '
          f'{_report.indices(missing)}.'
        )
      for key, _ in self._selector.select(left_s):
        if key.fileobj is self._listener:
          self._accept()
        else:
          self._hear_hello(key.data)

  def _accept(self) -> None:
    sock, _ = self._listener.accept()
    sock.setblocking(False)
    _sockets.keep_alive(sock)
    self._selector.register(sock, selectors.EVENT_READ, _Peer(sock))

  def _hear_hello(self, peer: _Peer) -> None:
    try:
      data = peer.sock.recv(4096)
    except OSError:
      data = b''
    if not data:
      self._drop(peer)
      return
    for line in peer.lines(data):
      try:
        hello = json.loads(line)
        index, count = int(hello['process_id']), int(hello['num_processes'])
      except (ValueError, KeyError, TypeError):
        self._drop(peer)  # a stranger, a port scanner
        return
      if count != self._count or not 0 < index < self._count:
        self._refuse(
          f'A process was started as {index} of {count}, process 0 as one of '
          f'{self._count}.',
          peer,
        )
      if index in self._peers:
        self._refuse(f'Two processes were started as process {index}.', peer)
      peer.index = index
      self._peers[index] = peer

  def _refuse(self, text: str, *others: _Peer) -> None:
    for peer in [*self._peers.values(), *others]:
      with contextlib.suppress(OSError):
        peer.sock.send(json.dumps({'error': text}).encode() + b'\n')
    raise errors.SyncError(text)

  def _drop(self, peer: _Peer) -> None:
    self._selector.unregister(peer.sock)
    peer.sock.close()
    self._peers.pop(peer.index, None)

  def _send_all(self, data: bytes) -> None:
    for peer in list(self._peers.values()):
      with contextlib.suppress(OSError):  # The watch sees its end.
        peer.sock.send(data)

  def _watch(self, on_lost: OnLost, where: Callable[[], str]) -> None:
    beat_s = self._beat_s
    beaten_s = -math.inf
    while self._peers:
      now_s = time.monotonic()
      if now_s - beaten_s >= beat_s:
        beaten_s = now_s
        self._send_all(_beat(where))
        self._find_silent(now_s, on_lost)
      for key, _ in self._selector.select(beat_s):
        if key.fileobj is self._listener:
          self._listener.accept()[0].close()  # Nobody comes later.
        else:
          self._hear(key.data, on_lost)
    self._close()
    self._left.set()

  def _hear(self, peer: _Peer, on_lost: OnLost) -> None:
    try:
      data = peer.sock.recv(4096)
    except BlockingIOError:
      return
    except OSError:
      data = b''
    if not data:
      self._lose(peer, ENDED + peer.last(), on_lost)
    elif _BYE.strip() in peer.lines(data):
      self._drop(peer)

  def _find_silent(self, now_s: float, on_lost: OnLost) -> None:
    for peer in list(self._peers.values()):
      if now_s - peer.heard_s > self._silence_s:
        self._lose(peer, _silent(self._silence_s) + peer.last(), on_lost)

  def _lose(self, peer: _Peer, reason: str, on_lost: OnLost) -> None:
    index = peer.index
    self._drop(peer)
    if not self._ending.is_set() and index >= 0:
      on_lost(index, reason)


class Spoke:
  """The connection of another process to process 0."""

  def __init__(
    self,
    address: str,
    num_processes: int,
    process_id: int,
    *,
    timeout_s: float,
    silence_s: float = DEFAULT_SILENCE_S,
  ):
    """Connects, and waits until all others have.

    Raises:
      SyncError: Process 0 did not answer in time, or says who is missing.
    """
    host, port = _sockets.split_address(address)
    self._silence_s = silence_s
    self._beat_s = _beat_s(silence_s, num_processes)
    self._ending = threading.Event()
    self._is_watched = False
    deadline_s = time.monotonic() + timeout_s
    self._peer = _Peer(
      _sockets.dial(host, port, deadline_s, timeout_s), index=0
    )
    hello = {'process_id': process_id, 'num_processes': num_processes}
    try:
      self._peer.sock.sendall(json.dumps(hello).encode() + b'\n')
      answer = self._answer(address, deadline_s)
      if 'error' in answer:
        raise errors.SyncError(answer['error'])
    except BaseException:
      self._peer.sock.close()
      raise
    self.service_address = (
      f'{_sockets.bracketed(host)}:{answer["service_port"]}'
    )

  def watch(self, on_lost: OnLost, *, where: Callable[[], str]) -> None:
    """Calls `on_lost` if process 0 is lost from now on; see Hub.watch."""
    self._is_watched = True
    threading.Thread(
      target=self._watch,
      args=(on_lost, where),
      name='paxlike-lifeline',
      daemon=True,
    ).start()

  def cut(self) -> None:
    """Ends the connection as the death of this process would."""
    with contextlib.suppress(OSError):
      self._peer.sock.shutdown(socket.SHUT_RDWR)

  def leave(self, *, timeout_s: float) -> None:
    """Says goodbye and ends; process 0's end counts no more."""
    del timeout_s  # Nobody to wait for.
    self._ending.set()
    with contextlib.suppress(OSError):
      self._peer.sock.sendall(_BYE)
      self._peer.sock.shutdown(socket.SHUT_RDWR)  # Wakes the watch.
    if not self._is_watched:
      self._peer.sock.close()

  def _answer(self, address: str, deadline_s: float) -> dict:
    # Process 0 gives up first, and says who is missing.
    self._peer.sock.settimeout(max(1.0, deadline_s + 5.0 - time.monotonic()))
    try:
      while True:
        data = self._peer.sock.recv(4096)
        if not data:
          raise errors.SyncError(
            f'Process 0 at {address} ended before all processes were there.'
          )
        for line in self._peer.lines(data):
          return json.loads(line)
    except OSError as error:
      raise errors.SyncError(
        f'Process 0 at {address} does not answer: {error}.'
      ) from error

  def _watch(self, on_lost: OnLost, where: Callable[[], str]) -> None:
    beat_s = self._beat_s
    beaten_s = -math.inf
    sock = self._peer.sock
    sock.settimeout(beat_s)
    while True:
      now_s = time.monotonic()
      if now_s - beaten_s >= beat_s:
        beaten_s = now_s
        with contextlib.suppress(OSError):
          sock.sendall(_beat(where))
      reason = self._hear(sock)
      if time.monotonic() - self._peer.heard_s > self._silence_s:
        reason = reason or _silent(self._silence_s)
      if reason:
        sock.close()
        if not self._ending.is_set():
          on_lost(0, reason + self._peer.last())
        return

  def _hear(self, sock: socket.socket) -> str:
    """Reads once; the reason if process 0 is lost, else ''."""
    try:
      data = sock.recv(4096)
    except TimeoutError:
      return ''
    except ConnectionResetError:  # it had not read all when it was killed
      return ENDED
    except OSError as error:
      return f'is cut off from this process ({error})'
    if not data:
      return ENDED
    if _BYE.strip() in self._peer.lines(data):
      self._ending.set()
    return ''


def join(
  address: str,
  *,
  num_processes: int,
  process_id: int,
  timeout_s: float,
  silence_s: float = DEFAULT_SILENCE_S,
) -> 'Hub | Spoke':
  """Waits until all processes are there and connected to process 0."""
  if process_id == 0:
    return Hub(address, num_processes, timeout_s=timeout_s, silence_s=silence_s)
  return Spoke(
    address,
    num_processes,
    process_id,
    timeout_s=timeout_s,
    silence_s=silence_s,
  )


def _beat_s(silence_s: float, num_processes: int) -> float:
  """Seconds from one word to the next: few, while they are not many."""
  often_s = max(_MOST_OFTEN_S, num_processes / _MOST_BEATS_PER_S)
  return min(often_s, silence_s / _BEATS_PER_SILENCE)


def _beat(where: Callable[[], str]) -> bytes:
  return _BEAT + where().encode() + b'\n'


def _silent(silence_s: float) -> str:
  return (
    f'has been silent for {silence_s:.0f} s: stopped, stuck, or its host is '
    'lost'
  )
