"""What tells a process that is slow from one that will never come.

A process says how far its main thread is and what it does there; one that
waits for it compares that with its own call, and with what it said before.
Nothing here guesses: where these signs do not decide, the deadline does.
"""

import dataclasses
import os
import pathlib
import sys
import sysconfig
import threading
import time
import traceback

# A main thread that slept so long in one system call of the user's own code,
# at a call that no process has come through before, counts as astray.
ASLEEP_S = 10.0
# Of all its threads, in that time: it is not computing either.
_IDLE_CPU_S = 0.2

_ROOM = pathlib.Path(__file__).parent
_PACKAGE = f'{_ROOM.parent}{os.sep}'
_LIBRARIES = tuple(
  f'{sysconfig.get_path(name)}{os.sep}'
  for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')
)
# Of JAX, a main thread is inside while it waits for a device.
_DEVICE = f'{os.sep}jax{os.sep}'
_COMPILING = tuple(
  f'{os.sep}jax{os.sep}_src{os.sep}{name}.py'
  for name in ('compiler', 'compilation_cache')
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signs:
  """How far a main thread is, and what it does.

  Attributes:
    called: Whether it has made the call that was asked about.
    calls: How many calls it has made of those that all processes make.
    ticks: How many steps and programs it has begun.
    is_patient: Whether what it does may take as long as it takes: compiling,
      saving, restoring, evaluating, decoding.
    is_own_code: Whether it is in the user's own code; not in a library, which
      may be reading, or trying again.
    is_in_jax: Whether it is inside of JAX: it waits for a device.
    place: The innermost line of it: 'train.py:31 in main'.
    switches: How often it was put to sleep so far; -1 where unknown.
    cpu_s: Processor seconds of the process so far.
  """

  called: bool
  calls: int
  ticks: int
  is_patient: bool
  is_own_code: bool
  is_in_jax: bool
  place: str
  switches: int
  cpu_s: float

  def went_past(self, *, ordinal: int, ticks: int) -> str:
    """Why this process can never make a call any more; '' if it may.

    Main threads run one program: whoever is beyond the place of a call, and
    has not made it, will not.

    Args:
      ordinal: How many calls came before that one.
      ticks: How many steps and programs were begun before it.
    """
    if self.called:
      return ''
    if self.ticks > ticks:
      ahead = self.ticks - ticks
      return f'went on without it, {ahead} step{"s" * (ahead > 1)} further'
    if self.calls > ordinal:
      return 'made another call of this job instead'
    return ''

  def sleeps_since(self, before: 'Signs', *, may_be_busy: bool) -> bool:
    """Whether its main thread has not moved since `before`, nor computed.

    Args:
      before: What it said before.
      may_be_busy: Whether a device may be at work for it, which those that
        wait do not wait for; then being in JAX says nothing.
    """
    # While it waits for a device JAX wakes up five times a second.
    is_asleep = self.is_own_code and self.switches == before.switches >= 0
    is_waiting = self.is_in_jax and not may_be_busy
    return (
      not self.called
      and not self.is_patient
      and (is_asleep or is_waiting)
      and (self.place, self.calls, self.ticks)
      == (before.place, before.calls, before.ticks)
      and self.cpu_s - before.cpu_s < _IDLE_CPU_S
    )


def read(
  main_thread: threading.Thread,
  *,
  called: bool,
  calls: int,
  ticks: int,
  is_patient: bool,
) -> Signs:
  """The signs of this process; of the main thread as it is found."""
  frames = sys._current_frames()  # noqa: SLF001 - its documented name
  frame = frames.get(main_thread.ident or -1)
  files, place = [], ''
  if frame is not None:
    inner = frame.f_code
    place = (
      f'{os.path.basename(inner.co_filename)}:{frame.f_lineno} in '
      f'{inner.co_name}'
    )
    files = [f.f_code.co_filename for f, _ in traceback.walk_stack(frame)]
  return Signs(
    called=called,
    calls=calls,
    ticks=ticks,
    is_patient=is_patient or any(f.endswith(_COMPILING) for f in files),
    is_own_code=bool(files) and is_own(files[0]),
    is_in_jax=bool(files) and _DEVICE in files[0],
    place=place,
    switches=_switches(main_thread.native_id),
    cpu_s=time.process_time(),
  )


def is_own(file: str) -> bool:
  """Whether a source file is the user's own."""
  return not file.startswith(('<frozen', _PACKAGE, *_LIBRARIES))


def _switches(thread_id: int | None) -> int:
  """How often a thread of this process has left the processor."""
  try:
    with open(f'/proc/self/task/{thread_id}/status', encoding='utf-8') as file:
      return sum(
        int(line.split()[1]) for line in file if 'ctxt_switches' in line
      )
  except OSError:
    return -1
