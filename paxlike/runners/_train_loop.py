"""The order of things in training: save, step, report, evaluate, stop.

Promises: whatever is reported of a step is in its file before that step is
saved; the last good state is saved however the loop ends; between two reports
nothing is fetched from the device.
"""

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, NoReturn

import jax
from absl import logging

from paxlike import checkpoint, inputs, programs, tasks
from paxlike.core import errors
from paxlike.runners import _evaluations, _train_report, _train_start
from paxlike.runners import session as sessions

if TYPE_CHECKING:
  from paxlike import elastic

# How long a process that ends by an error waits for the others to do so too.
_END_S = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
  """The parts of a training run.

  Attributes:
    session: The job.
    program: The step.
    manager: The job's checkpoints.
    stream: The training batches.
    report: What is said of steps.
    evaluations: What is evaluated and decoded between steps.
    progress: Where followers are told how far the job is.
    worker: The agent's side of an elastic job; None in a plain one.
  """

  session: sessions.Session
  program: programs.TrainProgram
  manager: checkpoint.CheckpointManager
  stream: inputs.Stream
  report: _train_report.TrainReport
  evaluations: _evaluations.Evaluations
  progress: sessions.Progress
  worker: 'elastic.worker.Worker | None' = None

  def run(
    self, state: tasks.TrainState, step: int
  ) -> tuple[tasks.TrainState, int]:
    """Trains from `step` to the end.

    Args:
      state: The state after `step` updates; given up.
      step: Updates done.

    Returns:
      The last state, which is saved, and its step.
    """
    num_train_steps = self.session.task.train.num_train_steps
    # Of the batches that `step` updates have used up: while an update runs,
    # the stream is one ahead.
    items = self._items()
    if step >= num_train_steps:
      logging.info(
        'Nothing to train: step %d of %d is done.', step, num_train_steps
      )
    try:
      self._evaluate(state, step, batch=None)
      while step < num_train_steps:
        if self.session.world.stop.poll():
          self._stop(state, step)
        if self.manager.should_save(step):
          self._save(state, step)
        state, output, batch = self._step(state, step)
        step += 1
        items = self._items()
        self.progress.step = step
        self._report(step, state, output)
        self._evaluate(state, step, batch)
        if self.worker is not None:
          self.worker.after_step(state, step, self._items())
    except Exception as error:
      self._save_after(error, state, step, items)
      raise
    self._save_last(state, step)
    return state, step

  def _items(self) -> dict[str, Any]:
    return {_train_start.INPUT_STATE: self.stream.state()}

  def _step(
    self, state: tasks.TrainState, step: int
  ) -> tuple[tasks.TrainState, programs.steps.TrainOutput, Any]:
    """Starts the next update; the first one compiles."""
    marks = self.session.world.progress
    with marks.phase('input'):
      try:
        batch = next(self.stream)
      except StopIteration:
        raise errors.InputError(
          f'The training input ended after {step} of '
          f'{self.session.task.train.num_train_steps} steps.'
        ) from None
    is_first = step == self.report.start_step
    with marks.phase('compile') if is_first else contextlib.nullcontext():
      state, output = self.program.run(state, batch)
    marks.step(step + 1)
    return state, output, batch

  def _report(
    self,
    step: int,
    state: tasks.TrainState,
    output: programs.steps.TrainOutput,
  ) -> None:
    """Writes summaries where due; that is when a NaN is found out."""
    if not self.report.due(step):
      return
    self.report.saved(step, self.manager.latest_step())
    due = self.report.norms_due(step)
    norms = self.program.norms(state) if due else None
    if self.report.write(step, output, norms).halted:
      self._raise_non_finite(state)

  def _evaluate(self, state: tasks.TrainState, step: int, batch: Any) -> None:
    """Evaluates where due, and after a resume what a stop had cut off."""
    try:
      if batch is None:
        self.evaluations.catch_up(step, state)
        return
      if self.evaluations.due(step):
        self.evaluations.run(step, state, batch)
      if self.evaluations.decode_due(step):
        self.evaluations.decode(step, state)
    except errors.PreemptedError:
      self._stop(state, step)

  def _save(self, state: tasks.TrainState, step: int) -> None:
    """Saves the state of `step`, with where the input goes on."""
    # What followers read of a step must be on disk before the step is.
    self.report.flush()
    if bool(jax.device_get(state.extra['halted'])):
      self._raise_non_finite(state)
    with self.session.world.progress.phase('save'):
      self.manager.save(
        step,
        state,
        items=self._items(),
        metrics=self.evaluations.metrics_of(step),
      )

  def _save_last(self, state: tasks.TrainState, step: int) -> None:
    """Makes sure that `step` is saved and durable."""
    self.manager.wait()
    if self.manager.latest_step() != step:
      self._save(state, step)
      self.manager.wait()
    if self.manager.latest_step() != step:
      # Whatever the policy in between, a run without its end is not done.
      raise errors.SaveError(
        f'The last state, of step {step}, is not in '
        f'{self.session.checkpoint_dir}; the log says why. Make room, then '
        'start the job again.'
      )
    self.report.saved(step, step)

  def _stop(self, state: tasks.TrainState, step: int) -> NoReturn:
    """Ends the job here, where all processes do, with nothing lost."""
    if self.worker is not None:
      self.worker.stop(state, step, self._items())
    self._save_last(state, step)
    raise errors.PreemptedError(
      f'Stopped on request after step {step}, which is saved; start the job '
      'again to go on.'
    )

  def _save_after(
    self,
    error: Exception,
    state: tasks.TrainState,
    step: int,
    items: dict[str, Any],
  ) -> None:
    """Saves the last good state before `error` ends the run.

    Args:
      error: What ends it.
      state: The state after the last update that was started.
      step: Updates started.
      items: Where the input went on after them.
    """
    wanted = self.session.checkpoint_config.save_after_error
    if not wanted or _forbids_saving(error) or not self._all_ended(error, step):
      return
    try:
      good_step = int(jax.device_get(state.step))
      try:
        self.manager.wait()
      except errors.SaveError as earlier:
        logging.error('%s', earlier)
      if self.manager.latest_step() == good_step:
        return
      # Updates that a NaN kept from being applied are to be done again.
      items[_train_start.INPUT_STATE]['position'] -= step - good_step
      self.manager.save(good_step, state, items=items)
      self.manager.wait()
      self.report.saved(step, good_step)
    except Exception as second:  # noqa: BLE001 - the first error is the cause
      logging.warning('The last state could not be saved: %s', second)

  def _all_ended(self, error: Exception, step: int) -> bool:
    """Whether every process has ended by an error, after as many updates.

    Else some are in the middle of an update that will never be whole, and
    would not come to a save.
    """
    world = self.session.world
    if world.process_count == 1:
      return True
    if isinstance(error, jax.errors.JaxRuntimeError):
      return False
    if self.worker is not None and not isinstance(
      error, errors.NonFiniteLossError
    ):
      return False  # The agents hold a snapshot, and are not to be held up.
    own = str(step).encode()
    try:
      ends = world.scoped('train_error').gather('step', own, timeout_s=_END_S)
    except errors.SyncError as missing:
      logging.debug('The last state is not saved: %s', missing)
      return False
    return set(ends) == {own}

  def _raise_non_finite(self, state: tasks.TrainState) -> NoReturn:
    step = int(jax.device_get(state.step))
    raise errors.NonFiniteLossError(
      f'The loss or its gradient at the update after step {step} is NaN or '
      f'infinite. It was not applied: the state of step {step} is kept. Lower '
      'the learning rate, or leave such batches out with '
      '--set task_p.train.on_nonfinite=skip.'
    )


def _forbids_saving(error: Exception) -> bool:
  """Whether a save after it has no hope, or is made."""
  if isinstance(error, errors.SaveError):  # another step may fare better
    return isinstance(
      error.__cause__, errors.SyncError | errors.CheckpointBusyError
    )
  return isinstance(
    error,
    errors.PreemptedError | errors.SyncError | errors.CheckpointBusyError,
  )
