"""What a follower sees: checkpoints that are due, and the training job."""

import contextlib
import threading
import zlib
from collections.abc import Iterator
from typing import Any

from absl import logging

from paxlike import checkpoint, sync
from paxlike.core import clock as clocks
from paxlike.core import errors, fs
from paxlike.runners import _journal, _trainer
from paxlike.runners import session as sessions

# Short enough to see each of two checkpoints a second.
LOCAL_POLL_S = 0.2
_REMOTE_POLL_S = 5.0
# A directory that cannot be read for so long will not be.
_MAX_BLIND_S = 30.0

_Due = list[tuple[checkpoint.Record, list[str]]]


class Watch:
  """Looks for process 0, so that all processes hear of the same."""

  def __init__(
    self,
    session: sessions.Session,
    journal: _journal.Journal,
    directory: str,
    clock: clocks.Clock,
  ):
    """Begins to watch the training job.

    Args:
      session: The job.
      journal: What is done.
      directory: Directory of checkpoints.
      clock: Where time comes from.
    """
    train = session.task.train
    self._session = session
    self._journal = journal
    self._directory = directory
    self._clock = clock
    self._policy = train.follow_policy
    self._fs = fs.for_path(directory)
    self._poll_s = _REMOTE_POLL_S if fs.is_remote(directory) else LOCAL_POLL_S
    # One of its own, since the other one's looks are all processes'.
    self._manager = checkpoint.CheckpointManager(
      directory,
      config=session.checkpoint_config,
      world=sync.SoloWorld(),
      read_only=True,
    )
    self._max_held = train.follow_max_held
    self._following = checkpoint.Following(
      directory,
      _name_of(session),
      max_steps=self._max_held,
      duration_s=session.checkpoint_config.lease_s,
    )
    self._held_after: int | None = None
    self._names: list[str] | None = None
    self._records: list[checkpoint.Record] = []
    self._waiting: list[checkpoint.Record] = []
    self._is_there = False
    self._has_ended = False
    self._seen_s = clock.monotonic_s()
    self._passed_over: set[tuple[int, float]] = set()
    self._trainer = _trainer.Trainer(
      fs.parent_dir(directory),
      num_train_steps=train.num_train_steps,
      timeout_s=train.follow_timeout_s,
      clock=clock,
    )

  def wait(self, duration_s: float) -> dict[str, Any]:
    """Waits until there is something to do, at most so long.

    Returns:
      {'step', 'saved_s', 'names'} of a checkpoint to work on, and all
      'steps'; or {'end': what is wrong or '', 'newest': the last step or
      None}; or nothing.

    Raises:
      CheckpointError: The directory cannot be read, and that for long.
    """
    until_s = self._clock.monotonic_s() + duration_s
    while True:
      # Before the steps: one that has ended has saved its last before.
      end = self._trainer.look()
      due = self._look(is_last=end is not None)
      newest = self._records[-1].step if self._records else None
      if end is None:
        self._trainer.tell(newest)
      if due:
        record, names = due[0]
        return {
          'step': record.step,
          'saved_s': record.timestamp_s,
          'names': names,
          'steps': [r.step for r in self._records],
        }
      if end is not None and due is not None:
        error = end.error(newest) or self._final_error()
        self._has_ended = True
        return {'end': error, 'newest': newest}
      is_asked = bool(self._session.world.stop.requested())
      if is_asked or self._clock.monotonic_s() >= until_s:
        return {}
      self._clock.sleep_s(self._poll_s)

  @contextlib.contextmanager
  def looking_ahead(self) -> Iterator[None]:
    """Meanwhile goes on looking, so that what is to be done next stays held.

    Where the newest alone is wanted, there is no next.
    """
    if self._policy != 'all':
      yield
      return
    over = threading.Event()

    def run() -> None:
      while not over.wait(self._poll_s):
        with contextlib.suppress(errors.CheckpointError):  # told by `wait`
          self._look(is_last=False)

    thread = threading.Thread(target=run, name='follower-watch', daemon=True)
    thread.start()
    try:
      yield
    finally:
      over.set()
      thread.join()

  def pass_over(self, step: int) -> None:
    """Leaves a checkpoint alone from now on."""
    self._passed_over |= {_id(r) for r in self._records if r.step == step}

  def close(self) -> None:
    """Lets go of what was opened.

    What is not done, and what comes, stays held for a while unless training
    has ended: whoever goes on where this job stopped is to find it.
    """
    if self._has_ended:
      self._following.release()
    self._manager.close()

  def _look(self, *, is_last: bool) -> _Due | None:
    """Finds what is due, with one listing if nothing is new, and holds it.

    Returns:
      That, in the order of the work; None if the directory cannot be read.
    """
    try:
      self._refresh(is_last=is_last)
      due = self._due()
      if self._policy == 'all':
        self._tell_swept()
        self._hold([record for record, _ in due])
    except (errors.CheckpointError, OSError) as error:
      blind_s = self._clock.monotonic_s() - self._seen_s
      if blind_s > _MAX_BLIND_S:
        raise errors.CheckpointError(
          f'{self._directory} cannot be read for {blind_s:.0f} s: {error}'
        ) from error
      logging.warning('%s cannot be read just now: %s', self._directory, error)
      self._names = None
      return None
    self._seen_s = self._clock.monotonic_s()
    return due

  def _refresh(self, *, is_last: bool) -> None:
    try:
      names = self._fs.list_dir(self._directory)
      self._is_there = True
    except FileNotFoundError:
      names = []
      self._is_there = False
    # In a store a step may be committed without a new name.
    if names == self._names and self._fs.atomic_rename and not is_last:
      return
    self._manager.steps()
    self._names, self._records = names, self._manager.records()

  def _due(self) -> _Due:
    """What is to be worked on, in that order, with the inputs it lacks."""
    records = [r for r in self._records if _id(r) not in self._passed_over]
    if self._policy == 'latest':
      records = records[-1:]
    found = [(record, self._journal.missing(record)) for record in records]
    return [(record, names) for record, names in found if names]

  def _hold(self, due: list[checkpoint.Record]) -> None:
    """Holds what is due and what comes; nothing where training made nothing."""
    self._waiting = due
    if not self._is_there:
      return
    newest = self._records[-1].step if self._records else -1
    after = due[0].step - 1 if due else newest
    self._following.hold_after(after)
    is_first = self._held_after is None
    self._held_after = after
    if is_first and self._following.is_granted:
      logging.info(
        'Steps after %d stay until they are done, %d at a time.',
        after,
        self._max_held,
      )
    elif is_first:
      logging.info(
        'No lease in %s: a step may be swept any time.', self._directory
      )

  def _tell_swept(self) -> None:
    """Says which steps went that this job was still to do."""
    there = {_id(record) for record in self._records}
    for place, record in enumerate(self._waiting):
      if _id(record) not in there and self._journal.missing(record):
        why = (
          f': {place} others waited before it, see task_p.train.follow_max_held'
          if place >= self._max_held
          else ''
        )
        logging.warning(
          'Step %d was swept before it could be taken%s.', record.step, why
        )

  def _final_error(self) -> str:
    """What is wrong with the last checkpoint, now that training is done."""
    if self._records and _id(self._records[-1]) in self._passed_over:
      return (
        f'The last checkpoint, step {self._records[-1].step} in '
        f'{self._directory}, is damaged. See: paxlike ckpt verify '
        f'{self._directory}'
      )
    return ''


def _name_of(session: sessions.Session) -> str:
  """Of the follower, the same whenever and wherever it is started again."""
  return f'{session.mode}_{zlib.crc32(session.job_log_dir.encode()):08x}'


def _id(record: checkpoint.Record) -> tuple[int, float]:
  """Tells two checkpoints apart, those of one step too."""
  return record.step, record.timestamp_s
