"""Joining JAX's service without its client's second of patience."""

import socket
import threading
import time

from paxlike.sync import _kv


def test_the_coordinator_is_called_only_once_it_listens():
  with socket.socket() as sock:
    sock.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{sock.getsockname()[1]}'
    waiting = threading.Thread(
      target=_kv.wait_for_listener,
      args=(address,),
      kwargs={'timeout_s': 30.0},
    )
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    sock.listen()
    waiting.join(5.0)
    assert not waiting.is_alive()


def test_a_coordinator_that_never_listens_is_not_waited_for_for_ever():
  with socket.socket() as sock:
    sock.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{sock.getsockname()[1]}'
    begun_s = time.monotonic()
    _kv.wait_for_listener(address, timeout_s=0.1)
    assert 0.1 <= time.monotonic() - begun_s < 5.0
