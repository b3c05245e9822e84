"""What only the operating system knows and does of other processes."""

import ctypes
import functools
import hashlib
import os
import signal
import socket

_PR_SET_PDEATHSIG = 1
# Linux' mark of a process that is being taken apart.
_PF_EXITING = 0x4


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


def is_ending(pid: int) -> bool:
  """Whether a process of this machine has ended, or cannot but end.

  One that is killed closes what it holds, one thing after the other, before it
  is gone: others may see one of its connections end while it still exists.
  False where that is not told.
  """
  flags = _stat(pid, 6)
  return bool(flags) and bool(int(flags) & _PF_EXITING)


def started(pid: int) -> str:
  """When a process of this machine began, in ticks since the machine did.

  Numbers of processes are given anew; together with this they are not. '' where
  there is no such process, or where that is not told.
  """
  return _stat(pid, 19)


@functools.cache
def machine() -> str:
  """Eight hex digits for all that sees the same processes by their numbers.

  Two machines of one name differ, and so do one before and after it was
  started anew, and two containers on one machine.
  """
  parts = [socket.gethostname()]
  try:
    with open('/proc/sys/kernel/random/boot_id', encoding='utf-8') as file:
      parts.append(file.read())
    parts.append(os.readlink('/proc/self/ns/pid'))
  except OSError:  # no Linux: the name has to do
    pass
  return hashlib.sha256('\0'.join(parts).encode()).hexdigest()[:8]


def _state(pid: int) -> str:
  """Linux' letter for it; '' where that is not told."""
  return _stat(pid, 0)


def _stat(pid: int, field: int) -> str:
  """What Linux tells of a process, counted from its state on."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
      return file.read().rpartition(')')[2].split()[field]
  except OSError:
    return ''
