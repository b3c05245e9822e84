"""The decode job: key/value outputs of checkpoints for every decode input."""

import contextlib
from collections.abc import Sequence
from typing import Any

from paxlike.core import errors
from paxlike.runners import (
  _claims,
  _decoding,
  _follow,
  _mismatch,
  _restore,
)
from paxlike.runners import session as sessions


def decode_once_spmd_model(
  task_p: Any,
  input_p: Any,
  job_log_dir: str,
  checkpoint_p: Any = None,
  restore_checkpoint_dir: str | None = None,
  restore_checkpoint_step: int | Sequence[int] | None = None,
  *,
  mesh_p: Any = None,
  decode: Any = None,
  allow_random_init: bool = False,
  follow: bool = False,
  recording: contextlib.AbstractContextManager[Any] | None = None,
) -> list[_decoding.DecodeResult]:
  """Decodes every decode input and writes key/value pairs.

  A decode that was killed goes on where it was, if it is of the same
  checkpoint, input and settings.

  Args:
    task_p: Config of a task, or a task.
    input_p: Configs of the inputs to decode, or inputs.
    job_log_dir: Where everything of the job goes.
    checkpoint_p: How checkpoints are read; None: the defaults.
    restore_checkpoint_dir: Directory of checkpoints; None: the job's own.
    restore_checkpoint_step: Which of them, or several; None: the newest.
    mesh_p: How the job is split over devices; None: all in `data`.
    decode: Config of how outputs are written; None: the defaults.
    allow_random_init: Decode with fresh parameters if there is no checkpoint,
      as to try out a pipeline; else that is an error.
    follow: Whether to decode with each checkpoint as it comes, leaving out
      those that are done, until training has ended.
    recording: Entered once all is checked, before the first thing is written.

  Returns:
    Where the outputs are, and the metrics, of each step decoded here.

  Raises:
    CheckpointNotFoundError: There is no checkpoint to decode with.
    ConfigError: Some value is nonsense.
    UsageError: Another job writes the same outputs.
    FollowedJobError: The training job failed or vanished; all checkpoints
      that it left are decoded.
  """
  steps = _follow.as_steps(restore_checkpoint_step)
  _follow.check(follow, steps)
  session = sessions.build(
    'decode', task_p, job_log_dir, mesh_p=mesh_p, checkpoint_p=checkpoint_p
  )
  sources = sessions.build_inputs(input_p)
  if not sources:
    raise errors.ConfigError(
      'The experiment has no decode inputs: give it decode_input_p().'
    )
  found = []
  with contextlib.ExitStack() as stack:
    session.check_alone()
    if not follow and not allow_random_init:
      where = restore_checkpoint_dir or session.checkpoint_dir
      _restore.check(session, where, steps)
    if recording is not None:
      stack.enter_context(recording)
    progress = stack.enter_context(session.status())
    stack.enter_context(session.watchdog())
    fits = stack.enter_context(
      _mismatch.explained(session, task_p, restore_checkpoint_dir)
    )
    _claims.claim(session, _decoding.metrics_names(sources))
    decoder = _decoding.Decoder(session, sources, sessions.built(decode))
    if follow:
      checkpoints = _follow.follow(
        session, decoder.journal, directory=restore_checkpoint_dir
      )
    else:
      checkpoints = _follow.asked(
        session,
        decoder.journal.names,
        directory=restore_checkpoint_dir,
        steps=steps,
        allow_random_init=allow_random_init,
      )
    for due in stack.enter_context(contextlib.closing(checkpoints)):
      if due.eval_vars.saved_s is not None:  # else there is no checkpoint
        fits()
      progress.step = due.eval_vars.step
      if due.steps is not None:
        decoder.forget_gone(due.steps)
      found.append(decoder.run(due.eval_vars, due.names))
      del due  # or the variables of two steps would be in memory
  return found
