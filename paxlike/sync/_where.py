"""Where a process is, as it tells others: step, phase, barriers, stacks."""

import dataclasses
import json
import os
import pathlib
import socket
import sys
import threading
import traceback
from collections.abc import Sequence

from paxlike.core import fs
from paxlike.sync import _signs

# Frames that say nothing about where the user's program is.
_HIDDEN = (f'{pathlib.Path(__file__).parent}{os.sep}', '<frozen runpy>')
_OWN_THREADS = (
  'paxlike-dump',
  'paxlike-lifeline',
  'paxlike-mail',
  'paxlike-reaper',
  'paxlike-signals',
  'paxlike-watchdog',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
  """What one process says of itself.

  Attributes:
    process_index: Which process.
    host: The name of its machine.
    pid: Its process number on that machine.
    at: Its step and phase, in words.
    meetings: Names of the barriers, broadcasts and gathers that it waits in.
    stack: Python stacks of its threads, '' if not asked for.
    signs: How far its main thread is, if asked about a call.
  """

  process_index: int
  host: str
  pid: int
  at: str
  meetings: tuple[str, ...]
  stack: str = ''
  signs: _signs.Signs | None = None

  def to_bytes(self) -> bytes:
    """The form that travels through the key-value store."""
    return json.dumps(dataclasses.asdict(self)).encode()

  @classmethod
  def from_bytes(cls, data: bytes) -> 'Where':
    """Reads what `to_bytes` wrote."""
    fields = json.loads(data)
    fields['meetings'] = tuple(fields['meetings'])
    if fields['signs'] is not None:
      fields['signs'] = _signs.Signs(**fields['signs'])
    return cls(**fields)

  def __str__(self) -> str:
    met = ', '.join(repr(name) for name in self.meetings)
    return (
      f'process {self.process_index} ({self.host}, pid {self.pid}): {self.at}, '
      f'{f"waits in {met}" if met else "waits in no barrier"}'
    )


def here(
  process_index: int,
  *,
  at: str,
  meetings: Sequence[str],
  with_stack: bool,
  main_thread: threading.Thread,
) -> Where:
  """Where this process is now."""
  return Where(
    process_index=process_index,
    host=socket.gethostname(),
    pid=os.getpid(),
    at=at,
    meetings=tuple(meetings),
    stack=stacks(main_thread) if with_stack else '',
  )


def stacks(main_thread: threading.Thread) -> str:
  """The Python stacks of all threads of this process, `main_thread` first."""
  frames = sys._current_frames()  # noqa: SLF001 - its documented name
  threads = [t for t in threading.enumerate() if t.name not in _OWN_THREADS]
  threads.sort(key=lambda thread: thread is not main_thread)
  parts = []
  for thread in threads:
    frame = frames.get(thread.ident or -1)
    if frame is not None:
      shown = [
        entry
        for entry in traceback.extract_stack(frame)
        if not entry.filename.startswith(_HIDDEN)
      ]
      lines = ''.join(traceback.format_list(shown)).rstrip()
      parts.append(f'Thread {thread.name}:\n{lines}')
  return '\n'.join(parts)


def origin(error: BaseException) -> str:
  """Where `error` was raised: ', in main (train.py:31)', or ''.

  The innermost line of the user's own code, if it came through any.
  """
  frames = traceback.extract_tb(error.__traceback__)
  if not frames:
    return ''
  own = [frame for frame in frames if _signs.is_own(frame.filename)]
  frame = (own or frames)[-1]
  return (
    f', in {frame.name} ({os.path.basename(frame.filename)}:{frame.lineno})'
  )


def write(directory: str, where: Where) -> None:
  """Writes a process's place and stacks to `process_<index>.txt`."""
  files = fs.for_path(directory)
  files.make_dirs(directory)
  files.write_atomic(
    fs.join(directory, f'process_{where.process_index:05d}.txt'),
    f'{where}\n{where.stack}\n'.encode(),
  )
