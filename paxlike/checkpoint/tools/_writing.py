"""Commits a state that comes from elsewhere as one step of a directory."""

import os

from paxlike import sync
from paxlike.checkpoint import (
  _claims,
  _commit,
  _config,
  _history,
  _jobs,
  _layout,
  _staging,
  _state,
  _stores,
  _sweep,
)
from paxlike.checkpoint.tools import _bundle
from paxlike.core import clock as clocks
from paxlike.core import errors, fs

_CHECKPOINTS = 'checkpoints'


def save(
  bundle: _bundle.Bundle,
  file_system: fs.FileSystem,
  path: str,
  *,
  kind: str,
  step: int,
  clock: clocks.Clock = clocks.SYSTEM,
) -> str:
  """Writes a state by the same protocol as a trainer.

  Args:
    bundle: The state.
    file_system: Where to.
    path: Directory of all steps, or a job_log_dir that has one.
    kind: 'GDA', 'FLAX' or 'MULTI_HOST_FLAX'.
    step: Its number.
    clock: For names and the history.

  Returns:
    The path of the step.

  Raises:
    UsageError: The step is there, or a run is writing to the directory.
  """
  below = fs.join(path, _CHECKPOINTS)
  directory = below if file_system.is_dir(below) else path
  _check(file_system, directory, step)
  file_system.make_dirs(directory)
  names = _history.committed_names(file_system, directory)
  config = _config.CheckpointConfig(type=kind, async_save=False)
  place = _jobs.Place(
    directory=directory,
    file_system=file_system,
    world=sync.SoloWorld(),
    clock=clock,
    config=config,
    keep_policy=_config.KeepPolicy(),
    claim=_claims.Claim(file_system, directory, clock=clock),
  )
  values = tuple(bundle.read(i) for i in range(len(bundle.arrays)))
  state = _state.State(bundle.tree, bundle.arrays, values)
  staged, layouts = _stores.stage(
    _config.CheckpointType(kind),
    state,
    _staging.Arena(),
    step=step,
    process=0,
    file_system=file_system,
  )
  staged.fill()
  job = _jobs.Job(
    step=step,
    name=f'convert/{os.getpid()}/{step}',
    staged=staged,
    state=_state.State(bundle.tree, bundle.arrays, ()),
    layouts=layouts,
    items=bundle.items,
    metrics=bundle.metrics,
    records=tuple(_history.load(file_system, directory, names)),
    overwrite=False,
  )
  place.claim.take()
  try:
    _commit.Commit(place, job).run()
  finally:
    place.claim.release()
  return fs.join(directory, _layout.step_name(step))


def _check(file_system: fs.FileSystem, directory: str, step: int) -> None:
  if not file_system.is_dir(directory):
    return
  if step in _history.committed_names(file_system, directory):
    raise errors.UsageError(
      f'{directory} has a step {step} already. Choose another directory, or '
      'another number with --step.'
    )
  # Saving removes what earlier saves left, and one of these may be alive.
  unfinished = _sweep.litter(file_system, directory).unfinished
  if unfinished:
    raise errors.UsageError(
      f'{directory} is being written by a run, or was left by one that '
      f'crashed: {fs.base_name(unfinished[0])}. Choose another directory.'
    )
