"""Leases: how a reader asks the trainer not to sweep a step.

A lease is a file in the step's directory that says until when, so one whose
owner died ends by itself. What honours them is `_sweep.is_held`.
"""

import contextlib
import os
import socket

from paxlike.checkpoint import _history, _layout
from paxlike.core import clock as clocks
from paxlike.core import fs


class Lease:
  """Keeps one step from being swept until it is released or expires.

  A reader that may not write there does without: a step that it wants may
  then be swept at any moment.
  """

  def __init__(
    self,
    file_system: fs.FileSystem,
    path: str,
    *,
    duration_s: float,
    clock: clocks.Clock = clocks.SYSTEM,
  ):
    """Takes it.

    Args:
      file_system: Where the step is.
      path: Directory of the step.
      duration_s: After so many seconds it ends by itself.
      clock: Where the time comes from.
    """
    self._fs = file_system
    self._path = path
    self._duration_s = duration_s
    self._clock = clock
    self._file = ''
    self._taken_s = 0.0
    self._take()

  @property
  def is_granted(self) -> bool:
    """Whether it could be written down."""
    return bool(self._file)

  def renew(self) -> None:
    """Makes it last anew, once half of its time has passed."""
    if self._clock.monotonic_s() - self._taken_s >= self._duration_s / 2:
      old = self._file
      # Under another name: one written over is empty for a moment.
      self._take()
      self._remove(old)

  def release(self) -> None:
    """Lets the step go; more than once is fine."""
    old, self._file = self._file, ''
    self._remove(old)

  def _take(self) -> None:
    owner = f'{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}'
    file = fs.join(self._path, f'{_layout.LEASE_PREFIX}{owner}')
    self._taken_s = self._clock.monotonic_s()
    until_s = self._clock.now_s() + self._duration_s
    self._file = ''
    with contextlib.suppress(OSError):
      self._fs.write_new(file, f'{until_s:.0f}'.encode())
      self._file = file

  def _remove(self, file: str) -> None:
    if file:
      with contextlib.suppress(OSError):
        self._fs.remove(file)


def lease(
  directory: str,
  step: int,
  *,
  duration_s: float,
  clock: clocks.Clock = clocks.SYSTEM,
) -> Lease | None:
  """Takes a lease on a committed step.

  Args:
    directory: Directory of all steps.
    step: Which one.
    duration_s: After so many seconds it ends by itself.
    clock: Where the time comes from.

  Returns:
    The lease, which may not be granted; None if there is no such step, or
    none any more.
  """
  file_system = fs.for_path(directory)
  name = _history.committed_names(file_system, directory).get(step)
  if name is None:
    return None
  path = fs.join(directory, name)
  taken = Lease(file_system, path, duration_s=duration_s, clock=clock)
  if not file_system.exists(fs.join(path, _layout.MANIFEST)):
    taken.release()  # swept in between
    return None
  return taken
