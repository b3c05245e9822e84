"""Ties between processes that only the operating system can keep."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
  """Has Linux send this process a signal when its parent ends, however.

  Elsewhere this does nothing.
  """
  libc = ctypes.CDLL(None)
  if hasattr(libc, 'prctl'):
    libc.prctl(_PR_SET_PDEATHSIG, int(number))
