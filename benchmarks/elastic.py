"""How long a job stands still when something dies, and what a snapshot costs.

    python -m benchmarks.elastic                      # all, about 15 minutes
    python -m benchmarks.elastic --sections workers   # under 5 minutes each

Three local hosts train KjvTiny. Each fault is timed from the signal to the
first step done after it, by the clock of this machine. Beside it stands what
a user has without agents: notice it, end the job, start it again, go on from
the last checkpoint. Every line is printed as soon as it is known.

Sections: workers (killed and stuck), hosts (lost with their memory, and taken
in again), restart (without agents), cost (steps/s with and without snapshots).
"""

import argparse
import collections
import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import psutil

from tests.chaos import harness

_SNAPSHOT_STEPS = 10
_SAVE_STEPS = 50
_WATCHDOG_S = 5
_KNOBS = (
  'task_p.train.eval_interval_steps=1000000',
  f'task_p.train.save_interval_steps={_SAVE_STEPS}',
)
# 17 M parameters with Adam's two moments: 208 MB of float32.
_LARGE = (
  'MODEL_DIM=688',
  'NUM_LAYERS=3',
  'NUM_HEADS=8',
  'BATCH_SIZE=4',
  'task_p.train.eval_interval_steps=1000000',
  'task_p.train.save_interval_steps=1000000',
)
_MOST_S = 120.0  # for anything that is waited for


def main() -> None:
  """Prints the tables."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument(
    '--sections', nargs='+', default=list(_SECTIONS), choices=list(_SECTIONS)
  )
  options = parser.parse_args()
  # A request to end must run what ends the jobs.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
  print(
    f'{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, jax '
    f'{importlib.metadata.version("jax")}, '
    f'python {sys.version.split()[0]}, {os.cpu_count()} cpus, '
    f'{options.rounds} rounds'
  )
  for section in options.sections:
    begun_s = time.monotonic()
    print(f'\n{section}', flush=True)
    with tempfile.TemporaryDirectory() as directory:
      _SECTIONS[section](pathlib.Path(directory), options.rounds)
    print(f'  ({section} took {time.monotonic() - begun_s:.0f} s)', flush=True)


class _Table:
  """Recovery times by fault, against their bounds."""

  def __init__(self) -> None:
    self._times_s: dict[str, list[float]] = collections.defaultdict(list)
    self._lost: dict[str, list[int]] = collections.defaultdict(list)
    self._bounds_s: dict[str, float | None] = {}

  def add(
    self, what: str, time_s: float, lost: int, bound_s: float | None
  ) -> None:
    """Takes note of one recovery, and prints it."""
    self._times_s[what].append(time_s)
    self._lost[what].append(lost)
    self._bounds_s[what] = bound_s
    print(f'    {what}: {time_s:.2f} s, {lost} steps lost', flush=True)

  def show(self) -> None:
    """Prints the medians."""
    for what, times_s in self._times_s.items():
      bound_s = self._bounds_s[what]
      median_s = statistics.median(times_s)
      verdict = ''
      if bound_s is not None:
        verdict = f'  bound {bound_s:.0f} s: ' + (
          'held' if median_s < bound_s else 'MISSED'
        )
      print(
        f'  {what:<38} median {median_s:5.2f} s ({min(times_s):.2f} to '
        f'{max(times_s):.2f}, n {len(times_s)}), steps lost '
        f'{self._lost[what]}{verdict}',
        flush=True,
      )


# --- faults


def _workers(root: pathlib.Path, rounds: int) -> None:
  with _elastic_job(root) as job, _memory_growth(job):
    table = _Table()
    for index in range(rounds):
      for what, (hurt, bound_s) in _WORKER_FAULTS.items():
        _settle(job)
        time_s, lost, _ = _recovery(job, hurt, index)
        table.add(what, time_s, lost, bound_s)
    table.show()


def _hosts(root: pathlib.Path, rounds: int) -> None:
  with _elastic_job(root) as job, _memory_growth(job):
    table = _Table()
    for index in range(rounds):
      _settle(job)
      seen = len(job.events())
      time_s, lost, num_hosts = _recovery(
        job, lambda job, i: job.kill_host(f'host{i % 3}'), index
      )
      table.add('host lost with its memory', time_s, lost, 4.0)
      if num_hosts == 3:
        continue  # It was back before the others had formed.
      joined = job.wait_for_event('formed', after=seen, n=3)
      asked = job.wait_for_event('drain', after=seen)
      first = _first_step(job, seen, generation=joined['generation'])
      table.add(
        'a host joins: pause',
        first['time'] - asked['time'],
        joined['steps_lost'] or 0,
        3.0,
      )
    table.show()


@contextlib.contextmanager
def _elastic_job(root: pathlib.Path) -> Iterator[harness.Job]:
  with harness.Job(
    root / 'elastic',
    num_steps=1_000_000,
    snapshot_steps=_SNAPSHOT_STEPS,
    exp='KjvTiny',
    flags=[f'--watchdog_s={_WATCHDOG_S}'],
    settings=_KNOBS,
  ) as job:
    job.wait_for_step(_SNAPSHOT_STEPS + 5, timeout_s=_MOST_S)
    yield job


def _kill_cold(job: harness.Job, index: int) -> harness.Fault:
  """Kills the standbys as well, so that nothing is warm."""
  workers = {w['agent']: w['pid'] for w in job.workers()}
  for name, worker in workers.items():
    for child in job.agent(name).children():
      if child.pid != worker:
        child.kill()
  return job.kill_worker(1 + index % 2)


def _kill_two(job: harness.Job, index: int) -> harness.Fault:
  del index
  first, second = (w['pid'] for w in job.workers() if w['rank'] in (1, 2))
  fault = job.kill_worker(1)
  time.sleep(0.3)
  with contextlib.suppress(ProcessLookupError):  # it ended with the first
    os.kill(second, signal.SIGKILL)
  assert first != second
  return fault


_Hurt = Callable[[harness.Job, int], harness.Fault]
_WORKER_FAULTS: dict[str, tuple[_Hurt, float | None]] = {
  'kill -9 of a worker': (lambda job, i: job.kill_worker(1 + i % 2), 2.0),
  'kill -9 of rank 0': (lambda job, _: job.kill_worker(0), 2.0),
  'kill -9 of a worker, no warm standby': (_kill_cold, 6.0),
  'two workers, 0.3 s apart': (_kill_two, None),
  f'worker stopped, watchdog {_WATCHDOG_S} s': (
    lambda job, i: job.kill_worker(1 + i % 2, number=signal.SIGSTOP),
    _WATCHDOG_S + 4.0,
  ),
}


def _recovery(
  job: harness.Job, hurt: _Hurt, index: int
) -> tuple[float, int, int]:
  """Hurts a job; seconds to its next step, steps lost and hosts after it."""
  seen, generation = len(job.events()), job.generation()
  fault = hurt(job, index)
  first = _first_step(job, seen, generation=generation + 1)
  formed = [
    event
    for event in job.events()[seen:]
    if event['event'] == 'formed' and event['generation'] > generation
  ]
  lost = sum(event['steps_lost'] or 0 for event in formed[:1])
  return first['time'] - fault.time_s, lost, formed[0]['n']


def _first_step(job: harness.Job, seen: int, *, generation: int) -> dict:
  """The first step of that generation or a later one."""
  return job.wait_until(
    f'first step of generation {generation}',
    lambda: next(
      (
        event
        for event in job.events()[seen:]
        if event['event'] == 'first step' and event['generation'] >= generation
      ),
      None,
    ),
    timeout_s=_MOST_S,
  )


def _settle(job: harness.Job) -> None:
  """Waits until a snapshot is taken and every host has a warm standby."""
  job.wait_until(
    'three workers', lambda: len(job.workers()) == 3, timeout_s=_MOST_S
  )
  begun, generation = job.step(), job.generation()
  job.wait_until(
    'a snapshot of this generation',
    lambda: any(
      event['event'] == 'snapshot' and event['generation'] == generation
      for event in job.events()
    ),
    timeout_s=_MOST_S,
  )
  job.wait_until(
    'some steps and warm standbys',
    lambda: job.step() >= begun + 3 and _has_standbys(job),
    timeout_s=_MOST_S,
  )


def _has_standbys(job: harness.Job) -> bool:
  """Whether every host has a standby that has done all its imports.

  One that waits for its plan uses no processor time.
  """
  workers = {w['agent']: w['pid'] for w in job.workers()}
  with contextlib.suppress(psutil.NoSuchProcess, ValueError):
    standbys = [
      child
      for name, pid in workers.items()
      for child in job.agent(name).children()
      if child.pid != pid
    ]
    if len(workers) < 3 or len(standbys) < len(workers):
      return False
    before = [sum(standby.cpu_times()[:2]) for standby in standbys]
    time.sleep(1.0)
    after = [sum(standby.cpu_times()[:2]) for standby in standbys]
    return min(before) > 0.5 and before == after
  return False


@contextlib.contextmanager
def _memory_growth(job: harness.Job) -> Iterator[None]:
  """Prints by how much what outlives workers has grown."""
  _settle(job)
  before = job.resident_bytes(), job.shared_bytes()
  yield
  _settle(job)
  after = job.resident_bytes(), job.shared_bytes()
  for what, old, new in zip(
    ('launcher, lighthouse and agents', 'shared memory'),
    before,
    after,
    strict=True,
  ):
    print(
      f'  {what}: {old / 2**20:.1f} MiB before {len(job.faults)} faults, '
      f'{new / 2**20:.1f} MiB after',
      flush=True,
    )


# --- without agents


def _restarts(root: pathlib.Path, rounds: int) -> None:
  """Somebody notices at once, which is the best case."""
  table = _Table()
  process = _plain(root)
  try:
    for index in range(rounds):
      # In the middle between two saves, as a fault is on average.
      target = (index + 1) * _SAVE_STEPS + _SAVE_STEPS // 2
      _wait_for(lambda t=target: _last_step(root) >= t)
      before, fault_s = _last_step(root), time.time()
      _kill_all(process)
      process = _plain(root)
      _wait_for(lambda b=before: 0 <= _last_step(root) < b)
      took_s = time.time() - fault_s
      table.add(
        'kill all, restart', took_s, before - _last_step(root) + 1, None
      )
  finally:
    _kill_all(process)
  table.show()


def _plain(job_log_dir: pathlib.Path) -> subprocess.Popen:
  with open(job_log_dir / 'launch.log', 'ab') as log:
    return subprocess.Popen(
      [
        *(sys.executable, '-m', 'paxlike.main', 'launch', '--local=3', '--'),
        *('--exp=KjvTiny', '--mode=train', f'--job_log_dir={job_log_dir}'),
        '--set=NUM_TRAIN_STEPS=1000000',
        '--set=task_p.train.summary_interval_steps=1',
        *(f'--set={setting}' for setting in _KNOBS),
      ],
      cwd=harness.ROOT,
      env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''},
      stdout=log,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )


def _kill_all(process: subprocess.Popen) -> None:
  family = []
  with contextlib.suppress(psutil.NoSuchProcess):
    family = psutil.Process(process.pid).children(recursive=True)
  process.kill()
  process.wait()
  for child in family:
    with contextlib.suppress(psutil.NoSuchProcess):
      child.kill()
  psutil.wait_procs(family, timeout=10.0)


def _wait_for(condition: Callable[[], bool]) -> None:
  deadline_s = time.monotonic() + _MOST_S
  while not condition():
    if time.monotonic() > deadline_s:
      raise TimeoutError('the plain job does not get on')
    time.sleep(0.02)


def _last_step(job_log_dir: pathlib.Path) -> int:
  path = job_log_dir / 'metrics' / 'train.jsonl'
  try:
    lines = path.read_text().splitlines()
    return json.loads(lines[-1])['step'] if lines else -1
  except (FileNotFoundError, ValueError):
    return -1


# --- what a snapshot costs


def _cost(root: pathlib.Path, rounds: int) -> None:
  """Steps/s of two jobs by turns, one with snapshots, the other without.

  Both are started once; by turns one is stopped while the other goes on, so
  that what is compared is seconds apart.
  """
  with contextlib.ExitStack() as stack:
    jobs = {
      steps: stack.enter_context(_large_job(root / f'every-{steps}', steps))
      for steps in (_SNAPSHOT_STEPS, 1_000_000)
    }
    for job in jobs.values():
      job.wait_for_step(5, timeout_s=_MOST_S)
      job.wait_until(
        'a standby', lambda j=job: len(j.agent('host0').children()) == 2
      )
      _pause([job])
    ratios = []
    for index in range(rounds):
      speeds = {}
      for steps in (*jobs, *reversed(jobs)) if index % 2 else tuple(jobs):
        speeds[steps] = _speed(jobs[steps])
      ratio = speeds[_SNAPSHOT_STEPS] / speeds[1_000_000]
      ratios.append(ratio)
      print(
        f'    {speeds[_SNAPSHOT_STEPS]:.3f} steps/s with, '
        f'{speeds[1_000_000]:.3f} without: {ratio:.3f}',
        flush=True,
      )
    blocked_s = [
      event['blocked_s']
      for event in jobs[_SNAPSHOT_STEPS].events()
      if event['event'] == 'snapshot'
    ][3:]  # The first three touch their memory.
    held_bytes = jobs[_SNAPSHOT_STEPS].shared_bytes()
    _resume(list(jobs.values()))
  print(
    f'  steps/s with a snapshot each {_SNAPSHOT_STEPS} steps over without: '
    f'median {statistics.median(ratios):.3f} ({min(ratios):.3f} to '
    f'{max(ratios):.3f}), bound 0.97; the loop stands still for '
    f'{statistics.median(blocked_s) * 1e3:.0f} ms a snapshot of '
    f'{held_bytes / 3e6:.0f} MB, a bare copy of as much takes '
    f'{_bare_copy_s(held_bytes // 3) * 1e3:.0f} ms',
    flush=True,
  )


def _bare_copy_s(size_bytes: int) -> float:
  """How long one thread copies so much between memory it has touched."""
  source, target = np.ones(size_bytes, np.uint8), np.ones(size_bytes, np.uint8)
  times_s = []
  for _ in range(5):
    begun_s = time.perf_counter()
    np.copyto(target, source)
    times_s.append(time.perf_counter() - begun_s)
  return statistics.median(times_s)


def _large_job(
  job_log_dir: pathlib.Path, snapshot_steps: int
) -> contextlib.AbstractContextManager[harness.Job]:
  return harness.Job(
    job_log_dir,
    num_hosts=1,
    num_steps=1_000_000,
    snapshot_steps=snapshot_steps,
    exp='KjvTiny',
    flags=['--watchdog_s=1000', '--silence_s=1000'],
    settings=_LARGE,
  )


def _speed(job: harness.Job, num_steps: int = 2 * _SNAPSHOT_STEPS) -> float:
  """Steps/s over a whole number of snapshots."""
  _resume([job])
  begun = job.step() + 2
  job.wait_for_step(begun, timeout_s=_MOST_S)
  begun, begun_s = job.step(), time.monotonic()
  job.wait_for_step(begun + num_steps, timeout_s=_MOST_S)
  speed = (job.step() - begun) / (time.monotonic() - begun_s)
  _pause([job])
  return speed


def _pause(jobs: Sequence[harness.Job]) -> None:
  _signal(jobs, signal.SIGSTOP)


def _resume(jobs: Sequence[harness.Job]) -> None:
  _signal(jobs, signal.SIGCONT)


def _signal(jobs: Sequence[harness.Job], number: signal.Signals) -> None:
  for job in jobs:
    for worker in job.workers():
      os.kill(worker['pid'], number)


_SECTIONS: dict[str, Callable[[pathlib.Path, int], None]] = {
  'workers': _workers,
  'hosts': _hosts,
  'restart': _restarts,
  'cost': _cost,
}


if __name__ == '__main__':
  main()
