"""Writes what a training tells, off the training's thread.

Promises: a call costs microseconds and touches no disk; what was written
before a `flush` survives the death of the process; a write that fails is
raised at the next call. Not promised: surviving a power cut, since nothing is
synced to the disk. Steps are those of the caller.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging

from paxlike.core import clock as clocks
from paxlike.core import disks, errors, fs
from paxlike.reporting import _events, _metrics_log

_CLOSE_TIMEOUT_S = 60.0


class SummaryWriter:
  """TensorBoard events and metrics of one name; use it as a context.

  Writes summaries/<name>/ and metrics/<name>.jsonl. A run that goes on from
  step s keeps what was said up to s and drops the rest, which it will say
  again; a run that starts at 0 drops all. In an object store, which cannot
  append, lines become visible every `flush_interval_s`.
  """

  def __init__(
    self,
    job_log_dir: str,
    name: str,
    *,
    enabled: bool = True,
    start_step: int | None = 0,
    one_line_a_step: bool = False,
    flush_interval_s: float = 60.0,
    clock: clocks.Clock = clocks.SYSTEM,
  ):
    """Opens the files.

    Args:
      job_log_dir: The job's directory.
      name: Such as 'train' or 'eval_test_digits'.
      enabled: False writes nothing and makes no file: only one process of a
        job reports.
      start_step: Updates done when this run starts; None keeps all that is
        there, whatever its step.
      one_line_a_step: Whether the line of a step takes the place of an
        earlier one of that step, at the price of writing the file anew.
      flush_interval_s: Longest that an object store lags behind.
      clock: Where wall times come from.
    """
    self._job_log_dir = job_log_dir
    self._is_enabled = enabled
    self._is_closed = False
    self._clock = clock
    self._error: Exception | None = None
    self._was_raised = False
    if not enabled:
      return
    purge_step = start_step + 1 if start_step else start_step
    files = _open_files(
      job_log_dir,
      name,
      purge_step=purge_step,
      one_line_a_step=one_line_a_step,
      now_s=clock.now_s(),
    )
    self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
    lag_s = flush_interval_s if fs.is_remote(job_log_dir) else 0.0
    self._thread = threading.Thread(
      target=self._run, args=(*files, lag_s), name=f'summaries {name}'
    )
    self._thread.daemon = True
    self._thread.start()

  def scalars(
    self,
    step: int,
    values: Mapping[str, Any],
    *,
    facts: Mapping[str, Any] | None = None,
  ) -> None:
    """Reports numbers of a step, as one line and one event.

    Args:
      step: Updates done.
      values: Tag to a number already on the host; a device array would make
        this call wait for the device.
      facts: What the line is to say besides, for programs that read it.
    """
    if not self._is_enabled:
      return
    self._check_open()
    step, now_s = int(step), self._clock.now_s()
    numbers = {tag: _number(value) for tag, value in values.items()}
    self._queue.put(
      (
        lambda: _events.scalars(step, numbers, wall_time_s=now_s),
        lambda: _metrics_log.encode(step, now_s, numbers, facts),
      )
    )

  def text(self, step: int, tag: str, content: str) -> None:
    """Reports a text, shown as Markdown."""
    self._report(_events.text, step, tag, content)

  def histogram(self, step: int, tag: str, values: Any) -> None:
    """Reports how host values are distributed; those not finite are left out."""
    # A copy: the caller may go on to change its buffer.
    self._report(_events.histogram, step, tag, np.array(values, np.float64))

  def image(self, step: int, tag: str, pixels: Any) -> None:
    """Reports an image: [height, width] or [height, width, 1|3|4] on the host.

    Floats are in 0..1, integers in 0..255.
    """
    self._report(_events.image, step, tag, _events.to_pixels(tag, pixels))

  def flush(self) -> None:
    """Waits until everything reported is in the files.

    Raises:
      ReportingError: Something could not be written.
    """
    if not self._is_enabled:
      return
    done = threading.Event()
    if self._thread.is_alive():
      self._queue.put(done)
      while not done.wait(timeout=0.1) and self._thread.is_alive():
        pass
    self._raise()

  def close(self) -> None:
    """Writes what is left and ends; raises what was not raised before."""
    if not self._is_enabled or self._is_closed:
      return
    self._is_closed = True
    self._queue.put(None)
    self._thread.join(timeout=_CLOSE_TIMEOUT_S)
    if self._thread.is_alive():
      logging.warning('Summaries still unwritten after %g s.', _CLOSE_TIMEOUT_S)
    if not self._was_raised:
      self._raise()

  def __enter__(self) -> 'SummaryWriter':
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def _report(
    self, make: Callable[..., bytes], step: int, tag: str, value: Any
  ) -> None:
    if not self._is_enabled:
      return
    self._check_open()
    step, now_s = int(step), self._clock.now_s()
    self._queue.put(
      (lambda: make(step, tag, value, wall_time_s=now_s), lambda: b'')
    )

  def _check_open(self) -> None:
    self._raise()
    if self._is_closed:
      raise ValueError('A closed SummaryWriter was asked to write.')

  def _raise(self) -> None:
    if self._error is not None:
      self._was_raised = True
      remedy = disks.remedy(self._error)
      raise errors.ReportingError(
        f'Summaries could not be written to {self._job_log_dir}: '
        f'{self._error}. {f"{remedy}, then start" if remedy else "Start"} the '
        'job again: it goes on from its last checkpoint.'
      ) from self._error

  def _run(self, events: Any, lines: Any, lag_s: float) -> None:
    try:
      with events, lines:
        _drain(self._queue, events, lines, lag_s)
    except Exception as error:  # noqa: BLE001 - raised at the next call
      self._error = error


def _number(value: Any) -> int | float:
  """A count stays a whole number; anything else, arrays of one, is a float."""
  return int(value) if isinstance(value, int | np.integer) else float(value)


# What to write as an event and as a line; or whom to tell that all before it
# is written; or None at the end.
_Item = tuple[Callable[[], bytes], Callable[[], bytes]] | threading.Event | None


def _drain(
  items: 'queue.SimpleQueue[_Item]', events: Any, lines: Any, lag_s: float
) -> None:
  """Writes items until the None; flushes when idle, at most every `lag_s`."""
  flushed_s = clocks.SYSTEM.monotonic_s()
  is_dirty = False
  while True:
    try:
      wait_s = max(0.0, flushed_s + lag_s - clocks.SYSTEM.monotonic_s())
      item = items.get(timeout=wait_s) if is_dirty else items.get()
    except queue.Empty:
      item = None
      is_end = False
    else:
      is_end = item is None
    if isinstance(item, tuple):
      make_event, make_line = item
      events.write(make_event())
      lines.write(make_line())
      is_dirty = True
      continue
    if is_dirty:
      # The lines last: who finds a line there knows that all is written.
      events.flush()
      lines.flush()
    is_dirty, flushed_s = False, clocks.SYSTEM.monotonic_s()
    if isinstance(item, threading.Event):
      item.set()
    if is_end:
      return


def _open_files(
  job_log_dir: str,
  name: str,
  *,
  purge_step: int | None,
  one_line_a_step: bool,
  now_s: float,
) -> tuple[Any, Any]:
  """The event file and the lines, ready to be added to."""
  path = _metrics_log.path_of(job_log_dir, name)
  directory = fs.join(job_log_dir, 'summaries', name)
  file_system = fs.for_path(job_log_dir)
  file_system.make_dirs(fs.parent_dir(path))
  file_system.make_dirs(directory)
  _metrics_log.rewind(path, purge_step=purge_step)
  # Always a new file: what a killed run left may end in half a record.
  event_path = fs.join(directory, _events.new_file_name(directory, now_s=now_s))
  with contextlib.ExitStack() as if_it_fails:
    events = file_system.open_append(event_path)
    if_it_fails.enter_context(contextlib.closing(events))
    events.write(_events.header(wall_time_s=now_s, purge_step=purge_step))
    events.flush()
    lines = (
      _metrics_log.Table(path)
      if one_line_a_step
      else file_system.open_append(path)
    )
    if_it_fails.pop_all()
  return events, lines
