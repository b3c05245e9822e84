"""Real disks with little room."""

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def mounted(path: pathlib.Path, *, size: str) -> Iterator[pathlib.Path]:
  """A file system in memory at `path`, as large as `mount -o size=` says.

  Skips the test where nothing may be mounted.
  """
  path.mkdir(exist_ok=True)
  done = subprocess.run(
    ['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', str(path)],
    check=False,
    capture_output=True,
    text=True,
  )
  if done.returncode:
    pytest.skip(f'cannot mount a tmpfs here: {done.stderr}')
  try:
    yield path
  finally:
    # At once, also from under files that a failed test has left open.
    subprocess.run(['umount', '--lazy', str(path)], check=True)
