"""The training job: restore, step, report, evaluate, save, until the end."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

from paxlike import checkpoint, inputs, programs, tasks
from paxlike.core import errors
from paxlike.runners import (
  _claims,
  _evaluations,
  _goodput,
  _train_loop,
  _train_report,
  _train_start,
)
from paxlike.runners import session as sessions

# Set by an elastic agent for the processes that it starts. Without it nothing
# elastic is loaded.
# (worker_test.py::test_a_plain_run_loads_nothing_of_this_room)
_AGENT_VARIABLE = 'PAXLIKE_AGENT'


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
  decode_input_p: Any = None,
  decode: Any = None,
  recording: contextlib.AbstractContextManager[str] | None = None,
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
    decode_input_p: Inputs to decode during training if
      `task_p.train.decode_interval_steps` is set.
    decode: Config of how their outputs are written.
    recording: Entered once all is checked, before the first thing is written;
      gives a line to be told, or nothing.

  Returns:
    The last state.

  Raises:
    ConfigError: Some value is nonsense.
    NonFiniteLossError: The loss became NaN or infinite.
    PreemptedError: The job was asked to stop, and saved its state.
  """
  task, source = sessions.built(task_p), _training_input(train_input_p)
  plan = _evaluations.Plan(
    test=sessions.build_inputs(eval_input_p) if eval_on_test else (),
    decode=sessions.build_inputs(decode_input_p)
    if task.train.decode_interval_steps
    else (),
    decode_params=sessions.built(decode),
  )
  plan.check_best(task.train.save_best_metric)
  for each in (source, *plan.test, *plan.decode):
    _ = each.batch_spec, each.num_batches  # opens the data, before all else
  elastic = worker = None
  if _AGENT_VARIABLE in os.environ:
    from paxlike.runners import _train_elastic as elastic

    # Before the mesh is laid: these hosts may be too many or too few for it.
    worker = elastic.join(task, source, mesh_p)
  session = sessions.build(
    'train', task, job_log_dir, mesh_p=mesh_p, checkpoint_p=checkpoint_p
  )
  if worker is not None:
    session = dataclasses.replace(session, goes_on_after=worker.goes_on_after)
  else:
    session.check_alone()
    _train_start.check(
      session, source, restore_checkpoint_dir, restore_checkpoint_step
    )
  with contextlib.ExitStack() as stack:
    news = stack.enter_context(recording or contextlib.nullcontext('')) or ''
    progress = stack.enter_context(session.status(news))
    _claims.claim(session, plan.metrics_names)
    generation = elastic.generation(worker) if elastic and worker else None
    manager = stack.enter_context(_open_checkpoints(session, generation))
    begin = _train_start.Begin(
      session=session,
      manager=manager,
      source=source,
      restore_dir=restore_checkpoint_dir,
      restore_step=restore_checkpoint_step,
    )
    with _train_start.telling(news):
      if elastic is not None and worker is not None:
        session, program, start = elastic.rebuild(
          worker, session, mesh_p, manager, begin
        )
      else:
        with session.world.progress.phase('restore'):
          program = programs.TrainProgram(session.task, session.partitioner)
          start = begin(program)
    if worker is None:
      # With an agent it is the lighthouse that keeps this log.
      stack.enter_context(
        _goodput.Recorder(session, progress, start_step=start.step)
      )
    session.check_same(program.abstract_state)
    manager.prepare(start.state)
    progress.step = start.step
    loop = _train_loop.Loop(
      session=session,
      program=program,
      manager=manager,
      stream=stack.enter_context(
        programs.batches(
          source, session.partitioner, start.position, task=session.task
        )
      ),
      report=stack.enter_context(
        _train_report.TrainReport(session, source, start_step=start.step)
      ),
      evaluations=stack.enter_context(
        _evaluations.Evaluations(session, plan, start_step=start.step)
      ),
      progress=progress,
      worker=worker,
    )
    loop.report.describe(program.abstract_state)
    if start.step < session.task.train.num_train_steps:
      with session.world.progress.phase('input'):
        loop.stream.peek()  # data that do not fit are refused before a save
    stack.enter_context(session.watchdog())
    state, step = loop.run(start.state, start.step)
  return TrainResult(state=state, step=step)


def _training_input(train_input_p: Any) -> inputs.Input:
  if isinstance(train_input_p, Sequence):
    raise errors.ConfigError(
      f'Training takes one input, got {len(train_input_p)}: give the one with '
      'is_training=True, and the others as eval_input_p.'
    )
  source = sessions.built(train_input_p)
  if not source.is_training:
    raise errors.ConfigError(
      f'Input {source.name} is the training input but has is_training=False. '
      'Set train_input_p.is_training=True.'
    )
  return source


def _open_checkpoints(
  session: sessions.Session, generation: checkpoint.Generation | None
) -> checkpoint.CheckpointManager:
  train = session.task.train
  return checkpoint.CheckpointManager(
    session.checkpoint_dir,
    config=session.checkpoint_config,
    save_policy=checkpoint.SavePolicy(
      every_steps=train.save_interval_steps,
      every_s=train.save_interval_s or math.inf,
      continuous=train.save_continuously,
    ),
    keep_policy=checkpoint.KeepPolicy(
      max_to_keep=train.save_max_to_keep,
      keep_interval=train.save_keep_interval_duration,
      num_best=train.save_num_best,
      best_metric=train.save_best_metric,
      best_mode=train.save_best_mode,
    ),
    world=session.world,
    generation=generation,
  )
