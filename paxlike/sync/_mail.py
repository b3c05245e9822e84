"""Messages to every process, read by one thread each as they are posted.

The k-th message is the key `mail/k`: each reader blocks on the next one, so
nothing is polled, and a writer that dies leaves no hole. One message costs
each process one call, however many processes there are.
"""

import json
import threading
from collections.abc import Callable
from typing import Any

from absl import logging

from paxlike.sync import _store as store_lib

_READ_TIMEOUT_S = 60.0

Handler = Callable[[dict[str, Any]], None]


class Mailbox:
  """Reads the job's messages in a daemon thread and hands them to handlers."""

  def __init__(self, store: store_lib.Store):
    """Starts reading; what nobody has subscribed to yet is kept."""
    self._store = store
    self._lock = threading.Lock()
    self._handlers: dict[str, Handler] = {}
    self._kept: list[dict[str, Any]] = []
    self._next = 0
    self._closed = threading.Event()
    self._thread = threading.Thread(
      target=self._read, name='paxlike-mail', daemon=True
    )
    self._thread.start()

  def subscribe(self, kind: str, handler: Handler) -> None:
    """Has messages of a kind handled, this process's own too.

    Args:
      kind: Which messages; one handler each.
      handler: Called in the reading thread, once in this one for each message
        that has come before; must be quick.
    """
    with self._lock:
      self._handlers[kind] = handler
      early = [message for message in self._kept if message['kind'] == kind]
      self._kept = [m for m in self._kept if m['kind'] != kind]
    for message in early:
      self._handle(message)

  def post(self, kind: str, **fields: Any) -> None:
    """Sends a message; when it returns, the service has it."""
    message = json.dumps({'kind': kind, **fields}).encode()
    number = self._next
    while not self._store.set(f'mail/{number}', message):
      number += 1

  def close(self) -> None:
    """Stops reading; the thread ends when its pending read does."""
    self._closed.set()

  def join(self, timeout_s: float) -> None:
    """Waits for the reading thread to have ended."""
    self._thread.join(timeout_s)

  def _read(self) -> None:
    while not self._closed.is_set():
      try:
        message = self._store.get(
          f'mail/{self._next}', timeout_s=_READ_TIMEOUT_S
        )
      except store_lib.StoreTimeoutError:
        continue
      except store_lib.StoreLostError:
        return
      self._next += 1
      self._handle(json.loads(message))

  def _handle(self, message: dict[str, Any]) -> None:
    with self._lock:
      handler = self._handlers.get(message['kind'])
      if handler is None:
        self._kept.append(message)
        return
    try:
      handler(message)
    except Exception:  # noqa: BLE001 - one bad message must not deafen us
      logging.exception('Could not handle the message %s', message['kind'])
