"""Barriers: ours against `multihost_utils.sync_global_devices`.

    python benchmarks/sync.py [--rounds=200] [--processes 2 3 4]

Starts 2, 3 and 4 processes on this machine and lets them meet by turns in our
barrier, in JAX's own host barrier and in the device collective that
`sync_global_devices` is, so that noise hits all alike. Prints medians in
milliseconds and the ratio to `sync_global_devices`.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

_ROOT = pathlib.Path(__file__).parents[1]
_KINDS = ('barrier', 'broadcast', 'gather', 'sync_global_devices')


def main() -> None:
  """Runs the benchmark and prints a table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--rounds', type=int, default=200)
  parser.add_argument('--processes', type=int, nargs='+', default=[2, 3, 4])
  parser.add_argument('--worker', action='store_true', help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.worker:
    _worker(options.rounds)
    return
  print('| processes | ' + ' | '.join(f'`{kind}`' for kind in _KINDS), end='')
  print(' | barrier / sync_global_devices |')
  print('|---' * (len(_KINDS) + 2) + '|')
  for count in options.processes:
    medians_ms = _measure(count, options.rounds)
    ratio = medians_ms['barrier'] / medians_ms['sync_global_devices']
    cells = [f'{medians_ms[kind]:.2f} ms' for kind in _KINDS]
    print(f'| {count} | {" | ".join(cells)} | {ratio:.2f} |', flush=True)


def _measure(count: int, rounds: int) -> dict[str, float]:
  """Median milliseconds of each kind, as process 0 sees it."""
  command = [sys.executable, '-m', 'paxlike.main', 'launch']
  command += [f'--local={count}', '--', sys.executable, __file__]
  ended = subprocess.run(
    [*command, '--worker', f'--rounds={rounds}'],
    env={
      **os.environ,
      'JAX_PLATFORMS': 'cpu',
      'PYTHONPATH': str(_ROOT),
      'TF_CPP_MIN_LOG_LEVEL': '2',
    },
    stdout=subprocess.PIPE,
    text=True,
    check=True,
    timeout=300,
  )
  found = {}
  for line in ended.stdout.splitlines():
    words = line.split()
    if len(words) == 3 and words[0] == '[0]' and words[1] in _KINDS:
      found[words[1]] = float(words[2])
  return found


def _worker(rounds: int) -> None:
  """One process: meets in each way by turns, then prints its medians."""
  from jax.experimental import multihost_utils

  from paxlike import sync

  with sync.bootstrap() as world:
    first = b'x' * 100 if world.process_index == 0 else None
    ways = {
      'barrier': lambda i: world.barrier(f'barrier/{i}'),
      'broadcast': lambda i: world.broadcast(f'broadcast/{i}', first),
      'gather': lambda i: world.gather(f'gather/{i}', b'y' * 100),
      'sync_global_devices': lambda i: multihost_utils.sync_global_devices(
        f'devices/{i}'
      ),
    }
    taken_s = {kind: [] for kind in ways}
    for index in range(rounds + 10):
      for kind, meet in ways.items():
        # All start together, so that nobody's lateness is counted.
        world.barrier(f'before/{kind}/{index}')
        started_s = time.perf_counter()
        meet(index)
        taken_s[kind].append(time.perf_counter() - started_s)
    for kind, each_s in taken_s.items():
      median_ms = statistics.median(each_s[10:]) * 1e3
      print(f'{kind} {median_ms:.4f}', flush=True)


if __name__ == '__main__':
  main()
