"""Listens for connections and puts what they say into one queue.

Whoever owns the queue handles one event at a time, so that the state of a
lighthouse or of an agent needs no locks.
"""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from absl import logging

from paxlike.core import errors
from paxlike.elastic import _messages


class Heard(NamedTuple):
  """Something that a connection said; `message` None is its end."""

  connection: _messages.Connection
  message: _messages.Message | None


Inbox = queue.SimpleQueue[Any]


def listen(
  address: str,
  secret: bytes,
  on_connection: Callable[[_messages.Connection], None],
) -> str:
  """Serves HOST:PORT for the rest of the process.

  Args:
    address: Where; port 0 takes any free one.
    secret: What callers must hold.
    on_connection: Called in a thread of its own for each caller that does.

  Returns:
    HOST:PORT as it is now.

  Raises:
    UsageError: The address cannot be listened on.
  """
  host, port = _messages.split_address(address)
  try:
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    server = socket.create_server((host, port), family=family, backlog=1024)
  except OSError as error:
    raise errors.UsageError(
      f'Cannot listen on {address}: {error}. Give the name or address of this '
      'host and a free port.'
    ) from error
  threading.Thread(
    target=_accept,
    args=(server, secret, on_connection),
    name='elastic-accept',
    daemon=True,
  ).start()
  bracketed = f'[{host}]' if ':' in host else host
  return f'{bracketed}:{server.getsockname()[1]}'


def _accept(
  server: socket.socket,
  secret: bytes,
  on_connection: Callable[[_messages.Connection], None],
) -> None:
  while True:
    try:
      sock, peer = server.accept()
    except OSError:  # out of file descriptors, say: some may be closed soon
      time.sleep(0.1)
      continue
    threading.Thread(
      target=_welcome,
      args=(sock, peer, secret, on_connection),
      name='elastic-connection',
      daemon=True,
    ).start()


def _welcome(
  sock: socket.socket,
  peer: Any,
  secret: bytes,
  on_connection: Callable[[_messages.Connection], None],
) -> None:
  try:
    connection = _messages.serve(sock, secret)
  except _messages.MessageError as error:
    logging.warning('Refused a connection from %s: %s', peer, error)
    sock.close()
    return
  except _messages.ClosedError:  # a port scanner, a health check
    sock.close()
    return
  with contextlib.closing(connection):
    on_connection(connection)


def read_into(inbox: Inbox, connection: _messages.Connection) -> None:
  """Puts each message, and at last the end, of a connection into a queue."""
  try:
    while True:
      message, _ = connection.receive()
      inbox.put(Heard(connection, message))
  except _messages.MessageError as error:
    logging.warning('Ended a connection: %s', error)
  except _messages.ClosedError:
    pass
  finally:
    inbox.put(Heard(connection, None))


def start_reading(inbox: Inbox, connection: _messages.Connection) -> None:
  """`read_into` in a thread of its own."""
  threading.Thread(
    target=read_into,
    args=(inbox, connection),
    name='elastic-reader',
    daemon=True,
  ).start()
