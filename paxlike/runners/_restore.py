"""Reads the variables to evaluate, and nothing else, out of a checkpoint."""

import dataclasses
from collections.abc import Sequence

from paxlike import checkpoint, programs
from paxlike.core import typing as ptyping
from paxlike.runners import session as sessions


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalVars:
  """What is evaluated or decoded with.

  Attributes:
    step: Updates done before; what the results are labelled with.
    mdl_vars: The variables, with averaged parameters where kept.
    saved_s: When the checkpoint was saved, seconds since 1970 UTC: with the
      step it tells two checkpoints apart. None if there is no checkpoint.
    bytes_read: Bytes of arrays that this process read.
  """

  step: int
  mdl_vars: ptyping.PyTree
  saved_s: float | None = None
  bytes_read: int = 0


def reader(
  session: sessions.Session, directory: str
) -> checkpoint.CheckpointManager:
  """A manager that writes nothing into `directory`."""
  return checkpoint.CheckpointManager(
    directory,
    config=session.checkpoint_config,
    world=session.world,
    read_only=True,
  )


def check(
  session: sessions.Session, directory: str, steps: Sequence[int | None]
) -> None:
  """Refuses steps that are not there, before anything is written.

  Args:
    session: The job.
    directory: Directory of checkpoints.
    steps: Which ones; None is the newest.

  Raises:
    CheckpointNotFoundError: One is not there.
  """
  with reader(session, directory) as manager:
    there = manager.steps()
    for step in steps:
      if not there or step not in (None, *there):
        manager.restore({}, step=step)  # says what there is


def fresh(session: sessions.Session) -> EvalVars:
  """Variables that have learnt nothing."""
  program = programs.TrainProgram(session.task, session.partitioner)
  return EvalVars(step=0, mdl_vars=program.init_state().eval_vars)


def restore_step(
  session: sessions.Session,
  manager: checkpoint.CheckpointManager,
  step: int | None,
) -> EvalVars:
  """Restores what is evaluated of one step, not the optimizer's state.

  Args:
    session: The job.
    manager: Where from; opened by `reader`.
    step: Which one; None is the newest.

  Raises:
    CheckpointNotFoundError: There is no such checkpoint.
    CheckpointDamagedError: Its bytes are not those that were written.
    RestoreMismatchError: It is of another model.
  """
  state = programs.abstract_state(session.task, session.partitioner)
  mdl_vars = dict(state.mdl_vars)
  target = {'mdl_vars': mdl_vars}
  if 'ema' in state.extra:
    del mdl_vars['params']
    target['extra'] = {'ema': state.extra['ema']}
  manager.steps()  # so that the records are of now
  restored = manager.restore(target, step=step, allow_extra='.*')
  found = dict(restored.state['mdl_vars'])
  if 'ema' in state.extra:
    found['params'] = restored.state['extra']['ema']
  times = {record.step: record.timestamp_s for record in manager.records()}
  return EvalVars(
    step=restored.step,
    mdl_vars=found,
    saved_s=times.get(restored.step),
    bytes_read=restored.report.bytes_read,
  )
