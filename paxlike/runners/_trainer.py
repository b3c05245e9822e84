"""Whether the training job that is followed is alive, as it says itself.

Read from status/train.json alone. A running job rewrites that file every few
seconds, so silence is measured here, on this machine's own clock, and two
machines' clocks are never compared.
"""

import dataclasses

from absl import logging

from paxlike import reporting
from paxlike.core import clock as clocks
from paxlike.core import errors, fs

# An end that was told before the follower began may be of an earlier run, with
# the next one just starting: it is believed only after this time.
_GRACE_S = 60.0
# A training that is done, though not after as many steps as this job expects.
_DONE_GRACE_S = 10.0


@dataclasses.dataclass(frozen=True)
class End:
  """How training ended.

  Attributes:
    error: Why that is no success; '' if all is well.
  """

  error: str = ''


class Trainer:
  """Watches a training job."""

  def __init__(
    self,
    job_log_dir: str,
    *,
    num_train_steps: int,
    timeout_s: float,
    clock: clocks.Clock = clocks.SYSTEM,
  ):
    """Begins to watch.

    Args:
      job_log_dir: Of the training job.
      num_train_steps: How many updates training is to do.
      timeout_s: How long it may say nothing.
      clock: Where durations come from.
    """
    self._job_log_dir = job_log_dir
    self._num_train_steps = num_train_steps
    self._timeout_s = timeout_s
    self._clock = clock
    self._first = self._last = self._read(None)
    self._began_s = self._heard_s = clock.monotonic_s()
    self._told = ''

  def look(self) -> End | None:
    """How training has ended; None while it goes on or may come back."""
    status = self._read(self._last)
    now_s = self._clock.monotonic_s()
    if status != self._last:
      self._last, self._heard_s = status, now_s
    if status is not None and self._is_believed(status):
      if status.state == 'done':
        return End()
      if status.state == 'failed':
        return End(f'Training failed after step {status.step}: {status.reason}')
    if now_s - self._heard_s < self._timeout_s:
      self._tell(status)
      return None
    return End(self._silence(status))

  def _read(
    self, otherwise: reporting.Status | None
  ) -> reporting.Status | None:
    """The status; `otherwise` if it cannot be read just now."""
    try:
      return reporting.read_status(self._job_log_dir, 'train')
    except (OSError, errors.ReportingError) as error:
      logging.warning('The status of training cannot be read: %s', error)
      return otherwise

  def _is_believed(self, status: reporting.Status) -> bool:
    is_complete = (
      status.state == 'done' and status.step >= self._num_train_steps
    )
    waited_s = self._clock.monotonic_s() - self._began_s
    return (
      is_complete
      or status != self._first
      or waited_s >= self._grace_s(status.state)
    )

  def _grace_s(self, state: str) -> float:
    longest_s = _DONE_GRACE_S if state == 'done' else _GRACE_S
    return min(longest_s, self._timeout_s)

  def _tell(self, status: reporting.Status | None) -> None:
    """Says what is waited for, once for each reason to wait."""
    state = 'absent' if status is None else status.state
    if state == self._told:
      return
    self._told = state
    if status is None:
      logging.info(
        'No training job has written status/train.json in %s yet; waiting '
        '%g s for one. To take what is there: --nofollow.',
        self._job_log_dir,
        self._timeout_s,
      )
    elif status.state == 'running':
      logging.info('Following the training job, now at step %d.', status.step)
    else:
      wait_s = (
        self._timeout_s
        if status.state == 'preempted'
        else self._grace_s(status.state)
      )
      logging.info(
        'Training is %s at step %d; waiting %g s in case it goes on. To end '
        'at once: --nofollow.',
        status.state,
        status.step,
        wait_s,
      )

  def _silence(self, status: reporting.Status | None) -> str:
    where = fs.join(self._job_log_dir, 'status', 'train.json')
    advice = (
      'If it is to come back later, wait longer: --set '
      'task_p.train.follow_timeout_s=SECONDS. To take what is there once: '
      '--nofollow.'
    )
    if status is None:
      return (
        f'No training job has written {where} for {self._timeout_s:g} s. '
        f'{advice}'
      )
    who = f'process {status.pid} on {status.host}'
    what = {
      'running': f'{who} vanished without a word',
      'preempted': f'{who} was preempted and has not come back',
    }.get(status.state, f'{who} ended')
    return (
      f'Training stopped at step {status.step}: {what}. {where} has not '
      f'changed for {self._timeout_s:g} s. {advice}'
    )
