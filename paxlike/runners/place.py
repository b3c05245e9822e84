"""Whether the place that an eval or decode job reads from is there.

A mistyped directory must not come into being by being read, so this is asked
before anything of the job is written. Which steps are in it is `_follow`'s.
"""

import re
from collections.abc import Iterator

from absl import logging

from paxlike import checkpoint, sync
from paxlike.core import clock as clocks
from paxlike.core import errors, fs, suggest

_CHECKPOINTS = 'checkpoints'
_MANIFEST = 'MANIFEST'
_STEP = re.compile(r'checkpoint_\d+', re.ASCII)
_POLL_S = 0.5


def check(job_log_dir: str, restore_checkpoint_dir: str | None = None) -> None:
  """Refuses to read checkpoints where there are none.

  Args:
    job_log_dir: Of the job.
    restore_checkpoint_dir: Directory of checkpoints; None: the job's own.

  Raises:
    CheckpointNotFoundError: There is no such directory.
  """
  where, flag, hint = restore_checkpoint_dir, 'restore_checkpoint_dir', ''
  if where is None:
    where, flag = fs.join(job_log_dir, _CHECKPOINTS), 'job_log_dir'
  if fs.for_path(where).is_dir(where):
    return
  if restore_checkpoint_dir is None:
    hint = _near(job_log_dir)
    if _steps_in(job_log_dir):
      hint = (
        ' Steps are in the directory itself: give '
        f'--restore_checkpoint_dir={job_log_dir} and another --job_log_dir.'
      )
  else:
    hint = _near(where)
  raise errors.CheckpointNotFoundError(
    f'There are no checkpoints: {where} is no directory.{hint} Train first, '
    f'or give the directory of a training as --{flag}.'
  )


def refuse_bare_steps(job_log_dir: str) -> None:
  """Refuses to train where steps lie that the training would not look at.

  Args:
    job_log_dir: Of the job, which keeps its steps in `checkpoints/`.

  Raises:
    UsageError: It is a step, or there are steps in it and none in
      `checkpoints/`.
  """
  files = fs.for_path(job_log_dir)
  for directory in _and_parents(job_log_dir):
    if files.exists(fs.join(directory, _MANIFEST)):
      step = int(fs.base_name(directory).rpartition('_')[2])
      raise errors.UsageError(
        f'{directory} is one step of a training, and goes when that is swept. '
        'Give another --job_log_dir; to begin with this step: '
        f'--restore_checkpoint_dir={fs.parent_dir(directory)} '
        f'--restore_checkpoint_step={step}'
      )
  own = fs.join(job_log_dir, _CHECKPOINTS)
  steps = _steps_in(job_log_dir)
  if steps and not _steps_in(own):
    raise errors.UsageError(
      f'{job_log_dir} has checkpoints in itself, up to step {steps[-1]}, and a '
      f'training looks for its own in {own}: it would begin anew. To begin '
      f'with them: --restore_checkpoint_dir={job_log_dir} and another '
      f'--job_log_dir. To go on with them, move them to {own}.'
    )


def _and_parents(directory: str) -> Iterator[str]:
  """A directory, what it is in, and so on, as far as names of steps go."""
  while fs.parent_dir(directory) != directory and directory != '.':
    if _STEP.fullmatch(fs.base_name(directory)):
      yield directory
    directory = fs.parent_dir(directory)


def _steps_in(directory: str) -> list[int]:
  if not fs.for_path(directory).is_dir(directory):
    return []
  # Each process looks for itself, or not at all.
  with checkpoint.CheckpointManager(
    directory, read_only=True, world=sync.SoloWorld()
  ) as manager:
    return manager.steps()


def wait_for(
  job_log_dir: str,
  *,
  world: sync.World,
  timeout_s: float,
  clock: clocks.Clock = clocks.SYSTEM,
) -> None:
  """Waits until a training has made its directory.

  Args:
    job_log_dir: The directory.
    world: The processes of this job, which may be asked to stop.
    timeout_s: Longest wait.
    clock: Where time comes from.

  Raises:
    FollowedJobError: Nobody made it in that time.
    PreemptedError: This job was asked to stop.
  """
  files = fs.for_path(job_log_dir)
  if files.is_dir(job_log_dir):
    return
  hint = _near(job_log_dir)
  logging.info(
    'There is no directory %s yet; waiting %g s for a training to make it.%s '
    'To end at once: --nofollow.',
    job_log_dir,
    timeout_s,
    hint,
  )
  began_s = clock.monotonic_s()
  while not files.is_dir(job_log_dir):
    if world.stop.requested():
      raise errors.PreemptedError(
        f'Stopped on request, while waiting for {job_log_dir}.'
      )
    if clock.monotonic_s() - began_s >= timeout_s:
      raise errors.FollowedJobError(
        f'No training has made the directory {job_log_dir} for {timeout_s:g} '
        f's.{hint} To wait longer: --set '
        'task_p.train.follow_timeout_s=SECONDS.'
      )
    clock.sleep_s(min(_POLL_S, timeout_s))


def _near(directory: str) -> str:
  """A sentence that names a directory beside it of nearly the same name."""
  parent = fs.parent_dir(directory)
  files = fs.for_path(parent)
  try:
    beside = files.list_dir(parent)
  except OSError:
    return ''
  for name in suggest.nearest(fs.base_name(directory), beside):
    path = fs.join(parent, name)
    if path != directory and files.is_dir(path):
      return f' Did you mean {path}?'
  return ''
