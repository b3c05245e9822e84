"""Where a training run begins: the newest checkpoint, another job's, or new."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator

from absl import logging

from paxlike import checkpoint, inputs, programs, tasks
from paxlike.core import errors
from paxlike.runners import _restore, place
from paxlike.runners import session as sessions

INPUT_STATE = 'input_state'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
  """What a training run begins with.

  Attributes:
    state: The state.
    step: Updates done.
    position: The first batch to read.
  """

  state: tasks.TrainState
  step: int
  position: int


def check(
  session: sessions.Session,
  source: inputs.Input,
  restore_dir: str | None,
  restore_step: int | None,
) -> None:
  """Refuses what can be known to be wrong before anything is written.

  Args:
    session: The job.
    source: The training input.
    restore_dir: Directory of checkpoints for a job that has none of its own.
    restore_step: Which one.

  Raises:
    ConfigError: There is a step and no directory for it, or the batch cannot
      be parted as asked for.
    UsageError: There are steps where a training would not look for them.
    CheckpointNotFoundError: There is no such checkpoint.
  """
  programs.steps.check_micro_batches(
    session.task.learner.num_micro_batches,
    num_rows=session.partitioner.padded_size(source.batch_size),
  )
  if session.is_writer:
    place.refuse_bare_steps(session.job_log_dir)
  if restore_dir is None and restore_step is None:
    return
  with _restore.reader(session, session.checkpoint_dir) as own:
    if own.latest_step() is not None:
      return
  if restore_dir is None:
    raise errors.ConfigError(
      f'--restore_checkpoint_step={restore_step} needs '
      f'--restore_checkpoint_dir: {session.checkpoint_dir} has no checkpoint.'
    )
  place.check(session.job_log_dir, restore_dir)
  _restore.check(session, restore_dir, [restore_step])


@contextlib.contextmanager
def telling(news: str) -> Iterator[None]:
  """Says what is new of the config, once it is known to fit what is restored.

  Args:
    news: A line; may be empty.

  Raises:
    RestoreMismatchError: It does not; the line comes first.
  """
  try:
    yield
  except errors.RestoreMismatchError as error:
    if not news:
      raise
    # What is refused leaves the record as it was.
    told = re.sub(r' \(kept as [^)]*\)', '', news)
    raise errors.RestoreMismatchError(
      f'{told}.\n{error}\nTo train with it from the start, give another '
      '--job_log_dir.'
    ) from error
  if news:
    logging.warning('%s.', news)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begin:
  """Finds the state to begin with.

  Attributes:
    session: The job.
    manager: The job's own checkpoints.
    source: The training input.
    restore_dir: Directory of checkpoints for a job that has none of its own.
    restore_step: Which of those; None: the newest.
  """

  session: sessions.Session
  manager: checkpoint.CheckpointManager
  source: inputs.Input
  restore_dir: str | None
  restore_step: int | None

  def __call__(self, program: programs.TrainProgram) -> Start:
    """The state of this job, of another one, or a fresh one.

    Raises:
      CheckpointNotFoundError: The other job has no such checkpoint.
      InputMismatchError: The data are not those that it was trained on.
    """
    where = self.session.checkpoint_dir
    with self.session.world.progress.phase('restore'):
      newest = self.manager.latest_step()
      if newest is not None:
        self._check_own(newest)
        restored = self.manager.restore(program.abstract_state)
      elif self.restore_dir is not None:
        where = self.restore_dir
        with _restore.reader(self.session, where) as other:
          only = self.session.checkpoint_config.restore_only
          if only is not None:
            return self._part_of(other, program, only)
          restored = self._all_of(other, program)
      else:
        return self._fresh(program)
    start = self.resume(restored)
    logging.info(
      'Going on from step %d of %s, batch %d.',
      start.step,
      where,
      start.position,
    )
    return start

  def resume(self, restored: checkpoint.Restored) -> Start:
    """What was restored, with where the input goes on."""
    position = restored.step
    if INPUT_STATE in restored.items:
      position = inputs.check_state(self.source, restored.items[INPUT_STATE])
    return Start(state=restored.state, step=restored.step, position=position)

  def _all_of(
    self, other: checkpoint.CheckpointManager, program: programs.TrainProgram
  ) -> checkpoint.Restored:
    try:
      return other.restore(program.abstract_state, step=self.restore_step)
    except errors.RestoreMismatchError as error:
      raise errors.RestoreMismatchError(
        f'{error}\nTo begin at step 0 with its parameters alone: --set '
        "checkpoint_p.restore_only='mdl_vars/.*'"
      ) from error

  def _part_of(
    self,
    other: checkpoint.CheckpointManager,
    program: programs.TrainProgram,
    only: str,
  ) -> Start:
    """A fresh state with some leaves of another job's."""
    abstract = program.abstract_state
    restored = other.restore(abstract, step=self.restore_step, only=only)
    logging.info(
      'Starting at step 0 with %s of step %d of %s.',
      only,
      restored.step,
      other.directory,
    )
    if not restored.report.restored:
      raise errors.ConfigError(
        f'checkpoint_p.restore_only={only!r} matches no leaf of step '
        f'{restored.step} in {other.directory}. See their names: paxlike ckpt '
        f'show {other.directory}'
      )
    state = dataclasses.replace(restored.state, step=abstract.step)
    return Start(state=program.complete(state), step=0, position=0)

  def _check_own(self, newest: int) -> None:
    """Says what becomes of the flags, once the job has steps of its own.

    A job that is started again with the flags it began with must go on, not
    begin again from another job's checkpoint.
    """
    if self.restore_dir is not None:
      logging.warning(
        'This job has gone on to step %d by itself: it is not started again '
        'from %s.',
        newest,
        self.restore_dir,
      )
    elif self.restore_step not in (None, newest):
      raise errors.ConfigError(
        f'--restore_checkpoint_step={self.restore_step}, but '
        f'{self.session.checkpoint_dir} goes up to step {newest}. To go back, '
        'delete the later steps with paxlike ckpt rm, or start in another '
        '--job_log_dir with this one as --restore_checkpoint_dir.'
      )

  def _fresh(self, program: programs.TrainProgram) -> Start:
    logging.info('Starting from fresh parameters.')
    with self.session.world.progress.phase('compile'):
      return Start(state=program.init_state(), step=0, position=0)
