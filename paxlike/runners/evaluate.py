"""The eval job: evaluates checkpoints until training has ended."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from paxlike import programs
from paxlike.core import errors
from paxlike.runners import _evaluations, _restore
from paxlike.runners import session as sessions


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateResult:
  """What the eval job found.

  Attributes:
    step: The last step that was evaluated.
    results: What was found at it, by input name.
  """

  step: int
  results: Mapping[str, programs.EvalResult]


def evaluate_spmd_model(
  task_p: Any,
  eval_input_p: Any,
  job_log_dir: str,
  checkpoint_p: Any = None,
  restore_checkpoint_dir: str | None = None,
  restore_checkpoint_step: int | None = None,
  *,
  mesh_p: Any = None,
) -> EvaluateResult:
  """Evaluates a checkpoint on every test input.

  Args:
    task_p: Config of a task, or a task.
    eval_input_p: Configs of the inputs to evaluate, or inputs.
    job_log_dir: Where everything of the job goes.
    checkpoint_p: How checkpoints are read; None: the defaults.
    restore_checkpoint_dir: Directory of checkpoints; None: the job's own.
    restore_checkpoint_step: Which of them; None: the newest.
    mesh_p: How the job is split over devices; None: all in `data`.

  Returns:
    What was found.

  Raises:
    CheckpointNotFoundError: There is no checkpoint to evaluate.
    ConfigError: Some value is nonsense.
  """
  session = sessions.build(
    'eval', task_p, job_log_dir, mesh_p=mesh_p, checkpoint_p=checkpoint_p
  )
  sources = sessions.build_inputs(eval_input_p)
  if not sources:
    raise errors.ConfigError(
      'The experiment has no inputs to evaluate: input_p() gives none with '
      'is_training=False.'
    )
  with (
    session.status() as progress,
    _evaluations.TestSets(session, sources, start_step=None) as tests,
  ):
    restored = _restore.eval_vars(
      session, directory=restore_checkpoint_dir, step=restore_checkpoint_step
    )
    progress.step = restored.step
    return EvaluateResult(
      step=restored.step, results=tests.run(restored.step, restored.mdl_vars)
    )
