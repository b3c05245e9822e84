"""The eval job: evaluates checkpoints until training has ended."""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from paxlike import programs
from paxlike.core import errors
from paxlike.runners import (
  _claims,
  _evaluations,
  _follow,
  _mismatch,
  _restore,
  _table,
)
from paxlike.runners import session as sessions


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateResult:
  """What the eval job found at one step.

  Attributes:
    step: Updates done.
    results: What was found, by input name.
  """

  step: int
  results: Mapping[str, programs.EvalResult]


def evaluate_spmd_model(
  task_p: Any,
  eval_input_p: Any,
  job_log_dir: str,
  checkpoint_p: Any = None,
  restore_checkpoint_dir: str | None = None,
  restore_checkpoint_step: int | Sequence[int] | None = None,
  *,
  mesh_p: Any = None,
  follow: bool | None = None,
  recording: contextlib.AbstractContextManager[Any] | None = None,
) -> list[EvaluateResult]:
  """Evaluates checkpoints on every test input.

  Args:
    task_p: Config of a task, or a task.
    eval_input_p: Configs of the inputs to evaluate, or inputs.
    job_log_dir: Where everything of the job goes.
    checkpoint_p: How checkpoints are read; None: the defaults.
    restore_checkpoint_dir: Directory of checkpoints; None: the job's own.
    restore_checkpoint_step: Which of them, or several; None: the newest.
    mesh_p: How the job is split over devices; None: all in `data`.
    follow: Whether to evaluate each checkpoint as it comes, leaving out those
      that have results, until training has ended. None: unless a directory or
      a step is given.
    recording: Entered once all is checked, before the first thing is written.

  Returns:
    What was found at each step evaluated here, in that order.

  Raises:
    CheckpointNotFoundError: There is no checkpoint to evaluate.
    ConfigError: Some value is nonsense.
    UsageError: Another job writes the same results.
    FollowedJobError: The training job failed or vanished; all checkpoints
      that it left are evaluated.
  """
  steps = _follow.as_steps(restore_checkpoint_step)
  if follow is None:
    follow = restore_checkpoint_dir is None and steps == (None,)
  _follow.check(follow, steps)
  session = sessions.build(
    'eval', task_p, job_log_dir, mesh_p=mesh_p, checkpoint_p=checkpoint_p
  )
  sources = sessions.build_inputs(eval_input_p)
  if not sources:
    raise errors.ConfigError(
      'The experiment has no inputs to evaluate: input_p() gives none with '
      'is_training=False.'
    )
  found = []
  with contextlib.ExitStack() as stack:
    session.check_alone()
    if not follow:
      where = restore_checkpoint_dir or session.checkpoint_dir
      _restore.check(session, where, steps)
    if recording is not None:
      stack.enter_context(recording)
    progress = stack.enter_context(session.status())
    stack.enter_context(session.watchdog())
    fits = stack.enter_context(
      _mismatch.explained(session, task_p, restore_checkpoint_dir)
    )
    _claims.claim(session, _evaluations.metrics_names(sources))
    stop = functools.partial(_follow.stop_if_asked, session)
    tests = stack.enter_context(
      _evaluations.TestSets(session, sources, on_batch=stop)
    )
    if follow:
      checkpoints = _follow.follow(
        session, tests.journal, directory=restore_checkpoint_dir
      )
    else:
      checkpoints = _follow.asked(
        session,
        tests.journal.names,
        directory=restore_checkpoint_dir,
        steps=steps,
      )
    for due in stack.enter_context(contextlib.closing(checkpoints)):
      fits()
      progress.step = due.eval_vars.step
      results = tests.run(
        due.eval_vars.step,
        due.eval_vars.mdl_vars,
        saved_s=due.eval_vars.saved_s,
        names=due.names,
      )
      if session.is_writer:
        _table.show(progress.step, results)
      found.append(EvaluateResult(step=progress.step, results=results))
      del due  # or the variables of two steps would be in memory
  return found
