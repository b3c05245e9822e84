"""Starts real processes of one job and tells how each of them ended.

    ended = harness.run('tests.multiprocess.sync_jobs:barriers', 3)
    assert [process.status for process in ended] == [0, 0, 0]

Every process is killed when the time is over, so a hang is a failed test and
never a hung one.
"""

import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(eq=False)
class Process:
  """One process of the job, under way or ended.

  Attributes:
    index: Its place in the job.
    status: Its exit status once ended; -9 if killed.
    ended_s: Monotonic seconds of its end.
    lines: What it has printed (both streams), with the time of each line.
    was_killed_late: Whether it had to be killed when the time was over.
  """

  index: int
  popen: subprocess.Popen
  lines: list[tuple[float, str]] = dataclasses.field(default_factory=list)
  status: int | None = None
  ended_s: float = 0.0
  was_killed_late: bool = False
  _changed: threading.Condition = dataclasses.field(
    default_factory=threading.Condition
  )

  @property
  def output(self) -> str:
    """All that it printed."""
    return '\n'.join(line for _, line in self.lines)

  def said_s(self, text: str) -> float:
    """When it first printed a line that contains `text`."""
    for when_s, line in self.lines:
      if text in line:
        return when_s
    raise AssertionError(
      f'Process {self.index} never said {text!r}:\n{self.output}'
    )

  def wait_for(self, text: str, timeout_s: float = 60.0) -> None:
    """Blocks until it has printed a line that contains `text`."""
    with self._changed:
      if not self._changed.wait_for(
        lambda: any(text in line for _, line in self.lines), timeout_s
      ):
        raise AssertionError(
          f'Process {self.index} did not say {text!r} within {timeout_s} s:\n'
          f'{self.output}'
        )

  def signal(self, number: int) -> None:
    """Sends it a signal."""
    os.kill(self.popen.pid, number)

  def _read(self) -> None:
    assert self.popen.stdout is not None
    with self.popen.stdout as stdout:
      for line in stdout:
        with self._changed:
          self.lines.append((time.monotonic(), line.rstrip('\n')))
          self._changed.notify_all()

  def _await(self) -> None:
    self.status = self.popen.wait()
    self.ended_s = time.monotonic()


def free_port() -> int:
  """A port that nobody listens on now."""
  with socket.socket() as sock:
    sock.bind(('127.0.0.1', 0))
    return sock.getsockname()[1]


def run(
  job: str,
  num_processes: int,
  *arguments: str,
  timeout_s: float = 60.0,
  env: dict[str, str] | None = None,
  during: Callable[[list[Process]], None] | None = None,
  absent: Sequence[int] = (),
  start_timeout_s: float = 60.0,
  silence_s: float = 60.0,
  grace_s: float = 2.0,
) -> list[Process]:
  """Runs `job` in that many processes that are joined into one job.

  Args:
    job: 'module:function', called as function(world, *arguments).
    num_processes: How many.
    *arguments: Strings for the function.
    timeout_s: When those still alive are killed.
    env: Environment variables to set besides.
    during: Called with the processes while they run, to hurt them.
    absent: Processes that are not started.
    start_timeout_s: How long the processes wait for each other at the start.
    silence_s: How long one may be silent before it counts as lost.
    grace_s: How long a main thread has to get out once another has failed.
  """
  address = f'localhost:{free_port()}'
  commands = [
    [
      sys.executable,
      '-m',
      'tests.multiprocess.worker',
      f'--coordinator_address={address}',
      f'--num_processes={num_processes}',
      f'--process_id={index}',
      f'--start_timeout_s={start_timeout_s}',
      f'--silence_s={silence_s}',
      f'--grace_s={grace_s}',
      job,
      *arguments,
    ]
    for index in range(num_processes)
    if index not in absent
  ]
  return run_commands(commands, timeout_s=timeout_s, env=env, during=during)


def run_commands(
  commands: Sequence[Sequence[str]],
  *,
  timeout_s: float = 60.0,
  env: dict[str, str] | None = None,
  during: Callable[[list[Process]], None] | None = None,
) -> list[Process]:
  """Runs one command a process; see `run`."""
  environment = {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': '--xla_force_host_platform_device_count=2',
    'PYTHONUNBUFFERED': '1',
    **(env or {}),
  }
  processes = [
    Process(
      index,
      subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='replace',
        start_new_session=True,
      ),
    )
    for index, command in enumerate(commands)
  ]
  threads = [
    threading.Thread(target=target, daemon=True)
    for process in processes
    for target in (process._read, process._await)
  ]
  for thread in threads:
    thread.start()
  try:
    if during is not None:
      during(processes)
    deadline_s = time.monotonic() + timeout_s
    for thread in threads:
      thread.join(max(0.0, deadline_s - time.monotonic()))
  finally:
    for process in processes:
      if process.popen.poll() is None:
        process.was_killed_late = True
        os.killpg(process.popen.pid, signal.SIGKILL)
    for thread in threads:
      thread.join(10.0)
  return processes


def assert_all_ended(processes: Sequence[Process]) -> None:
  """No process had to be killed because the time was over."""
  late = [process for process in processes if process.was_killed_late]
  assert not late, '\n'.join(
    f'Process {process.index} was still running:\n{process.output}'
    for process in late
  )
