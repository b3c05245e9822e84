"""Where JAX keeps compiled programs between starts.

Set by environment variables, which JAX reads when it is loaded: nothing here
loads it. What the user has set there stays.
"""

import os
import platform
import zlib

from paxlike.core import fs


def turn_off() -> None:
  """Keeps nothing, wherever the user has told JAX to keep it."""
  os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'


def turn_on(directory: str | None = None) -> None:
  """Keeps compiled programs, also those that were quick to compile.

  Args:
    directory: Where; None: where the user has told JAX, else
      `default_directory()`.
  """
  if directory is not None:
    os.environ['JAX_COMPILATION_CACHE_DIR'] = fs.expand(directory)
  else:
    os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', default_directory())
  # By itself JAX keeps only what took over a second; a start has many of less.
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')


def default_directory() -> str:
  """A directory in the user's cache for each kind of processor.

  A program compiled for the CPU of one machine may not run on another one
  that shares the home directory.
  """
  kind = platform.machine()
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      marks = ('flags', 'Features')  # as x86 and ARM call it
      features = next((line for line in file if line.startswith(marks)), '')
    kind += f'-{zlib.crc32(features.encode()):08x}'
  except OSError:  # not Linux
    pass
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return os.path.join(home, 'paxlike', 'jax', kind)
