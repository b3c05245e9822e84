"""How a process of a failed job ends: soon, non-zero, and saying why.

Its main thread may be inside a collective that never returns, or JAX may want
to abort the process because its service is gone; neither may keep the reason
from being told.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from paxlike.core import errors

# Longer, and an abort would come first (see `delay_aborts`).
LONGEST_GRACE_S = 5.0


_LAST_WORDS_S = 1.0
_WAY_OUT_S = 10.0

_last_words: list[Callable[[errors.PeerFailedError], None]] = []


@contextlib.contextmanager
def last_words(
  write: Callable[[errors.PeerFailedError], None],
) -> Iterator[None]:
  """Calls `write` should this process be ended without its main thread.

  That is, from another thread and only once a failure in the job is known, or
  a watchdog ends it: no `finally` of the main thread is run then. Writing may
  take a second.
  """
  _last_words.append(write)
  try:
    yield
  finally:
    _last_words.remove(write)


def speak(error: errors.PeerFailedError, *, timeout_s: float) -> None:
  """Has all last words written; the error that ends the process counts."""

  def write() -> None:
    for each in reversed(_last_words):
      with contextlib.suppress(Exception):
        each(error)

  thread = threading.Thread(target=write, name='paxlike-last', daemon=True)
  thread.start()
  thread.join(timeout_s)


class Reaper:
  """Ends this process, once a failure in the job is known.

  The failure is told once: by the main thread if it gets out in time, which
  raises it, or else here.
  """

  def __init__(self, *, grace_s: float):
    """Does nothing before it is armed.

    Args:
      grace_s: How long the main thread has to get out.
    """
    if not 0 < grace_s <= LONGEST_GRACE_S:
      raise errors.UsageError(
        f'grace_s is {grace_s}, must be over 0 and at most {LONGEST_GRACE_S}.'
      )
    self._grace_s = grace_s
    self._lock = threading.Lock()
    self._armed = False
    self._is_out = threading.Event()

  def arm(self, error: errors.PeerFailedError) -> None:
    """Gives the main thread a grace time to get out."""
    with self._lock:
      if self._armed:
        return
      self._armed = True
    threading.Thread(
      target=self._end, args=(error,), name='paxlike-reaper', daemon=True
    ).start()

  def main_is_out(self) -> None:
    """Says that the main thread ends the process by itself."""
    self._is_out.set()

  def _end(self, error: errors.PeerFailedError) -> None:
    words_s = min(_LAST_WORDS_S, self._grace_s / 2)
    if not self._is_out.wait(self._grace_s - words_s):
      speak(error, timeout_s=words_s)
    if not self._is_out.is_set():
      say(
        f'{error}\nThe main thread did not get out within '
        f'{self._grace_s:.0f} s, so the process is ended.'
      )
    else:  # It has yet to say why; whatever it hangs in then is no reason.
      threading.Event().wait(_WAY_OUT_S)
    end_now(errors.EXIT_FAILED)


def say(text: str) -> None:
  """Writes to stderr past every buffer and lock of Python's."""
  os.write(2, f'paxlike: {text}\n'.encode())


def end_now(status: int) -> None:
  """Ends the process without the teardown that waits for dead peers."""
  for stream in (sys.stdout, sys.stderr):
    try:
      stream.flush()
    except (OSError, ValueError):
      continue
  os._exit(status)


def end_at_exit(status: int) -> None:
  """Makes the interpreter's end, when it comes, an `end_now`."""
  atexit.register(end_now, status)


def delay_aborts() -> Callable[[], None]:
  """Lets a process that JAX aborts live six seconds longer.

  When process 0 is killed, JAX's C++ client aborts the others within
  milliseconds, before Python can tell what happened. So SIGABRT's handler
  becomes the C library's `sleep`: called with the signal's number, 6, it holds
  the aborting thread for 6 s, longer than `LONGEST_GRACE_S`. If nothing has ended the
  process by then, the abort goes on. Returns what undoes it.
  (faults_test.py::test_a_killed_coordinator_is_named_by_all)
  """
  libc = ctypes.CDLL(None)
  libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
  libc.signal.restype = ctypes.c_void_p
  sleep = ctypes.cast(libc.sleep, ctypes.c_void_p)
  before = libc.signal(signal.SIGABRT, sleep)
  return lambda: libc.signal(signal.SIGABRT, before)
