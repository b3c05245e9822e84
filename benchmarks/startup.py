"""What it costs to start: CPU seconds of whole processes.

    python benchmarks/startup.py [--rounds=5]

Help, listing and printing a config; and a training run of one step, saved and
reported, with an empty and with a filled compilation cache, against a bare
script that imports jax and flax, compiles the same step and runs it once.
The cases take turns; printed are medians. CPU seconds count all threads, those
of the compiler included, and stand still while others use the machine.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

# No registry, no Fiddle, no input, no checkpoint, no summaries: the step alone.
_BARE = """
import jax, functools, numpy as np
from flax import nnx
from paxlike import models, tasks
from paxlike.programs import steps
model = functools.partial(
  models.TransformerLm, vocab_size=256, model_dim=128, num_layers=4, num_heads=4
)
learner = tasks.Learner(
  schedule=tasks.WarmupCosine(peak=4e-3, warmup_steps=50, end_fraction=0.05),
  optimizer=functools.partial(tasks.adam, weight_decay=0.1),
)
train = tasks.TrainParams(num_train_steps=1)
task = tasks.LanguageModelTask(model=model, learner=learner, train=train)
state = jax.jit(task.init_state)(jax.random.key(0))
ids = np.zeros((16, 256), np.int32)
weights = np.ones((16, 256), np.float32)
batch = dict(
  ids=ids, targets=ids, weights=weights, example_weights=weights[:, 0],
  example_id=ids[:, 0],
)
step = jax.jit(functools.partial(steps.train_step, task), donate_argnums=0)
jax.block_until_ready(step(state, batch))
"""


def cpu_s(
  arguments: Sequence[str], environment: dict[str, str] | None = None
) -> float:
  """CPU seconds of one process, of its children none."""
  process = subprocess.Popen(
    [sys.executable, *arguments],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    env={**os.environ, **(environment or {})},
  )
  assert process.stderr is not None
  said = process.stderr.read()
  _, status, usage = os.wait4(process.pid, 0)
  process.returncode = os.waitstatus_to_exitcode(status)
  if process.returncode:
    raise RuntimeError(f'{arguments} failed:\n{said}')
  return usage.ru_utime + usage.ru_stime


def measure(directory: pathlib.Path, round_: int) -> dict[str, float]:
  """One round of all cases."""
  program = ('-m', 'paxlike.main')
  cache = directory / f'cache_{round_}'

  def one_step(number: int) -> float:
    job_log_dir = directory / f'job_{round_}_{number}'
    seconds = cpu_s(
      (
        *program,
        '--exp=KjvTiny',
        '--mode=train',
        f'--job_log_dir={job_log_dir}',
        f'--compilation_cache_dir={cache}',
        '--set=task_p.train.num_train_steps=1',
      )
    )
    shutil.rmtree(job_log_dir)
    return seconds

  return {
    'help': cpu_s((*program, '--help')),
    'list': cpu_s((*program, 'list')),
    'dump_config': cpu_s((*program, '--exp=KjvTiny', '--dump_config')),
    'bare script': cpu_s(
      ('-c', _BARE), {'JAX_ENABLE_COMPILATION_CACHE': 'false'}
    ),
    'first start': one_step(1),
    'second start': one_step(2),
  }


def main() -> None:
  """Prints the table for docs/benchmarks.md."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--rounds', type=int, default=5)
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as directory:
    rounds = [
      measure(pathlib.Path(directory), i) for i in range(options.rounds)
    ]
  median = {
    name: statistics.median(r[name] for r in rounds) for name in rounds[0]
  }
  first_ratio = statistics.median(
    r['first start'] / r['bare script'] for r in rounds
  )
  second_ratio = statistics.median(
    r['second start'] / r['first start'] for r in rounds
  )
  print('| case | CPU s | bound | holds |')
  print('|---|---|---|---|')
  for name, bound_s in (('help', 0.7), ('list', 0.7), ('dump_config', 2.0)):
    holds = 'yes' if median[name] < bound_s else 'NO'
    print(f'| {name} | {median[name]:.2f} | < {bound_s} s | {holds} |')
  print(f'| bare script | {median["bare script"]:.2f} | | |')
  for name, ratio, bound, of in (
    ('first start', first_ratio, 1.5, 'bare script'),
    ('second start', second_ratio, 0.5, 'first start'),
  ):
    holds = 'yes' if ratio <= bound else 'NO'
    print(
      f'| {name} | {median[name]:.2f} = {ratio:.2f} of {of} | <= {bound} '
      f'| {holds} |'
    )


if __name__ == '__main__':
  main()
