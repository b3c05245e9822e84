"""SIGTERM and Ctrl-C as a request to stop, heard whatever the main thread does.

Python runs signal handlers in the main thread, between two bytecodes: not
while it compiles or waits for a device, which can take minutes. The C-level
handler however writes a byte at once, and a thread here reads it.
"""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from absl import logging

_ASKING = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def asking(ask: Callable[[str], None]) -> Iterator[None]:
  """Calls `ask(signal name)` in another thread for each such signal.

  Inside the block SIGTERM never ends the process, nor does a second Ctrl-C:
  they would break the save that the first one asked for. A third Ctrl-C does.
  Outside of the main thread this does nothing, since Python allows no handler
  there.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  reader, writer = socket.socketpair()
  writer.setblocking(False)
  thread = threading.Thread(
    target=_read, args=(reader, ask), name='paxlike-signals', daemon=True
  )
  thread.start()
  handler = _Handler()
  before = {number: signal.signal(number, handler) for number in _ASKING}
  fd_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
  try:
    yield
  finally:
    signal.set_wakeup_fd(fd_before)
    for number, old in before.items():
      signal.signal(number, old)
    writer.close()
    thread.join()
    reader.close()


class _Handler:
  """Does nothing the first time; tells of patience, then has none."""

  def __init__(self) -> None:
    self._interrupts = 0

  def __call__(self, number: int, frame: FrameType | None) -> None:
    del frame
    if number == signal.SIGINT:
      self._interrupts += 1
      if self._interrupts == 2:
        logging.warning(
          'Stopping already, as soon as the state is saved. Once more Ctrl-C '
          'ends it at once, and what is not saved is lost.'
        )
      elif self._interrupts > 2:
        raise KeyboardInterrupt


def _read(reader: socket.socket, ask: Callable[[str], None]) -> None:
  while data := reader.recv(16):
    for number in data:
      if number in _ASKING:
        ask(signal.Signals(number).name)
