"""Starts several processes of one job on this machine: --local=4 -- --exp=...

Promises: every line of output says whose it is; when one process fails, all
are ended and the status is its; a request to stop reaches all of them.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from paxlike.core import errors
from paxlike.core import processes as processes_lib

_EPILOG = """\
What follows `--` is the command line of one process, flags of paxlike or any
command; the processes find each other through JAX_COORDINATOR_ADDRESS,
JAX_NUM_PROCESSES and JAX_PROCESS_ID.

  paxlike launch --local=4 -- --exp=KjvTiny --mode=train --job_log_dir=runs/kjv
"""
# Processes of a failed job end by themselves, saying why, within 15 s.
_GRACE_S = 20.0
_LOOK_EVERY_S = 0.05


def main(arguments: Sequence[str]) -> int:
  """Runs the command.

  Args:
    arguments: The words after `paxlike launch`.

  Returns:
    0 if all processes ended with 0; else the status of the first that did
    not, 128 + N for one that signal N killed.
  """
  if '--elastic' in list(arguments)[: _end_of_flags(arguments)]:
    from paxlike.cli import _launch_elastic

    return _launch_elastic.main(arguments)
  options = _parse(arguments)
  address = f'127.0.0.1:{_free_port()}'
  processes = [
    _Process(
      index,
      _command(options.command),
      {
        **os.environ,
        'JAX_COORDINATOR_ADDRESS': address,
        'JAX_NUM_PROCESSES': str(options.local),
        'JAX_PROCESS_ID': str(index),
        'PAXLIKE_LAUNCHER': str(os.getpid()),
        'PYTHONUNBUFFERED': '1',
      },
    )
    for index in range(options.local)
  ]
  try:
    with _forwarded(processes):
      return _watch(processes)
  finally:
    for process in processes:
      process.kill()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='paxlike launch',
    description=__doc__,
    epilog=_EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    '--local',
    type=int,
    required=True,
    metavar='N',
    help='how many processes to start on this machine',
  )
  parser.add_argument(
    '--elastic',
    action='store_true',
    help='keep the job alive when processes die; see --elastic --help',
  )
  parser.add_argument('command', nargs='+', metavar='-- ARGUMENT')
  options = parser.parse_args(arguments)
  if options.local < 1:
    raise errors.UsageError(f'--local={options.local} must be at least 1.')
  return options


def _end_of_flags(arguments: Sequence[str]) -> int:
  words = list(arguments)
  return words.index('--') if '--' in words else len(words)


def _command(words: Sequence[str]) -> list[str]:
  """Flags alone are paxlike's."""
  if words[0].startswith('-'):
    return [sys.executable, '-m', 'paxlike.main', *words]
  return list(words)


def _free_port() -> int:
  with socket.socket() as sock:
    sock.bind(('127.0.0.1', 0))
    return sock.getsockname()[1]


class _Process:
  """One process of the job, its output prefixed with its index."""

  def __init__(
    self, index: int, command: Sequence[str], env: Mapping[str, str]
  ):
    self.index = index
    try:
      self._popen = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # its own group: signals go through us
      )
    except OSError as error:
      raise errors.UsageError(f'Cannot run {command[0]}: {error}') from error
    assert self._popen.stdout is not None
    assert self._popen.stderr is not None
    self._readers = [
      threading.Thread(target=_prefix, args=(f'[{index}] ', source, sink))
      for source, sink in (
        (self._popen.stdout, sys.stdout),
        (self._popen.stderr, sys.stderr),
      )
    ]
    for reader in self._readers:
      reader.start()

  def status(self) -> int | None:
    """Its exit status, as a shell counts; None while it runs."""
    code = self._popen.poll()
    return 128 - code if code is not None and code < 0 else code

  @property
  def is_stopped(self) -> bool:
    """Whether a signal holds it, so that it will not end by itself."""
    return processes_lib.is_stopped(self._popen.pid)

  def send(self, number: int) -> None:
    """Sends it a signal, if it still runs."""
    if self._popen.poll() is None:
      os.killpg(self._popen.pid, number)

  def kill(self) -> None:
    """Ends it and what it has started, and its output."""
    with contextlib.suppress(ProcessLookupError):  # all may have ended
      os.killpg(self._popen.pid, signal.SIGKILL)
    self._popen.wait()
    for reader in self._readers:
      reader.join()


def _prefix(prefix: str, source: IO[bytes], sink: IO[str]) -> None:
  with source:
    for line in source:
      text = line.decode(errors='replace').rstrip('\n')
      sink.write(f'{prefix}{text}\n')  # one write: lines do not mix
      sink.flush()


@contextlib.contextmanager
def _forwarded(processes: Sequence[_Process]) -> Iterator[None]:
  """Passes SIGTERM and Ctrl-C on to all processes."""

  def forward(number: int, frame: object) -> None:
    del frame
    for process in processes:
      process.send(number)

  numbers = (signal.SIGTERM, signal.SIGINT)
  before = {number: signal.signal(number, forward) for number in numbers}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _watch(
  processes: Sequence[_Process], clock: Callable[[], float] = time.monotonic
) -> int:
  """Waits for all to end; the others get a grace time after a failure."""
  first_failed: int | None = None
  deadline_s = float('inf')
  while True:
    statuses = {process.index: process.status() for process in processes}
    for index, status in statuses.items():
      if first_failed is None and status not in (None, errors.EXIT_DONE):
        first_failed = index
        deadline_s = clock() + _GRACE_S
        _say(f'process {index} ended with status {status}')
    running = [index for index, status in statuses.items() if status is None]
    failed = first_failed is not None
    held = failed and all(processes[index].is_stopped for index in running)
    if running and (held or clock() > deadline_s):
      _say(f'ending processes {running}, which are still running')
      break
    if not running:
      break
    time.sleep(_LOOK_EVERY_S)
  if first_failed is None:
    return errors.EXIT_DONE
  if errors.EXIT_USAGE in statuses.values():
    return errors.EXIT_USAGE  # what the others ended with is its consequence
  return statuses[first_failed] or errors.EXIT_FAILED


def _say(text: str) -> None:
  print(f'paxlike launch: {text}', file=sys.stderr, flush=True)
