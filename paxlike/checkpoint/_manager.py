"""The checkpoint manager: what a trainer saves to and restores from."""

import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat, SupportsIndex

from absl import logging

from paxlike import sync
from paxlike.checkpoint import (
  _background,
  _claims,
  _commit,
  _config,
  _directory,
  _first,
  _history,
  _jobs,
  _restoring,
  _staging,
  _state,
  _stores,
  _sweep,
)
from paxlike.checkpoint import _restore as restore_lib
from paxlike.core import clock as clocks
from paxlike.core import errors, fs


class CheckpointManager:
  """Owns a directory of checkpoints: saves, restores, keeps and sweeps.

  Every process of a job makes one and calls the same methods in the same
  order. A step is all or nothing, for every reader and after any crash.

  It is the only one that writes there, from when it is made until it is closed
  or dropped; another one is refused with CheckpointBusyError, which tells who
  holds the directory. A process that has died holds nothing.

  With `read_only` (evaluation, decoding) nothing in the directory is changed
  but for a lease on the step being read, and the steps are looked up anew
  each time.

      with checkpoint.CheckpointManager(
        directory, save_policy=policy, keep_policy=keep
      ) as manager:
        if manager.should_save(step):
          manager.save(step, state, items={'input_state': position})
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    *,
    config: _config.CheckpointConfig | None = None,
    save_policy: _config.SavePolicy | None = None,
    keep_policy: _config.KeepPolicy | None = None,
    world: sync.World | None = None,
    clock: clocks.Clock = clocks.SYSTEM,
    file_system: fs.FileSystem | None = None,
    read_only: bool = False,
    generation: _claims.Generation | None = None,
  ):
    self._config = config or _config.CheckpointConfig()
    self._kind = _config.CheckpointType(self._config.type)
    self._save_policy = save_policy or _config.SavePolicy(every_steps=1)
    self._world = (world or sync.world()).scoped('checkpoint')
    self._directory = fs.expand(os.fspath(directory))
    self._fs = file_system or fs.for_path(self._directory)
    self._clock = clock
    self._read_only = read_only
    self._place = _jobs.Place(
      directory=self._directory,
      file_system=self._fs,
      world=self._world,
      clock=clock,
      config=self._config,
      keep_policy=keep_policy or _config.KeepPolicy(),
      claim=_claims.Claim(
        self._fs,
        self._directory,
        generation=generation,
        clock=clock,
        stop_reason=self._world.stop.requested,
      ),
    )
    # Who drops a manager and does not close it stands in nobody's way.
    self._give_back = weakref.finalize(self, self._place.claim.release)
    self._arena = _staging.Arena(max_bytes=self._config.max_host_bytes)
    self._background = _background.Background(
      on_save_error=self._config.on_save_error
    )
    self._num_calls = 0
    self._has_met = False
    self._is_closed = False
    self._records = self._open()
    self._last_save_s = self._since_last_record()

  @property
  def directory(self) -> str:
    """The directory of all steps."""
    return self._directory

  def __enter__(self) -> 'CheckpointManager':
    return self

  def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
    try:
      self.close()
    except errors.SaveError:
      if value is None:
        raise
      # The block's own error is the news; this one is told, not raised.
      logging.exception('A checkpoint failed while another error ended the run')

  # --- opening

  def _name(self, what: str) -> str:
    self._num_calls += 1
    return f'{what}/{self._num_calls}'

  def _from_first(self, what: str, make: Callable[[], bytes]) -> bytes:
    """What process 0 finds or decides, on every process; its error too."""
    return _first.ask(
      self._world,
      self._name(what),
      make,
      timeout_s=self._config.timeout_s,
    )

  def _open(self) -> list[_history.Record]:
    look = _directory.look if self._read_only else _directory.take_over
    try:
      data = self._from_first('open', lambda: look(self._place))
      return _history.decode(data, path=self._directory)
    except BaseException:
      self._give_back()
      raise

  def _since_last_record(self) -> float:
    """When the last save was, on the monotonic clock."""
    now_s = self._clock.monotonic_s()
    if not self._records:
      return now_s
    return now_s - max(0.0, self._clock.now_s() - self._records[-1].timestamp_s)

  # --- looking

  def steps(self) -> list[int]:
    """All committed steps, ascending; a reader looks them up anew.

    With `read_only` every process must call it, like a barrier.
    """
    self._collect(raises=False)
    if self._read_only:
      data = self._from_first('steps', lambda: _directory.look(self._place))
      self._records = _history.decode(data, path=self._directory)
    return [record.step for record in self._records]

  def latest_step(self) -> int | None:
    """The newest committed step, or None."""
    steps = self.steps()
    return steps[-1] if steps else None

  def records(self) -> list[_history.Record]:
    """What is known of each committed step, as of the last look."""
    self._collect(raises=False)
    return list(self._records)

  def should_save(self, step: int) -> bool:
    """Whether a save is due after `step` updates, the same on every process.

    Rules that look at a clock are decided by process 0, at the price of one
    message a call. Raises SaveError if somebody else writes here by now.
    """
    self._place.claim.check_quickly()
    last = self._newest_step()
    if last is None:
      decision = True
    elif step <= last:
      return False
    else:
      every = self._save_policy.every_steps
      decision = self._save_policy.due(
        steps_since=step - last // every * every,
        s_since=self._clock.monotonic_s() - self._last_save_s,
      ) or (self._save_policy.continuous and not self.is_saving())
    if self._save_policy.needs_clock and self._world.process_count > 1:
      mine = b'1' if decision else b'0'
      return self._from_first('should_save', lambda: mine) == b'1'
    return decision

  def _newest_step(self) -> int | None:
    newest = self._records[-1].step if self._records else -1
    if self._background.has_save:
      newest = max(newest, self._background.step)
    return newest if newest >= 0 else None

  def is_saving(self) -> bool:
    """Whether a save is still being written in the background."""
    return self._background.is_saving

  # --- saving

  def prepare(self, state: Any) -> None:
    """Readies host memory for a state like this, so the first save is fast.

    Returns at once; the memory is touched in the background.

    Raises:
      ConfigError: `max_host_bytes` is too little for such a state.
      SaveError: The host has not the memory.
    """
    _stores.reserve(
      self._kind,
      _state.take_apart(state),
      self._arena,
      process=self._world.process_index,
      file_system=self._fs,
    )
    self._background.prepare(self._arena.touch)

  def save(
    self,
    step: SupportsIndex,
    state: Any,
    *,
    items: Mapping[str, Any] | None = None,
    metrics: Mapping[str, SupportsFloat] | None = None,
    force: bool = False,
    overwrite: bool = False,
  ) -> bool:
    """Saves a state as `step`, whether or not it is due.

    Returns once the state is copied to host memory (`async_save`), or once it
    is durable. The state may then be donated, changed or dropped. If the last
    save is still being written, waits for it first.

    Args:
      step: Number of completed updates.
      state: Nested arrays, numbers, text; the same structure on every process.
      items: Further values by name, JSON or bytes, such as the data position.
        Those of process 0 are kept.
      metrics: Values to keep the best steps by.
      force: Also save a step that is older than the newest.
      overwrite: Replace this step if it is there; readers see one or the other.

    Returns:
      Whether it was saved: False if the step is there already, or is not newer
      than the newest.

    Raises:
      SaveError: This save, or an earlier one in the background, failed.
      UsageError: A step or a metric is no number; nothing was saved.
    """
    self._check_writable()
    number = _jobs.check_step(step)
    self._wait_for_last(number)
    if not self._accepts(number, force=force, overwrite=overwrite):
      return False
    name = self._name(f'save/{number}')
    _commit.announce(
      self._place, name, state, step=number, meets=not self._has_met
    )
    self._has_met = True
    job = _jobs.make(
      self._place,
      self._arena,
      state,
      step=number,
      name=name,
      items=items or {},
      metrics=metrics or {},
      records=self._records,
      overwrite=overwrite,
    )
    self._last_save_s = self._clock.monotonic_s()
    self._background.save(number, lambda: self._commit(job))
    try:
      job.staged.fill()
    except Exception as e:
      # The commit has it too, and tells every process. Only a mistake of the
      # caller is raised here and now.
      if isinstance(e, errors.UsageError):
        self._background.let_go()
        raise
    except BaseException:
      self._background.let_go()
      raise
    if not self._config.async_save:
      self.wait()
    return True

  def _commit(self, job: _jobs.Job) -> _jobs.Committed:
    started_s = time.monotonic()
    done = _commit.Commit(self._place, job).run()
    if done.hidden:
      self._background.remove(lambda: _sweep.remove(self._fs, done.hidden))
    logging.info(
      'Step %d saved in %s, %.2f s.',
      job.step,
      self._directory,
      time.monotonic() - started_s,
    )
    return done

  def _check_writable(self) -> None:
    if self._read_only:
      raise errors.UsageError(
        f'{self._directory} was opened read_only; nothing can be saved there.'
      )
    if self._is_closed:
      raise errors.UsageError('This checkpoint manager is closed.')

  def _wait_for_last(self, step: int) -> None:
    if self.is_saving():
      logging.warning(
        'Saving step %d waits for step %d, which is still being written.',
        step,
        self._background.step,
      )
    self.wait()

  def _accepts(self, step: int, *, force: bool, overwrite: bool) -> bool:
    steps = [record.step for record in self._records]
    if step in steps and not overwrite:
      logging.info('Step %d is saved already.', step)
      return False
    if steps and step < steps[-1] and not (force or overwrite):
      logging.warning(
        'Step %d is NOT saved: %s already holds step %d, which is newer. If '
        'this run did not mean to start over, restore that one; else choose '
        'another --job_log_dir.',
        step,
        self._directory,
        steps[-1],
      )
      return False
    return True

  def wait(self) -> None:
    """Blocks until nothing is being written.

    Raises:
      SaveError: What was being written failed, here or on another process.
    """
    self._background.wait()
    self._collect()

  def _collect(self, *, raises: bool = True) -> None:
    """Takes note of a save that has ended."""
    done = self._background.take(raises=raises)
    if done is not None:
      self._records = list(done.records)

  def close(self) -> None:
    """Waits for what is being written and lets go of everything.

    Raises:
      SaveError: What was being written failed.
    """
    if self._is_closed:
      return
    self._is_closed = True
    try:
      self.wait()
    finally:
      self._background.close()
      self._give_back()

  # --- restoring

  def restore(
    self,
    target: Any = None,
    *,
    step: int | None = None,
    only: str | None = None,
    allow_missing: str | None = None,
    allow_extra: str | None = None,
    cast: bool = False,
  ) -> restore_lib.Restored:
    """Reads a step into the shapes, dtypes and shardings of `target`.

    Args:
      target: Nested `jax.ShapeDtypeStruct` with `.sharding`, or arrays and
        numbers; values are not looked at. None gives plain dicts of NumPy
        arrays, all of the step.
      step: Which one; None is the newest.
      only: Regular expression of whole leaf names; other leaves are neither
        read nor compared, and come back as they are in `target`.
      allow_missing: Regular expression of leaves that the checkpoint may lack.
      allow_extra: Regular expression of leaves that `target` may lack.
      cast: Whether floating arrays may change to another floating dtype.

    Returns:
      The step, the state, the items, and what became of every leaf.

    Raises:
      CheckpointNotFoundError: There is no such step, or none at all.
      CheckpointDamagedError: Bytes are not those that were written.
      RestoreMismatchError: The state does not fit; every leaf is named.
    """
    if not self._read_only:
      self.wait()
    selection = restore_lib.Selection(
      only=only,
      allow_missing=allow_missing,
      allow_extra=allow_extra,
      cast=cast,
    )
    restoring = _restoring.Restoring(
      self._place,
      name=self._name('restore'),
      selection=selection,
      takes_lease=self._read_only,
    )
    restored = restoring.run(target, step)
    if restoring.damaged and not self._read_only:
      kept = [r for r in self._records if r.step not in restoring.damaged]
      data = self._from_first(
        'set_aside',
        lambda: _directory.set_aside(self._place, restoring.damaged, kept),
      )
      self._records = _history.decode(data, path=self._directory)
    return restored

  # --- deleting

  def delete(self, step: int) -> None:
    """Deletes one step; one that is absent is fine. All processes call it."""
    self._delete([step])

  def forget_above(self, step: int) -> None:
    """Deletes every step newer than `step`. All processes call it."""
    self.wait()
    self._delete([r.step for r in self._records if r.step > step])

  def _delete(self, steps: list[int]) -> None:
    self._check_writable()
    self.wait()
    doomed = set(steps)
    kept = [r for r in self._records if r.step not in doomed]
    self._from_first(
      'delete', lambda: _directory.delete(self._place, doomed, kept)
    )
    self._records = kept
