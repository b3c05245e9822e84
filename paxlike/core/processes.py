"""What only the operating system knows and does of other processes."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
  """Has Linux send this process a signal when its parent ends, however.

  Elsewhere this does nothing.
  """
  libc = ctypes.CDLL(None)
  if hasattr(libc, 'prctl'):
    libc.prctl(_PR_SET_PDEATHSIG, int(number))


def is_alive(pid: int) -> bool:
  """Whether a process of this machine is at work, of whichever user."""
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    return True
  # One that has ended, but that nobody has waited for, is dead.
  return _state(pid) != 'Z'


def is_stopped(pid: int) -> bool:
  """Whether a signal holds a process of this machine: it hears no other."""
  return _state(pid) == 'T'


def _state(pid: int) -> str:
  """Linux' letter for it; '' where that is not told."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
      return file.read().rpartition(')')[2].split()[0]
  except OSError:
    return ''
