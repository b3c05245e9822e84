"""Writes down, while training runs, where its time goes."""

import threading

from paxlike import reporting
from paxlike.core import clock as clocks
from paxlike.runners import session as sessions

_EVERY_S = 5.0


class Recorder:
  """Adds to `status/goodput.jsonl` every few seconds; use it as a context.

  Only process 0 writes: the others' time goes where its time goes.
  """

  def __init__(
    self,
    session: sessions.Session,
    progress: sessions.Progress,
    *,
    start_step: int,
    clock: clocks.Clock = clocks.SYSTEM,
  ):
    """Nothing is written before the block.

    Args:
      session: The job.
      progress: How far it has come.
      start_step: Steps that were done before this process.
      clock: For tests.
    """
    self._session = session
    self._progress = progress
    self._start_step = start_step
    self._clock = clock
    self._run = clock.now_s()
    self._over = threading.Event()
    self._thread: threading.Thread | None = None

  def __enter__(self) -> 'Recorder':
    if self._session.is_writer:
      self._log = reporting.GoodputLog(
        self._session.job_log_dir, clock=self._clock
      )
      before_s = sum(self._session.world.progress.totals_s().values())
      self._log.event(
        {'time': self._run - before_s, 'event': 'start', 'run': self._run}
      )
      self._thread = threading.Thread(
        target=self._beat, name='goodput', daemon=True
      )
      self._thread.start()
    return self

  def __exit__(self, *exception: object) -> None:
    if self._thread is not None:
      self._over.set()
      self._thread.join()
      self._write('end')
      self._log.close()

  def _beat(self) -> None:
    while not self._over.wait(_EVERY_S):
      self._write('time')

  def _write(self, event: str) -> None:
    self._log.event(
      {
        'event': event,
        'run': self._run,
        'step': self._progress.step,
        'first_step': self._start_step,
        'totals_s': self._session.world.progress.totals_s(),
      }
    )
