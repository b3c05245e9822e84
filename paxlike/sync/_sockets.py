"""Addresses and TCP connections between processes of a job."""

import socket
import time

from paxlike.core import errors

_RETRY_S = 0.1


def keep_alive(sock: socket.socket) -> None:
  """Lets the kernel find out within ten seconds that a host is gone."""
  sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for option, value in (
    ('TCP_KEEPIDLE', 3),
    ('TCP_KEEPINTVL', 2),
    ('TCP_KEEPCNT', 3),
  ):
    if hasattr(socket, option):
      sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def split_address(address: str) -> tuple[str, int]:
  """'host:port', '[::1]:port' into host and port."""
  host, colon, port = address.rpartition(':')
  if not colon or not port.isdigit() or not host:
    raise errors.UsageError(
      f'The coordinator address {address!r} is not HOST:PORT.'
    )
  return host.strip('[]'), int(port)


def free_port() -> int:
  """A port that nobody listens on now."""
  with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
    sock.bind(('', 0))
    return sock.getsockname()[1]


def bracketed(host: str) -> str:
  """A host as it stands before a colon and a port."""
  return f'[{host}]' if ':' in host else host


def listen(port: int) -> socket.socket:
  """Listens on all addresses of this host."""
  if socket.has_dualstack_ipv6():
    return socket.create_server(
      ('', port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096
    )
  return socket.create_server(('', port), backlog=4096)


def dial(
  host: str, port: int, deadline_s: float, timeout_s: float
) -> socket.socket:
  """Connects, again and again until process 0 is up.

  Raises:
    SyncError: It was not by the deadline.
  """
  while True:
    try:
      sock = socket.create_connection((host, port), timeout=5.0)
    except OSError as error:
      if time.monotonic() > deadline_s:
        raise errors.SyncError(
          f'Process 0 at {host}:{port} could not be reached within '
          f'{timeout_s:.0f} s: {error}. Is it started, and is '
          '--coordinator_address the same everywhere?'
        ) from error
      time.sleep(_RETRY_S)
      continue
    keep_alive(sock)
    return sock
