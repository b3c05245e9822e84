"""What the training loop costs on top of the step that it runs.

    python benchmarks/step_overhead.py [--rounds=9]

The training job, with its summaries, input thread and checks, against a bare
Python loop over the same compiled step with the same batches already on the
device. Both run in turn, several rounds; printed are the medians and the
median of the ratios of neighbours.
"""

import argparse
import functools
import statistics
import tempfile
import time

import fiddle as fdl
import jax
import numpy as np
from absl import logging

from paxlike import inputs, models, parallel, programs, reporting, tasks
from paxlike.runners import train

_WARM_STEPS = 100
_BATCH_SIZE = 64


def make_task(width: int, num_steps: int) -> tasks.Task:
  """A perceptron whose step takes longer the wider it is."""
  return fdl.build(
    fdl.Config(
      tasks.ClassificationTask,
      model=fdl.Partial(
        models.MlpClassifier,
        input_shape=(64,),
        num_classes=10,
        hidden_dims=(width, width),
      ),
      learner=fdl.Config(
        tasks.Learner, schedule=fdl.Config(tasks.Constant, value=1e-3)
      ),
      train=fdl.Config(
        tasks.TrainParams,
        num_train_steps=num_steps,
        save_interval_steps=10 * num_steps,
        eval_interval_steps=10 * num_steps,
      ),
    )
  )


def make_input() -> inputs.Input:
  """A thousand made-up digits in memory."""
  rng = np.random.default_rng(0)
  return inputs.ArraysInput(
    name='digits',
    batch_size=_BATCH_SIZE,
    is_training=True,
    arrays={
      'inputs': rng.normal(size=(1000, 64)).astype(np.float32),
      'labels': rng.integers(0, 10, 1000).astype(np.int32),
    },
  )


def job_s(width: int, num_steps: int) -> float:
  """Seconds a step of the training job, between two of its summaries."""
  task = make_task(width, _WARM_STEPS + num_steps)
  with tempfile.TemporaryDirectory() as directory:
    train.train_and_evaluate_spmd_model(task, make_input(), directory)
    lines = reporting.read_metrics(directory, 'train')
  first = next(line for line in lines if line['step'] == _WARM_STEPS)
  return (lines[-1]['wall_time'] - first['wall_time']) / num_steps


def bare_s(width: int, num_steps: int) -> float:
  """Seconds a step of a hand-written loop over the same step."""
  task = make_task(width, _WARM_STEPS + num_steps)
  mesh = parallel.make_mesh(parallel.MeshConfig())
  partitioner = parallel.Partitioner(mesh)
  state = programs.TrainProgram(task, partitioner).init_state()
  step = jax.jit(
    functools.partial(programs.steps.train_step, task), donate_argnums=0
  )
  source = make_input()
  batches = [
    partitioner.put_batch(source.read(i, range(_BATCH_SIZE)), _BATCH_SIZE)
    for i in range(_WARM_STEPS + num_steps)
  ]
  for batch in batches[:_WARM_STEPS]:
    state, output = step(state, batch)
  jax.block_until_ready(output)
  start_s = time.perf_counter()
  for batch in batches[_WARM_STEPS:]:
    state, output = step(state, batch)
  jax.block_until_ready(output)
  return (time.perf_counter() - start_s) / num_steps


def main() -> None:
  """Prints one table row a step length."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--rounds', type=int, default=9)
  parser.add_argument('--widths', type=int, nargs='+', default=[1400, 3000])
  options = parser.parse_args()
  logging.set_verbosity('warning')
  print(f'jax {jax.__version__}, {jax.devices()}')
  print('| width | bare ms a step | job ms a step | ratio (spread) |')
  print('|---|---|---|---|')
  for width in options.widths:
    num_steps = 400 if width < 2000 else 100
    bare, job = [], []
    for _ in range(options.rounds):
      bare.append(bare_s(width, num_steps))
      job.append(job_s(width, num_steps))
    ratios = sorted(j / b for b, j in zip(bare, job, strict=True))
    print(
      f'| {width} | {statistics.median(bare) * 1e3:.2f} '
      f'| {statistics.median(job) * 1e3:.2f} '
      f'| {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f}) |',
      flush=True,
    )


if __name__ == '__main__':
  main()
