"""How long a job stands still when something dies, and what a snapshot costs.

    python -m benchmarks.elastic            # the whole table, some minutes
    python -m benchmarks.elastic --rounds 3 --sections faults cost

Three local hosts train KjvTiny. Each fault is timed from the signal to the
first step done after it, by the clock of this machine. Beside it stands what
a user has without agents: notice it, end the job, start it again, go on from
the last checkpoint. Snapshot cost: steps/s with and without, in turns.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import psutil

from tests.chaos import harness

_SNAPSHOT_STEPS = 10
_SAVE_STEPS = 200
_KNOBS = (
  'MODEL_DIM=64',
  'NUM_LAYERS=2',
  'task_p.train.eval_interval_steps=1000000',
)
_WATCHDOG_S = 5


def main() -> None:
  """Prints the tables."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument(
    '--sections', nargs='+', default=['faults', 'restart', 'cost']
  )
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as directory:
    root = pathlib.Path(directory)
    if 'faults' in options.sections:
      _print('elastic', _faults(root / 'elastic', options.rounds))
    if 'restart' in options.sections:
      _print(
        'without: kill everything, restart, restore the last checkpoint',
        _restarts(root / 'plain', options.rounds),
      )
    if 'cost' in options.sections:
      _cost(root, options.rounds)


Row = tuple[str, float, int]  # what, seconds to the first step, steps lost


def _print(title: str, rows: list[Row]) -> None:
  print(f'\n{title}')
  for what in dict.fromkeys(row[0] for row in rows):
    times = [row[1] for row in rows if row[0] == what]
    lost = [row[2] for row in rows if row[0] == what]
    print(
      f'  {what:<44} median {statistics.median(times):6.2f} s  '
      f'(min {min(times):.2f}, max {max(times):.2f}, n {len(times)})  '
      f'steps lost {lost}',
      flush=True,
    )


def _faults(job_log_dir: pathlib.Path, rounds: int) -> list[Row]:
  rows: list[Row] = []
  with harness.Job(
    job_log_dir,
    num_steps=1_000_000,
    snapshot_steps=_SNAPSHOT_STEPS,
    exp='KjvTiny',
    flags=[f'--watchdog_s={_WATCHDOG_S}'],
    settings=_KNOBS,
  ) as job:
    job.wait_for_step(_SNAPSHOT_STEPS + 5, timeout_s=300.0)
    for index in range(rounds):
      for what, hurt in _KINDS.items():
        _settle(job)
        rows += _time_fault(job, what, hurt, index)
  return rows


def _kill_cold(job: harness.Job, index: int) -> harness.Fault:
  """Kills the standbys as well, so that nothing is warm."""
  for host in range(3):
    worker = {w['agent']: w['pid'] for w in job.workers()}[f'host{host}']
    for child in job.agent(f'host{host}').children():
      if child.pid != worker:
        child.kill()
  return job.kill_worker(1 + index % 2)


def _kill_two(job: harness.Job, index: int) -> harness.Fault:
  del index
  fault = job.kill_worker(1)
  time.sleep(0.3)
  if job.generation() >= 0:
    for worker in job.workers():
      if worker['rank'] == 2:
        try:
          os.kill(worker['pid'], signal.SIGKILL)
        except ProcessLookupError:
          break
  return fault


_KINDS: dict[str, Callable[[harness.Job, int], harness.Fault]] = {
  'kill -9 of a worker': lambda job, i: job.kill_worker(1 + i % 2),
  'kill -9 of rank 0': lambda job, _: job.kill_worker(0),
  'kill -9 of a worker, no warm standby': _kill_cold,
  'two workers, 0.3 s apart': _kill_two,
  f'worker stopped (watchdog {_WATCHDOG_S} s)': (
    lambda job, i: job.kill_worker(1 + i % 2, number=signal.SIGSTOP)
  ),
  'host lost with its memory': lambda job, i: job.kill_host(f'host{i % 3}'),
}


def _time_fault(
  job: harness.Job,
  what: str,
  hurt: Callable[[harness.Job, int], harness.Fault],
  index: int,
) -> list[Row]:
  seen = len(job.events())
  fault = hurt(job, index)
  formed = job.wait_for_event('formed', after=seen)
  first = job.wait_for_event('first step', after=seen)
  again = [e for e in job.events()[seen:] if e['event'] == 'formed']
  if len(again) > 1 and again[1]['time'] < first['time']:
    formed = again[1]
  rows = [(what, first['time'] - fault.time_s, formed['steps_lost'] or 0)]
  if formed['n'] < 3:  # it comes back, and is taken in
    joined = job.wait_for_event('formed', after=seen, n=3)
    asked = job.wait_for_event('drain', after=seen)
    firsts = job.wait_until(
      'the first step after the join',
      lambda: [
        e
        for e in job.events()[seen:]
        if e['event'] == 'first step' and e['time'] > joined['time']
      ],
    )
    pause_s = firsts[0]['time'] - asked['time']
    rows.append(('a host joins: pause', pause_s, joined['steps_lost'] or 0))
  return rows


def _settle(job: harness.Job) -> None:
  """Waits until a snapshot is taken and every host has a warm standby."""
  begun = job.step()
  job.wait_until('25 more steps', lambda: job.step() >= begun + 25)
  job.wait_until(
    'warm standbys',
    lambda: all(len(job.agent(f'host{i}').children()) == 2 for i in range(3)),
  )
  time.sleep(5.0)


def _plain(job_log_dir: pathlib.Path) -> subprocess.Popen:
  sets = [f'--set={setting}' for setting in _KNOBS]
  return subprocess.Popen(
    [
      *(sys.executable, '-m', 'paxlike.main', 'launch', '--local=3', '--'),
      *('--exp=KjvTiny', '--mode=train', f'--job_log_dir={job_log_dir}'),
      '--set=NUM_TRAIN_STEPS=1000000',
      f'--set=task_p.train.save_interval_steps={_SAVE_STEPS}',
      '--set=task_p.train.summary_interval_steps=1',
      *sets,
    ],
    cwd=harness.ROOT,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''},
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
  )


def _restarts(job_log_dir: pathlib.Path, rounds: int) -> list[Row]:
  """Somebody notices at once, which is the best case."""
  rows: list[Row] = []
  process = _plain(job_log_dir)
  try:
    for index in range(rounds):
      target = (index + 1) * _SAVE_STEPS + _SAVE_STEPS // 2
      _wait_for(lambda t=target: _last_step(job_log_dir) >= t)
      before, fault_s = _last_step(job_log_dir), time.time()
      _kill_all(process)
      process = _plain(job_log_dir)
      _wait_for(lambda b=before: 0 <= _last_step(job_log_dir) < b)
      rows.append(
        (
          'any fault',
          time.time() - fault_s,
          before - _last_step(job_log_dir) + 1,
        )
      )
  finally:
    _kill_all(process)
  return rows


def _kill_all(process: subprocess.Popen) -> None:
  family = psutil.Process(process.pid).children(recursive=True)
  process.kill()
  process.wait()
  for child in family:
    with contextlib.suppress(psutil.NoSuchProcess):
      child.kill()


def _wait_for(condition: Callable[[], bool], timeout_s: float = 600.0) -> None:
  deadline_s = time.monotonic() + timeout_s
  while not condition():
    if time.monotonic() > deadline_s:
      raise TimeoutError
    time.sleep(0.02)


def _last_step(job_log_dir: pathlib.Path) -> int:
  path = job_log_dir / 'metrics' / 'train.jsonl'
  try:
    lines = path.read_text().splitlines()
    return json.loads(lines[-1])['step'] if lines else -1
  except (FileNotFoundError, ValueError):
    return -1


def _cost(root: pathlib.Path, rounds: int) -> None:
  """Steps/s on one host with a state of 200 MB, snapshots on and off."""
  ratios = []
  for index in range(rounds):
    speeds = {}
    for steps in (_SNAPSHOT_STEPS, 1_000_000):
      with harness.Job(
        root / f'cost-{index}-{steps}',
        num_hosts=1,
        num_steps=60,
        snapshot_steps=steps,
        exp='KjvTiny',
        settings=[
          'MODEL_DIM=640',
          'NUM_LAYERS=3',
          'NUM_HEADS=8',
          'BATCH_SIZE=4',
          'task_p.train.eval_interval_steps=1000000',
          'task_p.train.save_interval_steps=1000000',
        ],
      ) as job:
        job.wait_for_step(5, timeout_s=600.0)
        begun, begun_s = job.step(), time.monotonic()
        job.wait_for_step(55, timeout_s=600.0)
        speeds[steps] = (job.step() - begun) / (time.monotonic() - begun_s)
        size = sum(
          path.stat().st_size
          for name in job.shared_memory()
          for path in (harness.SHARED_MEMORY / name).rglob('*.data')
        )
    ratio = speeds[_SNAPSHOT_STEPS] / speeds[1_000_000]
    ratios.append(ratio)
    print(
      f'  snapshots each {_SNAPSHOT_STEPS} steps: '
      f'{speeds[_SNAPSHOT_STEPS]:.3f} steps/s, without '
      f'{speeds[1_000_000]:.3f}: ratio {ratio:.3f} ({size / 2**20:.0f} MiB held)',
      flush=True,
    )
  print(f'snapshot cost: median ratio {statistics.median(ratios):.3f}')


if __name__ == '__main__':
  main()
