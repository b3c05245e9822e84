"""Evaluations of one state on several inputs, and where they are written."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from paxlike import inputs, programs, reporting, sync, tasks
from paxlike.core import errors, suggest
from paxlike.core import typing as ptyping
from paxlike.runners import _decoding, _follow, _journal, _restore, _table
from paxlike.runners import session as sessions

_PREFIX = 'eval_test'


def metrics_names(sources: Sequence[inputs.Input]) -> list[str]:
  """Of the results of evaluating these inputs."""
  return [f'{_PREFIX}_{source.name}' for source in sources]


class TestSets:
  """Evaluates test inputs, writes `eval_test_<input>`; a context.

  A step has one line of results at any time: a new one takes its place.
  """

  # Not a test case, whatever its name looks like to a test runner.
  __test__ = False

  def __init__(
    self,
    session: sessions.Session,
    sources: Sequence[inputs.Input],
    *,
    start_step: int | None = None,
    on_batch: Callable[[], None] | None = None,
    program: programs.EvalProgram | None = None,
  ):
    """Opens what is written to.

    Args:
      session: The job.
      sources: The inputs.
      start_step: Updates done when this training job started: later results
        are dropped. None, in an eval job, keeps all.
      on_batch: Called before each batch, such as to stop by raising.
      program: The evaluation step, if the caller has one compiled.
    """
    self._session = session
    self._sources = {source.name: source for source in sources}
    self._program = program or programs.EvalProgram(
      session.task, session.partitioner
    )
    self._on_batch = on_batch
    self.journal = _journal.Journal(
      session.job_log_dir, _PREFIX, list(self._sources)
    )
    self._stack = contextlib.ExitStack()
    self._writers = {}
    for name in self._sources:
      if start_step is not None:
        self.journal.forget_from(name, start_step + 1)
      # What has no line was not finished: its events, if any, are dropped.
      self._open(name, self.journal.last_step(name))

  @property
  def names(self) -> tuple[str, ...]:
    """The inputs, in their order."""
    return tuple(self._sources)

  def missing(self, step: int) -> list[str]:
    """The inputs that have no result for `step`."""
    return [n for n in self._sources if not self.journal.has(n, step)]

  def run(
    self,
    step: int,
    eval_vars: ptyping.PyTree,
    *,
    saved_s: float | None = None,
    names: Sequence[str] | None = None,
  ) -> dict[str, programs.EvalResult]:
    """Evaluates the variables of `step`.

    Args:
      step: Updates done.
      eval_vars: The variables.
      saved_s: When their checkpoint was saved; None if they are of none.
      names: On which inputs; None for all.
    """
    results = {}
    for name in self._sources if names is None else names:
      with self._session.world.progress.phase(f'eval {name}'):
        results[name] = self._program.run(
          eval_vars, self._sources[name], on_batch=self._on_batch
        )
      self._write(step, name, results[name], saved_s)
    return results

  def _write(
    self,
    step: int,
    name: str,
    result: programs.EvalResult,
    saved_s: float | None,
  ) -> None:
    if saved_s is not None and self.journal.is_started_over(
      name, step, saved_s
    ):
      self.journal.forget_from(name, step)
      self._writers[name].close()
      self._open(name, max(step - 1, 0))
    facts = {} if saved_s is None else {_journal.SAVED_S: saved_s}
    self._writers[name].scalars(step, result.scalars(), facts=facts)
    self._writers[name].flush()
    self.journal.mark(name, step, saved_s)

  def _open(self, name: str, start_step: int) -> None:
    self._writers[name] = self._stack.enter_context(
      reporting.SummaryWriter(
        self._session.job_log_dir,
        f'{_PREFIX}_{name}',
        enabled=self._session.is_writer,
        start_step=start_step,
        one_line_a_step=True,
      )
    )

  def __enter__(self) -> 'TestSets':
    return self

  def __exit__(self, *exception: object) -> None:
    self._stack.close()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """What a training job evaluates and decodes beside its steps.

  Attributes:
    test: Inputs to evaluate at `eval_interval_steps`.
    decode: Inputs to decode at `decode_interval_steps`.
    decode_params: How the outputs are written; None: the defaults.
  """

  test: Sequence[inputs.Input] = ()
  decode: Sequence[inputs.Input] = ()
  decode_params: reporting.DecodeParams | None = None

  @property
  def metrics_names(self) -> list[str]:
    """Of the results, some of which other jobs would write as well."""
    return [
      *metrics_names(self.test),
      *_decoding.metrics_names(self.decode),
    ]

  def check_best(self, metric: str) -> None:
    """Refuses to keep the best by what is never evaluated.

    Args:
      metric: '<input>/<metric>'; '' keeps no best.

    Raises:
      ConfigError: The input is not among those that are.
    """
    names = [each.name for each in self.test]
    if metric and metric.partition('/')[0] not in names:
      raise errors.ConfigError(
        f'task_p.train.save_best_metric is {metric!r}, <input>/<metric>, and '
        f'training evaluates the inputs {names}: no step would ever be the '
        'best. Give --eval_on_test, or one of these inputs.'
      )


class Evaluations:
  """Evaluates and decodes between train steps; use it as a context.

  One training batch at each interval (`eval_train`), without taking it from
  training, and what the plan says.
  """

  def __init__(self, session: sessions.Session, plan: Plan, *, start_step: int):
    self._train = session.task.train
    self._session = session
    self._plan = plan
    self._program = programs.EvalProgram(session.task, session.partitioner)
    self._writer = reporting.SummaryWriter(
      session.job_log_dir,
      'eval_train',
      enabled=session.is_writer,
      start_step=start_step,
    )
    self._tests = TestSets(
      session,
      plan.test,
      start_step=start_step,
      on_batch=lambda: _follow.stop_if_asked(session),
      program=self._program,
    )
    self._start_step = start_step
    self._found: tuple[int, dict[str, float]] = (0, {})
    self._decoder: _decoding.Decoder | None = None

  def due(self, step: int) -> bool:
    """Whether to evaluate after `step` updates."""
    return step % self._train.eval_interval_steps == 0 or (
      step == self._train.num_train_steps
    )

  def decode_due(self, step: int) -> bool:
    """Whether to decode after `step` updates."""
    interval = self._train.decode_interval_steps
    return bool(interval and step and self._plan.decode) and (
      step % (interval or 1) == 0 or step == self._train.num_train_steps
    )

  def run(self, step: int, state: tasks.TrainState, batch: Any) -> None:
    """Evaluates the state after `step` updates.

    Args:
      step: Updates done.
      state: The state; not given up.
      batch: The training batch of the last update, for `eval_train`.

    Raises:
      PreemptedError: The job was asked to stop.
    """
    with self._session.world.progress.phase('eval train'):
      result = self._program.run_batch(state.eval_vars, batch)
    self._writer.scalars(step, result.scalars())
    self._writer.flush()
    self._test(step, state, self._tests.names)

  def metrics_of(self, step: int) -> dict[str, float]:
    """What test inputs gave at `step`, as '<input>/<metric>'; maybe none."""
    found_step, found = self._found
    return found if found_step == step else {}

  def catch_up(self, step: int, state: tasks.TrainState) -> None:
    """Evaluates and decodes what a run that stopped at `step` had not done."""
    if step and self.due(step):
      missing = self._agreed(f'evaluate/{step}', self._tests.missing(step))
      self._test(step, state, missing)
    if self.decode_due(step):
      self.decode(step, state)

  def decode(self, step: int, state: tasks.TrainState) -> None:
    """Decodes what is not decoded yet with the state after `step` updates."""
    if self._decoder is None:
      self._decoder = _decoding.Decoder(
        self._session, self._plan.decode, self._plan.decode_params
      )
      self._decoder.forget_from(self._start_step + 1)
    journal = self._decoder.journal
    names = [name for name in journal.names if not journal.has(name, step)]
    eval_vars = _restore.EvalVars(step=step, mdl_vars=state.eval_vars)
    self._decoder.run(eval_vars, self._agreed(f'decode/{step}', names))

  def _agreed(self, name: str, names: Sequence[str]) -> list[str]:
    """What process 0 finds missing: the others may look at older files."""
    return sync.agree(f'{name}/missing', list(names), world=self._session.world)

  def _test(
    self, step: int, state: tasks.TrainState, names: Sequence[str]
  ) -> None:
    results = self._tests.run(step, state.eval_vars, names=names)
    self._found = (
      step,
      {
        f'{name}/{metric}': value
        for name, found in results.items()
        for metric, value in found.scalars().items()
      },
    )
    for name, found in results.items():
      logging.info('%s', _table.line(step, name, found))
    self._check_best(results)

  def _check_best(self, results: Mapping[str, programs.EvalResult]) -> None:
    best = self._train.save_best_metric
    _, known = self._found
    if best and best.partition('/')[0] in results and best not in known:
      raise errors.ConfigError(
        f'task_p.train.save_best_metric is {best!r}, which no evaluation '
        f'gives. {suggest.hint(best, list(known))} Nothing is lost: start '
        'again with another, and training goes on.'
      )

  def __enter__(self) -> 'Evaluations':
    return self

  def __exit__(self, *exception: object) -> None:
    with self._tests:
      self._writer.close()
