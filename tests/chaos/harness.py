"""An elastic job on this machine, and ways to hurt it.

    with harness.Job(job_log_dir, num_hosts=3, num_steps=100) as job:
      job.wait_for_step(20)
      job.kill_worker(rank=0)
      assert job.wait(timeout_s=60) == 0

Whatever happens, nothing of the job is left when the block ends.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

ROOT = pathlib.Path(__file__).parents[2]
SHARED_MEMORY = pathlib.Path('/dev/shm')


@dataclasses.dataclass(frozen=True)
class Fault:
  """Something that was done to the job.

  Attributes:
    what: In words.
    time_s: When, seconds since 1970.
    step: Steps that all workers had done just before.
    host: The agent that it was done to; '' if to none.
  """

  what: str
  time_s: float
  step: int
  host: str = ''


class Job:
  """A running elastic job; use it as a context."""

  def __init__(
    self,
    job_log_dir: os.PathLike[str] | str,
    *,
    num_hosts: int = 3,
    num_steps: int = 100,
    snapshot_steps: int = 10,
    exp: str = 'tests.chaos.toys.Slow',
    flags: Sequence[str] = (),
    settings: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    snapshot_dir: pathlib.Path = SHARED_MEMORY,
  ):
    """Starts it.

    Args:
      job_log_dir: Of the job.
      num_hosts: How many agents play hosts.
      num_steps: Train steps.
      snapshot_steps: Steps from one snapshot to the next.
      exp: The experiment.
      flags: Further flags of `paxlike launch`.
      settings: Further `--set` of the training job.
      env: Environment variables to set besides.
      snapshot_dir: Where snapshots go.
    """
    self.job_log_dir = pathlib.Path(job_log_dir)
    self.faults: list[Fault] = []
    self._events: list[dict[str, Any]] = []
    self._events_bytes = 0
    self._snapshot_dir = snapshot_dir
    self._job_id = secrets.token_hex(6)
    self.job_log_dir.mkdir(parents=True, exist_ok=True)
    self.log_path = self.job_log_dir / 'launch.log'
    with open(self.log_path, 'ab') as log:
      self._popen = subprocess.Popen(
        [
          sys.executable,
          '-m',
          'paxlike.main',
          'launch',
          f'--local={num_hosts}',
          '--elastic',
          f'--snapshot_steps={snapshot_steps}',
          f'--snapshot_dir={snapshot_dir}',
          *flags,
          '--',
          f'--exp={exp}',
          '--mode=train',
          f'--job_log_dir={job_log_dir}',
          f'--set=NUM_TRAIN_STEPS={num_steps}',
          *(f'--set={setting}' for setting in settings),
        ],
        cwd=ROOT,
        env={
          **os.environ,
          'JAX_PLATFORMS': 'cpu',
          'XLA_FLAGS': '',
          'PAXLIKE_JOB_ID': self._job_id,
          **(env or {}),
        },
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
      )
    self._process = psutil.Process(self._popen.pid)

  def __enter__(self) -> 'Job':
    return self

  def __exit__(self, *unused: object) -> None:
    family = self._family()
    for process in family:
      with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
    self._popen.wait()
    psutil.wait_procs(family, timeout=10.0)
    for name in self.shared_memory():
      subprocess.run(['rm', '-rf', self._snapshot_dir / name], check=True)

  @property
  def pid(self) -> int:
    """Of the launcher."""
    return self._popen.pid

  # --- looking

  def events(self) -> list[dict[str, Any]]:
    """All that is in the goodput log so far."""
    path = self.job_log_dir / 'status' / 'goodput.jsonl'
    # Only what is new is read: this is asked fifty times a second.
    with contextlib.suppress(FileNotFoundError), open(path, 'rb') as file:
      file.seek(self._events_bytes)
      data = file.read()
      whole = data[: data.rfind(b'\n') + 1]
      self._events_bytes += len(whole)
      self._events += map(json.loads, whole.splitlines())
    return list(self._events)

  def workers(self) -> list[dict[str, Any]]:
    """What status/workers.json says."""
    try:
      return json.loads((self.job_log_dir / 'status/workers.json').read_text())
    except FileNotFoundError:
      return []

  def steps(self) -> dict[str, int]:
    """Steps done by the worker of each host, as its memory tells."""
    found = {}
    for name in self.shared_memory():
      with contextlib.suppress(FileNotFoundError, ValueError):
        data = (self._snapshot_dir / name / 'step').read_bytes()
        found[name.rpartition('-')[2]] = int.from_bytes(
          data[:8], 'little', signed=True
        )
    return found

  def step(self) -> int:
    """Steps done by all workers of the current generation."""
    steps = self.steps()
    return min(
      (steps.get(worker['agent'], -1) for worker in self.workers()), default=-1
    )

  def log(self) -> str:
    """All output so far."""
    return self.log_path.read_text(errors='replace')

  def shared_memory(self) -> set[str]:
    """What the job holds in shared memory."""
    prefix = f'paxlike-{self._job_id}-'
    return {
      path.name
      for path in self._snapshot_dir.iterdir()
      if path.name.startswith(prefix)
    }

  def shared_bytes(self) -> int:
    """How much that is."""
    total = 0
    for name in self.shared_memory():
      # Directories are renamed all the time: those that are gone are skipped.
      for parent, _, files in os.walk(self._snapshot_dir / name):
        for file in files:
          with contextlib.suppress(FileNotFoundError):
            total += os.lstat(os.path.join(parent, file)).st_blocks * 512
    return total

  def resident_bytes(self) -> int:
    """Memory of what outlives workers: launcher, lighthouse and agents."""
    total = 0
    agents = self._commands('lighthouse') + self._commands('agent')
    for process in (self._process, *agents):
      with contextlib.suppress(psutil.NoSuchProcess):
        total += process.memory_info().rss
    return total

  def orphans(self) -> list[psutil.Process]:
    """Processes that were of the job and live on without it."""
    return processes_with(f'--job_log_dir={self.job_log_dir}')

  def lighthouses(self) -> list[psutil.Process]:
    """Lighthouses that the launcher started, also when it is gone."""
    return [
      process
      for process in processes_with(f'--parent_pid={self.pid}')
      if 'lighthouse' in process.cmdline()[:4]
    ]

  # --- waiting

  def wait_until(
    self, what: str, condition: Callable[[], Any], *, timeout_s: float = 120.0
  ) -> Any:
    """Waits for something to become true, and returns it."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
      if found := condition():
        return found
      if self._popen.poll() is not None:
        if found := condition():
          return found
        raise AssertionError(
          f'The job ended with {self._popen.returncode} before {what}:\n'
          f'{self.log()[-6000:]}'
        )
      time.sleep(0.02)
    raise AssertionError(
      f'No {what} within {timeout_s} s.\n{self.log()[-6000:]}'
    )

  def wait_for_step(
    self, step: int, *, generation: int = 0, timeout_s: float = 120.0
  ) -> None:
    """Waits until all workers of a generation have done `step` steps."""
    self.wait_until(
      f'step {step} of generation {generation}',
      lambda: self.generation() >= generation and self.step() >= step,
      timeout_s=timeout_s,
    )

  def generation(self) -> int:
    """The generation of the workers."""
    return max((w['generation'] for w in self.workers()), default=-1)

  def wait_for_event(
    self, event: str, *, after: int = 0, timeout_s: float = 120.0, **fields: Any
  ) -> dict[str, Any]:
    """Waits for an event at or after the `after`-th line of the log."""

    def find() -> dict[str, Any] | None:
      for found in self.events()[after:]:
        if found['event'] == event and fields.items() <= found.items():
          return found
      return None

    return self.wait_until(f'event {event}', find, timeout_s=timeout_s)

  def wait_for_new_steps(self, *, after_generation: int) -> None:
    """Waits until a later generation has done steps of its own."""
    self.wait_until(
      f'a step after generation {after_generation}',
      lambda: any(
        event['event'] == 'first step'
        and event['generation'] > after_generation
        for event in self.events()
      ),
    )

  def wait_for_save(self, *, timeout_s: float = 20.0) -> None:
    """Waits until a checkpoint is being written, if one is soon."""
    deadline_s = time.monotonic() + timeout_s
    directory = self.job_log_dir / 'checkpoints'
    while time.monotonic() < deadline_s:
      if any(name.startswith('tmp_') for name in os.listdir(directory)):
        return
      time.sleep(0.001)

  def wait(self, *, timeout_s: float = 120.0) -> int:
    """Waits for the end of the job; its exit status."""
    try:
      return self._popen.wait(timeout_s)
    except subprocess.TimeoutExpired:
      raise AssertionError(
        f'The job still runs after {timeout_s} s.\n{self.log()[-6000:]}'
      ) from None

  # --- hurting

  def kill_worker(
    self, rank: int, *, number: signal.Signals = signal.SIGKILL
  ) -> Fault:
    """Sends a worker a signal."""
    worker = self.wait_until(
      f'a worker of rank {rank}',
      lambda: next((w for w in self.workers() if w['rank'] == rank), None),
    )
    return self._hurt(
      f'{number.name} to rank {rank}', worker['pid'], number, worker['agent']
    )

  def kill_host(self, name: str) -> Fault:
    """Kills an agent and all it has started, and takes its memory away."""
    pid = self.agent(name).pid
    fault = self._hurt(f'loss of {name}', pid, signal.SIGKILL, name)
    # At once: the host that takes its place must not find it.
    for memory in self.shared_memory():
      if memory.endswith(f'-{name}'):
        gone = self._snapshot_dir / f'gone-{memory}'
        (self._snapshot_dir / memory).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    return fault

  def kill_agent(self, name: str) -> Fault:
    """Kills an agent, and so its worker; the memory of the host stays."""
    pid = self.agent(name).pid
    return self._hurt(f'kill of the agent of {name}', pid, signal.SIGKILL, name)

  def kill_lighthouse(self) -> Fault:
    """Kills the lighthouse."""
    (process,) = self._commands('lighthouse')
    return self._hurt('loss of the lighthouse', process.pid, signal.SIGKILL)

  def leave(self, name: str) -> Fault:
    """Asks a host to go."""
    pid = self.agent(name).pid
    return self._hurt(f'{name} leaves', pid, signal.SIGTERM, name)

  def stop(self) -> Fault:
    """Asks the whole job to stop."""
    return self._hurt('stop', self._popen.pid, signal.SIGTERM)

  def agent(self, name: str) -> psutil.Process:
    """The agent of a host."""
    (process,) = [
      process
      for process in self._commands('agent')
      if f'--name={name}' in process.cmdline()
    ]
    return process

  def _commands(self, command: str) -> list[psutil.Process]:
    found = []
    for process in self._process.children():
      with contextlib.suppress(psutil.NoSuchProcess):
        if command in process.cmdline()[:4]:
          found.append(process)
    return found

  def _hurt(self, what: str, pid: int, number: int, host: str = '') -> Fault:
    fault = Fault(what, time.time(), self.step(), host)
    with contextlib.suppress(ProcessLookupError):  # it was faster
      os.kill(pid, number)
    self.faults.append(fault)
    return fault

  def _family(self) -> list[psutil.Process]:
    family = [*self.orphans(), *self.lighthouses()]
    with contextlib.suppress(psutil.NoSuchProcess):
      family += [*self._process.children(recursive=True), self._process]
    return family


def processes_with(word: str) -> list[psutil.Process]:
  """All others that have a word in their command line."""
  found = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
      if process.pid != os.getpid() and word in process.cmdline():
        found.append(process)
  return found


def free_port() -> int:
  """A port of this machine that nobody listens on."""
  with socket.socket() as sock:
    sock.bind(('127.0.0.1', 0))
    return sock.getsockname()[1]


def wait_for(condition: Callable[[], Any], *, timeout_s: float) -> None:
  """Waits for something to become true."""
  deadline_s = time.monotonic() + timeout_s
  while not condition():
    assert time.monotonic() < deadline_s, f'not within {timeout_s} s'
    time.sleep(0.05)


def final_arrays(job_log_dir: pathlib.Path) -> str:
  """A digest of the arrays of the last checkpoint."""
  last = max(job_log_dir.glob('checkpoints/checkpoint_*[0-9]'))
  total = hashlib.sha256()
  for path in sorted(last.glob('*.data')):
    # Behind the page that says which attempt to save wrote it.
    total.update(path.name.encode() + path.read_bytes()[4096:])
  return total.hexdigest()


def losses(job_log_dir: pathlib.Path) -> list[dict[str, float]]:
  """Step, loss and batch of every step, as they were written down."""
  lines = (job_log_dir / 'metrics' / 'train.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  return [
    {name: row[name] for name in ('step', 'loss', 'batch_ids')} for row in rows
  ]
