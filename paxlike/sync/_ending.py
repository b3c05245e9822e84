"""How a process of a failed job ends: soon, non-zero, and saying why.

Its main thread may be inside a collective that never returns, or JAX may want
to abort the process because its service is gone; neither may keep the reason
from being told.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

from paxlike.core import errors

# Longer, and an abort would come first (see `delay_aborts`).
LONGEST_GRACE_S = 5.0


class Reaper:
  """Ends this process, once a failure in the job is known."""

  def __init__(self, *, grace_s: float):
    if not 0 < grace_s <= LONGEST_GRACE_S:
      raise errors.UsageError(
        f'grace_s is {grace_s}, must be over 0 and at most {LONGEST_GRACE_S}.'
      )
    self._grace_s = grace_s
    self._lock = threading.Lock()
    self._armed = False

  def arm(self, reason: str) -> None:
    """Prints why, and gives the main thread a grace time to get out."""
    with self._lock:
      if self._armed:
        return
      self._armed = True
    say(reason.splitlines()[0])  # The error that main raises has the rest.
    timer = threading.Timer(self._grace_s, self._end, args=(reason,))
    timer.name = 'paxlike-reaper'
    timer.daemon = True
    timer.start()

  def _end(self, reason: str) -> None:
    say(
      f'The main thread did not get out within {self._grace_s:.0f} s; '
      f'ending the process. {reason}'
    )
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
