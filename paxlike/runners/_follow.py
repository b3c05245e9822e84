"""Checkpoints to evaluate or decode: those asked for, or each as it comes.

Promises of a follower: each checkpoint once, in order, the final one always;
it ends when training has ended and nothing is left. What is done is known by
the journal, so a restart repeats and skips nothing. Process 0 looks and
decides for all. Nothing is written where the checkpoints are but leases on
those it is to work on, and where that is forbidden it does without.
"""

import collections
import contextlib
import dataclasses
import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from absl import logging

from paxlike import checkpoint
from paxlike.core import clock as clocks
from paxlike.core import errors
from paxlike.runners import _journal, _restore, _watch
from paxlike.runners import session as sessions

# How long process 0 looks before it tells the others that there is nothing.
_ROUND_S = 5.0
_RETRY_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_MAX_DAMAGED_READS = 2


@dataclasses.dataclass(frozen=True)
class Due:
  """A checkpoint to work on.

  Attributes:
    eval_vars: Its variables.
    names: The inputs that it is not done for.
    steps: All that there were when it was chosen; None if it was asked for.
  """

  eval_vars: _restore.EvalVars
  names: tuple[str, ...]
  steps: tuple[int, ...] | None = None


def as_steps(step: int | Sequence[int] | None) -> tuple[int | None, ...]:
  """The steps asked for; (None,) for the newest."""
  if step is None or isinstance(step, int):
    return (step,)
  return tuple(dict.fromkeys(step)) or (None,)  # each once


def check(follow: bool, steps: Sequence[int | None]) -> None:
  """Refuses to follow from given steps on.

  Raises:
    UsageError: Both are asked for.
  """
  if follow and any(step is not None for step in steps):
    raise errors.UsageError(
      f'--follow takes every checkpoint as it comes, so it cannot go with '
      f'--restore_checkpoint_step={steps[0]}. Leave one of them out.'
    )


def asked(
  session: sessions.Session,
  names: Sequence[str],
  *,
  directory: str | None,
  steps: Sequence[int | None],
  allow_random_init: bool = False,
) -> Generator[Due, None, None]:
  """One pass: the steps that were asked for, in that order.

  Args:
    session: The job.
    names: The inputs.
    directory: Directory of checkpoints; None: the job's own.
    steps: Which ones; None is the newest.
    allow_random_init: Whether fresh parameters will do if there is none.

  Raises:
    CheckpointNotFoundError: There is no such checkpoint.
    CheckpointDamagedError: One is damaged; the others have been given out.
  """
  where = directory or session.checkpoint_dir
  with _restore.reader(session, where) as manager:
    if allow_random_init and manager.latest_step() is None:
      logging.warning('No checkpoint in %s: using FRESH parameters.', where)
      yield Due(_restore.fresh(session), tuple(names))
      return
    damage: list[errors.CheckpointDamagedError] = []
    for step in steps:
      try:
        eval_vars = _restore.restore_step(session, manager, step)
      except errors.CheckpointDamagedError as error:
        # The same on every process, and no reason to leave out the others.
        logging.error('%s', error)
        damage.append(error)
        continue
      yield Due(eval_vars, tuple(names))
      del eval_vars  # or the variables of two steps would be in memory
    if damage:
      raise damage[0]


def follow(
  session: sessions.Session,
  journal: _journal.Journal,
  *,
  directory: str | None = None,
  clock: clocks.Clock = clocks.SYSTEM,
) -> Generator[Due, None, None]:
  """Every checkpoint, as it comes, until training has ended.

  Args:
    session: The job; its task says which checkpoints and how long to wait.
    journal: What is done; whoever works on a checkpoint marks it there.
    directory: Directory of checkpoints; None: the job's own. Beside it is the
      status of the training job.
    clock: Where time comes from.

  Raises:
    FollowedJobError: Training failed or vanished, or its last checkpoint is
      damaged. All that could be worked on has been.
    PreemptedError: This job was asked to stop.
  """
  where = directory or session.checkpoint_dir
  with _opened(session, where, clock) as manager:
    follower = _Follower(session, journal, manager, clock)
    with contextlib.closing(follower):
      yield from follower.run()


def _opened(
  session: sessions.Session, directory: str, clock: clocks.Clock
) -> checkpoint.CheckpointManager:
  """A reader; what cannot be read just now is tried again."""
  for wait_s in _RETRY_S:
    try:
      return _restore.reader(session, directory)
    except (errors.CheckpointError, OSError) as error:
      logging.warning(
        '%s cannot be read (%s); again in %g s.', directory, error, wait_s
      )
      clock.sleep_s(wait_s)
  return _restore.reader(session, directory)


class _Follower:
  """The loop of one follower, the same on every process."""

  def __init__(
    self,
    session: sessions.Session,
    journal: _journal.Journal,
    manager: checkpoint.CheckpointManager,
    clock: clocks.Clock,
  ):
    self._session = session
    self._files = journal.files
    self._manager = manager
    self._clock = clock
    self._world = session.world.scoped('follow')
    self._num_reads: collections.Counter[int] = collections.Counter()
    self._watch = (
      _watch.Watch(session, journal, manager.directory, clock)
      if session.is_writer
      else None
    )

  def run(self) -> Iterator[Due]:
    """Yields what is due until training has ended."""
    number = 0
    is_idle = True
    while True:
      stop_if_asked(self._session)
      number += 1
      decision = self._decide(number)
      if 'end' in decision:
        if decision['end']:
          raise errors.FollowedJobError(decision['end'])
        if is_idle:
          self._tell_idle(decision['newest'])
        return
      if 'step' not in decision:
        continue
      is_idle = False
      with self._looking_ahead():
        eval_vars = self._restore(decision['step'])
        if eval_vars is not None:
          saved_s = decision['saved_s']
          eval_vars = dataclasses.replace(eval_vars, saved_s=saved_s)
          yield Due(
            eval_vars, tuple(decision['names']), tuple(decision['steps'])
          )
        del eval_vars  # or two would be in memory

  def _tell_idle(self, newest: int | None) -> None:
    """Says why nothing at all was done."""
    if self._watch is None:
      return
    if newest is None:
      logging.info(
        'Training is done, and there is no checkpoint in %s: nothing to do.',
        self._manager.directory,
      )
      return
    logging.info(
      'Step %d is %s already (%s) and training is done: nothing to do. To do '
      'it again: --nofollow.',
      newest,
      'decoded' if self._session.mode == 'decode' else 'evaluated',
      ', '.join(self._files),
    )

  def close(self) -> None:
    """Lets go of what was opened."""
    if self._watch is not None:
      self._watch.close()

  def _looking_ahead(self) -> contextlib.AbstractContextManager[None]:
    if self._watch is None:
      return contextlib.nullcontext()
    return self._watch.looking_ahead()

  def _decide(self, number: int) -> dict[str, Any]:
    """What process 0 finds there is to do, on every process."""
    message = None
    if self._watch is not None:
      message = json.dumps(self._watch.wait(_ROUND_S)).encode()
    return json.loads(self._world.broadcast(f'decision/{number}', message))

  def _restore(self, step: int) -> _restore.EvalVars | None:
    """The variables of a step; None if it is gone, damaged, or to be retried.

    Every process sees the same error, or none.
    """
    self._num_reads[step] += 1
    num_reads = self._num_reads[step]
    try:
      return _restore.restore_step(self._session, self._manager, step)
    except errors.CheckpointNotFoundError:
      logging.info('Step %d was deleted before it could be read.', step)
      self._pause(_watch.LOCAL_POLL_S)
    except errors.RestoreMismatchError:
      raise
    except errors.CheckpointDamagedError as error:
      if num_reads >= _MAX_DAMAGED_READS:
        logging.error('Step %d is DAMAGED and passed over: %s', step, error)
        if self._watch is not None:
          self._watch.pass_over(step)
    except (errors.CheckpointError, OSError) as error:
      if num_reads > len(_RETRY_S):
        raise
      wait_s = _RETRY_S[num_reads - 1]
      logging.warning(
        'Step %d cannot be read (%s); again in %g s.', step, error, wait_s
      )
      self._pause(wait_s)
    return None

  def _pause(self, duration_s: float) -> None:
    if self._watch is not None:  # the others wait for what it finds
      self._clock.sleep_s(duration_s)


def stop_if_asked(session: sessions.Session) -> None:
  """Ends the job where all its processes do, if it was asked to stop.

  Raises:
    PreemptedError: It was.
  """
  if session.world.stop.poll():
    raise errors.PreemptedError(
      'Stopped on request; start the job again, it goes on where it was.'
    )
