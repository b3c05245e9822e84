"""A whole elastic job on this machine: a lighthouse and agents, kept alive.

Each agent plays a host. One that dies is started again, as a machine that
comes back would be; so is the lighthouse. For trying things out, for tests,
and for one machine with several accelerators.
"""

import collections
import contextlib
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from absl import logging

from paxlike.core import errors
from paxlike.elastic import _memory
from paxlike.elastic import agent as agents

SNAPSHOT_DIR = '/dev/shm'  # noqa: S108 - a directory of our own in it
JOB_VARIABLE = 'PAXLIKE_JOB_ID'
_LOOK_EVERY_S = 0.05
_AGAIN_AFTER_S = 0.5
_OVER_S = 2.0
_STOP_S = 180.0
_END_S = 20.0
_MOST_RESTARTS = 50


def launch(
  arguments: Sequence[str],
  *,
  num_hosts: int,
  agent_arguments: Sequence[str] = (),
  env: Mapping[str, str] | None = None,
  snapshot_dir: str = SNAPSHOT_DIR,
  snapshot_spill_dir: str | None = None,
) -> int:
  """Runs `paxlike ARGUMENTS` elastically on agents of this machine.

  Args:
    arguments: Flags of a training job.
    num_hosts: How many agents.
    agent_arguments: Further flags of `paxlike agent`.
    env: Environment variables to set besides.
    snapshot_dir: Where snapshots go.
    snapshot_spill_dir: Where they go if there is no room.

  Returns:
    The exit status of the job.
  """
  dirs = [f'--snapshot_dir={snapshot_dir}']
  if snapshot_spill_dir:
    dirs.append(f'--snapshot_spill_dir={snapshot_spill_dir}')
  job_id = os.environ.get(JOB_VARIABLE) or secrets.token_hex(6)
  job = _Job(
    arguments,
    job_id=job_id,
    num_hosts=num_hosts,
    agent_arguments=[*agent_arguments, *dirs],
    env={
      **os.environ,
      'PYTHONUNBUFFERED': '1',
      **(env or {}),
      agents.SECRET_VARIABLE: secrets.token_hex(32),
    },
  )
  try:
    return job.run()
  finally:
    job.kill()
    for parent in (snapshot_dir, snapshot_spill_dir):
      if parent:
        _memory.remove_job(parent, job_id=job_id)


class _Job:
  """The processes of one job."""

  def __init__(
    self,
    arguments: Sequence[str],
    *,
    job_id: str,
    num_hosts: int,
    agent_arguments: Sequence[str],
    env: Mapping[str, str],
  ):
    address = f'127.0.0.1:{_free_port()}'
    self._env = env
    self._commands = {
      'lighthouse': _own('lighthouse', f'--bind={address}'),
      **{
        f'host{index}': _own(
          'agent',
          f'--lighthouse={address}',
          '--host=127.0.0.1',
          f'--name=host{index}',
          f'--job_id={job_id}',
          *agent_arguments,
          '--',
          *arguments,
        )
        for index in range(num_hosts)
      },
    }
    self._processes: dict[str, subprocess.Popen] = {}
    self._again_s: dict[str, float] = dict.fromkeys(self._commands, 0.0)
    self._ended_s: dict[str, float] = {}
    self._num_restarts: collections.Counter[str] = collections.Counter()
    self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    self._stop_s: float | None = None

  def run(self) -> int:
    """Keeps all alive until the job is over."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {
      n: signal.signal(n, lambda n, _: self._signals.put(n)) for n in numbers
    }
    try:
      while (status := self._look()) is None:
        time.sleep(_LOOK_EVERY_S)
      return status
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)

  def _look(self) -> int | None:
    now_s = time.monotonic()
    with contextlib.suppress(queue.Empty):
      self._signals.get_nowait()
      self._stop_s = self._stop_s or now_s
      for name, process in self._processes.items():
        if name != 'lighthouse' and process.poll() is None:
          process.send_signal(signal.SIGINT)
    if self._stop_s is not None and now_s - self._stop_s > _STOP_S:
      logging.error('The job did not stop within %.0f s.', _STOP_S)
      return errors.EXIT_FAILED
    for name in self._commands:
      status = self._look_at(name, now_s)
      if status is not None:
        return status
    return None

  def _look_at(self, name: str, now_s: float) -> int | None:
    """Starts a process where it is not; the job's status once it is over."""
    process = self._processes.get(name)
    if process is None:
      if now_s >= self._again_s[name]:
        self._processes[name] = subprocess.Popen(
          self._commands[name],
          env=self._env,
          stdin=subprocess.DEVNULL,
          start_new_session=True,  # Ctrl-C goes through us
        )
      return None
    status = process.poll()
    if status is None:
      return None
    if status >= 0 and name == 'lighthouse':
      return self._wait_for_agents(status)
    if status == errors.EXIT_USAGE:
      return status
    if status >= 0 and now_s - self._ended_s.setdefault(name, now_s) < _OVER_S:
      return None  # is the job over? The lighthouse ends after its agents.
    self._ended_s.pop(name, None)
    del self._processes[name]
    self._num_restarts[name] += 1
    if self._num_restarts[name] > _MOST_RESTARTS:
      logging.error('%s ended %d times.', name, _MOST_RESTARTS)
      return errors.EXIT_FAILED
    logging.warning('%s ended with %d; starting it again.', name, status)
    self._again_s[name] = now_s + _AGAIN_AFTER_S
    return None

  def _wait_for_agents(self, status: int) -> int:
    deadline_s = time.monotonic() + _END_S
    for process in self._processes.values():
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline_s - time.monotonic()))
    return status

  def kill(self) -> None:
    """Ends what is left; workers end with their agent."""
    for process in self._processes.values():
      if process.poll() is None:
        process.kill()
      process.wait()


def _own(command: str, *arguments: str) -> list[str]:
  return [
    sys.executable,
    '-m',
    'paxlike.main',
    command,
    f'--parent_pid={os.getpid()}',
    *arguments,
  ]


def _free_port() -> int:
  with socket.socket() as sock:
    sock.bind(('127.0.0.1', 0))
    return sock.getsockname()[1]
