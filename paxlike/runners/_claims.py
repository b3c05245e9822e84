"""Two jobs never write one file of results: the second one is refused.

Training with `--eval_on_test` writes what the eval job writes, and training
that decodes what the decode job writes. Each says in status/<mode>.writes what
it is going to write, then looks whether another one that is alive says the
same; so of two that start at once, one sees the other at least.
"""

import json
import socket
from collections.abc import Sequence

from paxlike import reporting
from paxlike.core import clock as clocks
from paxlike.core import errors, fs, processes
from paxlike.runners import session as sessions

_MODES = ('train', 'eval', 'decode')


def claim(
  session: sessions.Session,
  names: Sequence[str],
  *,
  clock: clocks.Clock = clocks.SYSTEM,
) -> None:
  """Says that this job writes results of these names; its status is there.

  Args:
    session: The job, already 'running' by its status.
    names: Of files under metrics/, without their ending; may be none.
    clock: What to wait by for word of a job on another machine.

  Raises:
    UsageError: Another job is at work on one of them.
  """
  if not session.is_writer:
    return
  path = _path(session.job_log_dir, session.mode)
  fs.for_path(path).write_atomic(path, json.dumps(sorted(names)).encode())
  for mode in _MODES:
    common = sorted(set(names) & _claimed(session.job_log_dir, mode))
    if mode == session.mode or not common:
      continue
    if _is_at_work(session.job_log_dir, mode, clock):
      raise errors.UsageError(_refusal(session, mode, common[0]))


def _refusal(session: sessions.Session, mode: str, name: str) -> str:
  if session.mode != 'train':
    advice = (
      'leave it to that one, or write elsewhere: --job_log_dir=OTHER '
      f'--restore_checkpoint_dir={session.checkpoint_dir} --follow'
    )
  elif mode == 'eval':
    advice = 'train without --eval_on_test'
  else:
    advice = 'train with --set task_p.train.decode_interval_steps=None'
  return (
    f'metrics/{name}.jsonl in {session.job_log_dir} is written by a '
    f'--mode={mode} job that is at work there, and two would overwrite each '
    f'other. End it first, or {advice}.'
  )


def _path(job_log_dir: str, mode: str) -> str:
  return sessions.status_path(job_log_dir, mode, sessions.CLAIMS)


def _claimed(job_log_dir: str, mode: str) -> set[str]:
  path = _path(job_log_dir, mode)
  try:
    return set(json.loads(fs.for_path(path).read_bytes(path)))
  except FileNotFoundError:
    return set()


def _is_at_work(job_log_dir: str, mode: str, clock: clocks.Clock) -> bool:
  """Whether the job of that mode lives: one that was killed says 'running'."""
  first = reporting.read_status(job_log_dir, mode)
  if first is None or first.is_over:
    return False
  if first.host == socket.gethostname():
    return processes.is_alive(first.pid)
  # Clocks of two machines are not compared: does it say anything new?
  until_s = clock.monotonic_s() + 3 * sessions.STATUS_INTERVAL_S
  while clock.monotonic_s() < until_s:
    clock.sleep_s(1.0)
    now = reporting.read_status(job_log_dir, mode)
    if now != first:
      return now is not None and not now.is_over
  return False
