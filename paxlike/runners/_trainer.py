"""Whether the training job that is followed is alive, as it says itself.

Read from status/train.json. A running job rewrites that file every few
seconds, so silence is measured here, on this machine's own clock, and two
machines' clocks are never compared. Of a job on this machine it is also known
whether its process lives. The step in the file is some seconds old: the newest
checkpoint may be of a later one.
"""

import dataclasses
import socket
import time

from absl import logging

from paxlike import reporting
from paxlike.core import clock as clocks
from paxlike.core import errors, fs, processes

# An end that was told before the follower began may be of an earlier run, with
# the next one just starting: it is believed only after this time. A process
# that is gone may be started again as well.
_GRACE_S = 60.0
# A training that is done, though not after as many steps as this job expects.
_DONE_GRACE_S = 10.0


@dataclasses.dataclass(frozen=True)
class End:
  """How training ended.

  Attributes:
    failure: Why that is no success, up to the step; '' if all is well.
    step: The last one that training told of; None if that does not matter.
    rest: What follows the step.
  """

  failure: str = ''
  step: int | None = None
  rest: str = ''

  def error(self, newest: int | None) -> str:
    """Why that is no success, '' if it is; given the newest checkpoint."""
    if self.step is None:
      return self.failure
    return f'{self.failure} {_later(self.step, newest)}{self.rest}'


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
        return End(
          'Training failed after step', status.step, f': {status.reason}'
        )
    is_gone = _is_gone(status)
    wait_s = min(_GRACE_S, self._timeout_s) if is_gone else self._timeout_s
    if now_s - self._heard_s < wait_s:
      return None
    return self._silence(status, wait_s, is_gone=is_gone)

  def tell(self, newest: int | None) -> None:
    """Says what is waited for, once for each reason to wait.

    Args:
      newest: Step of the newest checkpoint; None if there is none.
    """
    status = self._last
    if status is None:
      state = 'absent'
    else:
      state = 'gone' if _is_gone(status) else status.state
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
      return
    step = _later(status.step, newest)
    if state == 'running':
      logging.info('Following the training job, now at step %d.', step)
    elif state == 'gone':
      wait_s = min(_GRACE_S, self._timeout_s)
      wait_s -= self._clock.monotonic_s() - self._heard_s
      until = time.localtime(self._clock.now_s() + wait_s)
      logging.info(
        'The training process %d is gone without a word, at step %d; waiting '
        '%.0f s, until %s, in case it is started again. To end at once: '
        '--nofollow.',
        status.pid,
        step,
        wait_s,
        time.strftime('%H:%M:%S', until),
      )
    else:
      logging.info(
        'Training is %s at step %d; waiting %g s in case it goes on. To end '
        'at once: --nofollow.',
        state,
        step,
        self._timeout_s if state == 'preempted' else self._grace_s(state),
      )

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

  def _silence(
    self, status: reporting.Status | None, wait_s: float, *, is_gone: bool
  ) -> End:
    where = fs.join(self._job_log_dir, 'status', 'train.json')
    once = 'To take what is there once: --nofollow.'
    advice = (
      'If it is to come back later, wait longer: --set '
      f'task_p.train.follow_timeout_s=SECONDS. {once}'
    )
    if status is None:
      return End(
        f'No training job has written {where} for {wait_s:g} s. {advice}'
      )
    if is_gone:
      advice = f'To go on, start it again and then this job. {once}'
    who = f'process {status.pid} on {status.host}'
    what = {
      'running': f'{who} vanished without a word',
      'preempted': f'{who} was preempted and has not come back',
    }.get(status.state, f'{who} ended')
    return End(
      'Training stopped at step',
      status.step,
      f': {what}. {where} has not changed for {wait_s:g} s. {advice}',
    )


def _is_gone(status: reporting.Status | None) -> bool:
  """Whether it is known that who says to be running is not."""
  return (
    status is not None
    and status.state == 'running'
    and status.host == socket.gethostname()
    and not processes.is_alive(status.pid)
  )


def _later(step: int, newest: int | None) -> int:
  return step if newest is None else max(step, newest)
