"""Reads the variables to evaluate, and nothing else, out of a checkpoint."""

import dataclasses

from absl import logging

from paxlike import checkpoint, programs
from paxlike.core import typing as ptyping
from paxlike.runners import session as sessions


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalVars:
  """What is evaluated or decoded with.

  Attributes:
    step: Updates done before; what the results are labelled with.
    mdl_vars: The variables, with averaged parameters where kept.
  """

  step: int
  mdl_vars: ptyping.PyTree


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


def eval_vars(
  session: sessions.Session,
  *,
  directory: str | None = None,
  step: int | None = None,
  allow_random_init: bool = False,
) -> EvalVars:
  """Restores what is evaluated, without reading the optimizer's state.

  Args:
    session: The job.
    directory: Directory of checkpoints; None: the job's own.
    step: Which of them; None: the newest.
    allow_random_init: Whether fresh parameters will do if there is none.

  Raises:
    CheckpointNotFoundError: There is no such checkpoint.
  """
  where = directory or session.checkpoint_dir
  with reader(session, where) as manager:
    if manager.latest_step() is None and allow_random_init:
      logging.warning('No checkpoint in %s: using FRESH parameters.', where)
      program = programs.TrainProgram(session.task, session.partitioner)
      return EvalVars(step=0, mdl_vars=program.init_state().eval_vars)
    return restore_step(session, manager, step)


def restore_step(
  session: sessions.Session,
  manager: checkpoint.CheckpointManager,
  step: int | None,
) -> EvalVars:
  """Restores the variables of one step from an open manager."""
  state = programs.abstract_state(session.task, session.partitioner)
  mdl_vars = dict(state.mdl_vars)
  target = {'mdl_vars': mdl_vars}
  if 'ema' in state.extra:
    del mdl_vars['params']
    target['extra'] = {'ema': state.extra['ema']}
  restored = manager.restore(target, step=step, allow_extra='.*')
  found = dict(restored.state['mdl_vars'])
  if 'ema' in state.extra:
    found['params'] = restored.state['extra']['ema']
  return EvalVars(step=restored.step, mdl_vars=found)
