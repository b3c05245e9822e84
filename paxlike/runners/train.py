"""The training job: restore, step, report, evaluate, save, until the end."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import jax
from absl import logging

from paxlike import checkpoint, inputs, parallel, programs, tasks
from paxlike.core import errors
from paxlike.runners import (
  _evaluations,
  _goodput,
  _restore,
  _train_report,
)
from paxlike.runners import session as sessions

if TYPE_CHECKING:
  from paxlike import elastic

_INPUT_STATE = 'input_state'


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainResult:
  """How a training job ended.

  Attributes:
    state: The state after the last update.
    step: Updates done over the whole run, resumed parts included.
  """

  state: tasks.TrainState
  step: int


def train_and_evaluate_spmd_model(
  task_p: Any,
  train_input_p: Any,
  job_log_dir: str,
  checkpoint_p: Any = None,
  restore_checkpoint_dir: str | None = None,
  restore_checkpoint_step: int | None = None,
  eval_input_p: Any = None,
  *,
  mesh_p: Any = None,
  eval_on_test: bool = False,
) -> TrainResult:
  """Trains until `task_p.train.num_train_steps` updates are done.

  Goes on from the newest checkpoint in `job_log_dir`; if there is none, from
  `restore_checkpoint_dir` if that is given, else from fresh parameters. The
  last state is always saved.

  Args:
    task_p: Config of a task, or a task.
    train_input_p: Config of the training input, or an input.
    job_log_dir: Where everything of the job goes; made if missing.
    checkpoint_p: How checkpoints are stored; None: the defaults.
    restore_checkpoint_dir: Directory of checkpoints to start from.
    restore_checkpoint_step: Which of them; None: the newest.
    eval_input_p: Inputs to evaluate during training if `eval_on_test`.
    mesh_p: How the job is split over devices; None: all in `data`.
    eval_on_test: Whether to evaluate `eval_input_p` during training.

  Returns:
    The last state.

  Raises:
    ConfigError: Some value is nonsense.
    NonFiniteLossError: The loss became NaN or infinite.
    PreemptedError: The job was asked to stop, and saved its state.
  """
  worker = _worker()
  source = _prepared.pop(id(train_input_p), None)
  source = source or sessions.built(train_input_p)
  if worker is not None:
    task_p = sessions.built(task_p)
    _check_hosts(worker, task_p, source, mesh_p)
  session = sessions.build(
    'train', task_p, job_log_dir, mesh_p=mesh_p, checkpoint_p=checkpoint_p
  )
  if worker is not None:
    session = dataclasses.replace(session, goes_on_after=worker.goes_on_after)
  if not source.is_training:
    raise errors.ConfigError(
      f'Input {source.name} is the training input but has is_training=False. '
      'Set train_input_p.is_training=True.'
    )
  test_sources = sessions.build_inputs(eval_input_p) if eval_on_test else []
  with contextlib.ExitStack() as stack:
    progress = stack.enter_context(session.status())
    manager = stack.enter_context(_open_checkpoints(session))
    begin = functools.partial(
      _start,
      session,
      manager=manager,
      source=source,
      restore_dir=restore_checkpoint_dir,
      restore_step=restore_checkpoint_step,
    )
    if worker is None:
      with session.world.progress.phase('restore'):
        program = programs.TrainProgram(session.task, session.partitioner)
        start = begin(program)
    else:
      session, program, start = _rebuild(
        worker, session, mesh_p, manager, source, begin
      )
    progress.step = start.step
    stream = stack.enter_context(
      programs.batches(source, session.partitioner, start.position)
    )
    if worker is None:  # with one, the lighthouse keeps the log
      stack.enter_context(
        _goodput.Recorder(session, progress, start_step=start.step)
      )
    report = stack.enter_context(
      _train_report.TrainReport(session, source, start_step=start.step)
    )
    evaluations = stack.enter_context(
      _evaluations.Evaluations(session, test_sources, start_step=start.step)
    )
    loop = _Loop(
      session=session,
      program=program,
      manager=manager,
      stream=stream,
      report=report,
      evaluations=evaluations,
      progress=progress,
      worker=worker,
    )
    return loop.run(start.state, start.step)


# Inputs built ahead of their run, by the identity of their config.
_prepared: dict[int, inputs.Input] = {}


def prepare(train_input_p: Any) -> None:
  """Does what a run does before it touches a device, ahead of it.

  A warm standby calls it, so that a run that replaces a failed one begins
  sooner.
  """
  if train_input_p is not None:
    _prepared[id(train_input_p)] = sessions.built(train_input_p)


def _worker() -> 'elastic.worker.Worker | None':
  """What an agent wants of this process; without one, nothing is loaded."""
  if 'PAXLIKE_AGENT' not in os.environ:
    return None
  from paxlike import elastic

  return elastic.worker.current()


def _check_hosts(
  worker: 'elastic.worker.Worker', task: Any, source: inputs.Input, mesh_p: Any
) -> None:
  """Refuses a number of hosts that the mesh or the batch does not allow."""
  from paxlike import elastic

  worker.check_hosts(
    elastic.legal_hosts(
      sessions.built(mesh_p) or parallel.MeshConfig(),
      devices_per_host=jax.local_device_count(),
      max_hosts=worker.max_hosts,
      batch_size=source.batch_size,
      num_micro_batches=task.learner.num_micro_batches,
    )
  )


def _rebuild(
  worker: 'elastic.worker.Worker',
  session: sessions.Session,
  mesh_p: Any,
  manager: checkpoint.CheckpointManager,
  source: inputs.Input,
  begin: Callable[[programs.TrainProgram], '_Start'],
) -> tuple[sessions.Session, programs.TrainProgram, '_Start']:
  """Everything for the hosts that are there now, from the newest snapshot."""
  from paxlike import elastic

  rebuilt = elastic.elastic_handler(
    jax.devices(),
    mesh_config=sessions.built(mesh_p) or parallel.MeshConfig(),
    segment=functools.partial(programs.TrainProgram, session.task),
    manager=manager,
    snapshot=worker.snapshot,
    resume=functools.partial(_resume, source),
    otherwise=begin,
  )
  worker.begin(rebuilt.start.step)
  session = dataclasses.replace(session, partitioner=rebuilt.partitioner)
  return session, rebuilt.program, rebuilt.start


def _open_checkpoints(
  session: sessions.Session,
) -> checkpoint.CheckpointManager:
  train = session.task.train
  return checkpoint.CheckpointManager(
    session.checkpoint_dir,
    config=session.checkpoint_config,
    save_policy=checkpoint.SavePolicy(every_steps=train.save_interval_steps),
    keep_policy=checkpoint.KeepPolicy(
      max_to_keep=train.save_max_to_keep,
      keep_interval=train.save_keep_interval_duration,
    ),
    world=session.world,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Start:
  """Where training begins."""

  state: tasks.TrainState
  step: int
  position: int


def _start(
  session: sessions.Session,
  program: programs.TrainProgram,
  *,
  manager: checkpoint.CheckpointManager,
  source: inputs.Input,
  restore_dir: str | None,
  restore_step: int | None,
) -> _Start:
  """The state to begin with: the job's own, another job's, or a fresh one."""
  if manager.latest_step() is not None:
    restored = manager.restore(program.abstract_state)
    where = session.checkpoint_dir
  elif restore_dir is not None:
    with _restore.reader(session, restore_dir) as other:
      restored = other.restore(program.abstract_state, step=restore_step)
    where = restore_dir
  else:
    if restore_step is not None:
      raise errors.ConfigError(
        f'--restore_checkpoint_step={restore_step} needs '
        f'--restore_checkpoint_dir: {session.checkpoint_dir} has no '
        'checkpoint.'
      )
    logging.info('Starting from fresh parameters.')
    return _Start(state=program.init_state(), step=0, position=0)
  start = _resume(source, restored)
  logging.info(
    'Going on from step %d of %s, batch %d.', start.step, where, start.position
  )
  return start


def _resume(source: inputs.Input, restored: checkpoint.Restored) -> _Start:
  """What was restored, with where the input goes on."""
  position = restored.step
  if _INPUT_STATE in restored.items:
    position = inputs.check_state(source, restored.items[_INPUT_STATE])
  return _Start(
    state=restored.state, step=int(restored.step), position=position
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Loop:
  """The parts of a training run, and the order in which they act."""

  session: sessions.Session
  program: programs.TrainProgram
  manager: checkpoint.CheckpointManager
  stream: inputs.Stream
  report: _train_report.TrainReport
  evaluations: _evaluations.Evaluations
  progress: sessions.Progress
  worker: 'elastic.worker.Worker | None' = None

  def run(self, state: tasks.TrainState, step: int) -> TrainResult:
    """Trains from `step` to the end."""
    train = self.session.task.train
    if step >= train.num_train_steps:
      logging.info(
        'Nothing to do: step %d of %d is done.', step, train.num_train_steps
      )
    try:
      while step < train.num_train_steps:
        if self.session.world.stop.poll():
          self._stop(state, step)
        if self.manager.should_save(step):
          self._save(state, step)
        state, output, batch = self._step(state, step)
        step += 1
        self.progress.step = step
        self._report(step, state, output)
        if self.evaluations.due(step):
          self.evaluations.run(step, state, batch)
        if self.worker is not None:
          self.worker.after_step(state, step, self._items())
    except Exception as error:
      self._save_after(error, state, step)
      raise
    self.manager.wait()
    if self.manager.latest_step() != step:
      self._save(state, step)
      self.manager.wait()
    return TrainResult(state=state, step=step)

  def _items(self) -> dict[str, Any]:
    return {_INPUT_STATE: self.stream.state()}

  def _stop(self, state: tasks.TrainState, step: int) -> NoReturn:
    """Ends the job here, where all processes do, with nothing lost."""
    if self.worker is not None:
      self.worker.stop(state, step, self._items())
    self.manager.wait()
    if self.manager.latest_step() != step:
      self._save(state, step)
      self.manager.wait()
    raise errors.PreemptedError(
      f'Stopped on request after step {step}, which is saved; start the job '
      'again to go on.'
    )

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
    due = self.report.norms_due(step)
    norms = self.program.norms(state) if due else None
    if self.report.write(step, output, norms).halted:
      self._raise_non_finite(state)

  def _raise_non_finite(self, state: tasks.TrainState) -> None:
    step = int(jax.device_get(state.step))
    raise errors.NonFiniteLossError(
      f'The loss or its gradient at the update after step {step} is NaN or '
      f'infinite. It was not applied: the state of step {step} is kept. Lower '
      'the learning rate, or leave such batches out with '
      '--set task_p.train.on_nonfinite=skip.'
    )

  def _save(self, state: tasks.TrainState, step: int) -> None:
    """Saves the state of `step`, with where the input goes on."""
    # What followers read of a step must be on disk before the step is.
    self.report.flush()
    if bool(jax.device_get(state.extra['halted'])):
      self._raise_non_finite(state)
    with self.session.world.progress.phase('save'):
      self.manager.save(step, state, items=self._items())
    self.report.saved(step)

  def _save_after(
    self, error: Exception, state: tasks.TrainState, step: int
  ) -> None:
    """Saves the last good state before `error` ends the run."""
    alone = self.session.world.process_count == 1
    common = isinstance(error, errors.NonFiniteLossError)
    # Other processes may be in the middle of a step: they would not come.
    if not (alone or common) or isinstance(
      error, errors.SaveError | errors.PreemptedError
    ):
      return
    try:
      good_step = int(jax.device_get(state.step))
      if self.manager.latest_step() == good_step:
        return
      position = self.stream.state()
      position['position'] -= step - good_step
      self.manager.save(
        good_step, state, items={_INPUT_STATE: position}, force=True
      )
      self.manager.wait()
      logging.info('Saved the last good state, of step %d.', good_step)
    except Exception as second:  # noqa: BLE001 - the first error is the cause
      logging.warning('The last state could not be saved: %s', second)
