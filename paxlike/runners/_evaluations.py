"""Evaluations of one state on several inputs, and where they are written."""

import contextlib
from collections.abc import Sequence
from typing import Any

from absl import logging

from paxlike import inputs, programs, reporting, tasks
from paxlike.core import typing as ptyping
from paxlike.runners import session as sessions


class TestSets:
  """Evaluates test inputs, writes `eval_test_<input>`; a context."""

  # Not a test case, whatever its name looks like to a test runner.
  __test__ = False

  def __init__(
    self,
    session: sessions.Session,
    sources: Sequence[inputs.Input],
    *,
    start_step: int | None,
  ):
    self._session = session
    self._sources = sources
    self._program = programs.EvalProgram(session.task, session.partitioner)
    self._writers = {
      source.name: reporting.SummaryWriter(
        session.job_log_dir,
        f'eval_test_{source.name}',
        enabled=session.is_writer,
        start_step=start_step,
      )
      for source in sources
    }

  def run(
    self, step: int, eval_vars: ptyping.PyTree
  ) -> dict[str, programs.EvalResult]:
    """Evaluates the variables of `step` on every input."""
    results = {}
    for source in self._sources:
      with self._session.world.progress.phase(f'eval {source.name}'):
        result = self._program.run(eval_vars, source)
      results[source.name] = result
      self._writers[source.name].scalars(step, result.scalars())
      self._writers[source.name].flush()
      logging.info('%s', summary_line(step, source.name, result))
    return results

  def __enter__(self) -> 'TestSets':
    return self

  def __exit__(self, *exception: object) -> None:
    with contextlib.ExitStack() as stack:
      for writer in self._writers.values():
        stack.callback(writer.close)


class Evaluations:
  """What a training job evaluates beside its steps; use it as a context.

  One training batch at each interval (`eval_train`), without taking it from
  training, and the test inputs if there are any.
  """

  def __init__(
    self,
    session: sessions.Session,
    test_sources: Sequence[inputs.Input],
    *,
    start_step: int,
  ):
    self._task = session.task
    self._session = session
    self._program = programs.EvalProgram(session.task, session.partitioner)
    self._writer = reporting.SummaryWriter(
      session.job_log_dir,
      'eval_train',
      enabled=session.is_writer,
      start_step=start_step,
    )
    self._tests = TestSets(session, test_sources, start_step=start_step)

  def due(self, step: int) -> bool:
    """Whether to evaluate after `step` updates."""
    train = self._task.train
    return step % train.eval_interval_steps == 0 or (
      step == train.num_train_steps
    )

  def run(self, step: int, state: tasks.TrainState, batch: Any) -> None:
    """Evaluates the state after `step` updates.

    Args:
      step: Updates done.
      state: The state; not given up.
      batch: The training batch of the last update, for `eval_train`.
    """
    with self._session.world.progress.phase('eval train'):
      result = self._program.run_batch(state.eval_vars, batch)
    self._writer.scalars(step, result.scalars())
    self._writer.flush()
    self._tests.run(step, state.eval_vars)

  def __enter__(self) -> 'Evaluations':
    return self

  def __exit__(self, *exception: object) -> None:
    with self._tests:
      self._writer.close()


def summary_line(step: int, name: str, result: programs.EvalResult) -> str:
  """One line for a person: the metrics of one evaluation."""
  values = result.scalars()
  count = int(values.pop('num_examples'))
  shown = '  '.join(f'{key} {value:.5g}' for key, value in values.items())
  return f'step {step}  {name}: {shown}  ({count} examples)'
