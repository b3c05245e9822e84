"""What a training job says of itself: summaries, metrics, a progress line."""

import math
import time
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging

from paxlike import inputs, programs, reporting, tasks
from paxlike.runners import session as sessions


class TrainReport:
  """Reports steps at their interval; use it as a context.

  Between two reports it touches neither the device nor a file.

  Attributes:
    start_step: Updates done when this job started.
  """

  def __init__(
    self,
    session: sessions.Session,
    source: inputs.Input,
    *,
    start_step: int,
  ):
    self.start_step = start_step
    self._train = session.task.train
    self._schedule = session.task.learner.schedule
    self._per_step = _units_per_step(source)
    self._writer = reporting.SummaryWriter(
      session.job_log_dir,
      'train',
      enabled=session.is_writer,
      start_step=start_step,
    )
    self._line = reporting.ProgressLine(
      num_steps=self._train.num_train_steps,
      start_step=start_step,
      tokens_per_step=self._per_step.get('tokens'),
      enabled=session.is_writer,
    )
    # Speed counts from the end of the first step: that one compiles.
    self._timed_step: int | None = None
    self._timed_s = 0.0

  def due(self, step: int) -> bool:
    """Whether the update that led to `step` is to be reported."""
    if self._timed_step is None:
      self._timed_step, self._timed_s = step, time.perf_counter()
    self._line.update(step)
    return (
      step % self._train.summary_interval_steps == 0
      or step == self._train.num_train_steps
    )

  def norms_due(self, step: int) -> bool:
    """Whether the norms of parameters are to be reported."""
    interval = self._train.norm_summary_interval_steps
    return interval is not None and step % interval == 0

  def write(
    self,
    step: int,
    output: programs.steps.TrainOutput,
    norms: Mapping[str, jax.Array] | None = None,
  ) -> programs.steps.TrainOutput:
    """Fetches and reports the update that led to `step`.

    Args:
      step: Updates done.
      output: What the update reports.
      norms: The norm of every parameter, where due.

    Returns:
      `output` on the host.
    """
    output = jax.device_get(output)
    norms_here = jax.device_get(dict(norms or {}))
    values: dict[str, Any] = {
      'loss': float(output.loss.value),
      'learning_rate': float(output.learning_rate),
      'grad_norm': float(output.grad_norm),
      **{name: float(m.value) for name, m in output.metrics.items()},
    }
    values |= {f'norm/{name}': float(norm) for name, norm in norms_here.items()}
    speed = self._steps_per_s(step)
    if speed is not None:
      values['steps_per_s'] = speed
      for unit, count in self._per_step.items():
        values[f'{unit}_per_s'] = speed * count
    self._writer.scalars(step, values)
    for name, numbers in output.per_example.items():
      self._writer.histogram(step, f'per_example/{name}', numbers)
    self._line.update(step, loss=values['loss'])
    return output

  def describe(self, abstract_state: tasks.TrainState) -> None:
    """Puts the parameters beside the summaries; says how learning will go."""
    params = abstract_state.mdl_vars['params']
    total = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    rows = [
      f'| {jax.tree_util.keystr(path, simple=True, separator="/")} '
      f'| {leaf.dtype} | {list(leaf.shape)} | {leaf.sharding.spec} |'
      for path, leaf in jax.tree.leaves_with_path(params)
    ]
    head = ['| parameter | dtype | shape | split |', '|---|---|---|---|']
    text = '\n'.join([f'{total:,} parameters', '', *head, *rows])
    self._writer.text(self.start_step, 'model', text)
    logging.info('The model has %s parameters.', f'{total:,}')
    describe = getattr(self._schedule, 'describe', None)
    if describe is not None:
      words = describe(self._train.num_train_steps)
      logging.info('The learning rate %s.', words)

  def saved(self, step: int, last_checkpoint: int | None) -> None:
    """Shows, at `step`, which step is the newest that is safe."""
    self._line.update(step, last_checkpoint=last_checkpoint)

  def flush(self) -> None:
    """Waits until everything reported is in the files."""
    self._writer.flush()

  def __enter__(self) -> 'TrainReport':
    return self

  def __exit__(self, *exception: object) -> None:
    with self._line:
      self._writer.close()

  def _steps_per_s(self, step: int) -> float | None:
    """Wall-clock speed since the last report; None right after compiling."""
    assert self._timed_step is not None
    now_s = time.perf_counter()
    done, elapsed_s = step - self._timed_step, now_s - self._timed_s
    self._timed_step, self._timed_s = step, now_s
    return done / elapsed_s if done and elapsed_s > 0 else None


def _units_per_step(source: inputs.Input) -> dict[str, int]:
  """Examples, and tokens if there are any, in one global batch."""
  spec = source.batch_spec
  units = {'examples': source.batch_size}
  if 'ids' in spec:
    units['tokens'] = math.prod(spec['ids'].shape)
  return units
