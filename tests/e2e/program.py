"""Runs the program as a user does: another process, flags, exit status."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).parents[2]


def environment(**changes: str) -> dict[str, str]:
  """This process's, without what the test suite adds for itself."""
  kept = {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'}
  return {**kept, 'PYTHONWARNINGS': 'default', 'COLUMNS': '200', **changes}


def start(
  *arguments: str, module: str = 'paxlike.main', **changes: str
) -> subprocess.Popen[str]:
  """Starts `paxlike` with these arguments from the root of the tree."""
  return subprocess.Popen(
    [sys.executable, '-m', module, *map(str, arguments)],
    cwd=ROOT,
    env=environment(**changes),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def run(
  *arguments: str, timeout_s: float = 120.0, **changes: str
) -> subprocess.CompletedProcess[str]:
  """Runs `paxlike` to its end; SIGKILL if it takes too long."""
  process = start(*arguments, **changes)
  try:
    out, err = process.communicate(timeout=timeout_s)
  except subprocess.TimeoutExpired:
    process.kill()
    out, err = process.communicate()
    raise AssertionError(f'Not done in {timeout_s} s:\n{out}\n{err}') from None
  return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_ok(*arguments: str, **options: str) -> str:
  """Runs `paxlike`, asserts status 0, gives what it printed."""
  done = run(*arguments, **options)
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout + done.stderr


def kill_when(
  process: subprocess.Popen[str],
  ready: Callable[[], bool],
  *,
  timeout_s: float = 120.0,
) -> bool:
  """SIGKILLs a process as soon as `ready`; False if it ended before."""
  deadline_s = time.monotonic() + timeout_s
  while process.poll() is None:
    assert time.monotonic() < deadline_s, 'the moment to kill never came'
    if ready():
      process.send_signal(signal.SIGKILL)
      process.communicate()
      return True
    time.sleep(0.002)
  out, err = process.communicate()
  assert process.returncode == 0, out + err
  return False


def settings(values: dict[str, object]) -> Sequence[str]:
  """`--set=NAME=VALUE` for each."""
  return [f'--set={name}={value}' for name, value in values.items()]
