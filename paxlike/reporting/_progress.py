"""One line that says how far a training is; plain log lines elsewhere.

On a terminal it is a live line at the bottom, under the log. Elsewhere it is
a log line every now and then: at most 27 for any number of steps, or one in
five minutes, whichever is more.
"""

import collections
import io
import math
import sys
from typing import Any

from absl import logging

from paxlike.core import clock as clocks

_MIN_LOG_INTERVAL_S = 10.0
_MAX_LOG_INTERVAL_S = 300.0
_MAX_LOG_LINES = 25
_RATE_WINDOW_S = 30.0
_DRAW_INTERVAL_S = 0.25


class ProgressLine:
  """Shows step, loss, speed, time left and last checkpoint; a context.

  A call costs a microsecond between two drawings.
  """

  def __init__(
    self,
    *,
    num_steps: int,
    start_step: int = 0,
    tokens_per_step: int | None = None,
    enabled: bool = True,
    stream: io.TextIOBase | None = None,
    clock: clocks.Clock = clocks.SYSTEM,
  ):
    """Begins at `start_step`.

    Args:
      num_steps: Steps of the whole run.
      start_step: Steps done before this process started.
      tokens_per_step: Tokens of a global batch; None shows no tokens/s.
      enabled: False shows nothing: one process of a job is enough.
      stream: Where to draw, if it is a terminal; stderr by default.
      clock: Where the time comes from.
    """
    self._num_steps = num_steps
    self._start_step = start_step
    self._step = start_step
    self._tokens_per_step = tokens_per_step
    self._is_enabled = enabled
    self._clock = clock
    self._loss = math.nan
    self._last_checkpoint: int | None = None
    self._marks: collections.deque[tuple[float, int]] = collections.deque()
    self._logged_s, self._logged_step = -math.inf, start_step
    self._drawn_s = -math.inf
    terminal: Any = sys.stderr if stream is None else stream
    self._live = _Live(terminal) if enabled and terminal.isatty() else None

  def update(
    self,
    step: int,
    *,
    loss: float | None = None,
    last_checkpoint: int | None = None,
  ) -> None:
    """Says that `step` steps are done.

    Args:
      step: Steps done.
      loss: Newest loss that is on the host; None keeps the one before.
      last_checkpoint: Newest step that is safe; None keeps the one before.
    """
    self._step = step
    if loss is not None:
      self._loss = loss
    if last_checkpoint is not None:
      self._last_checkpoint = last_checkpoint
    if not self._is_enabled:
      return
    now_s = self._clock.monotonic_s()
    if not self._marks:
      # Speed is counted from the first step done: before it was the compile.
      self._mark(now_s)
    if self._live is not None and now_s - self._drawn_s >= _DRAW_INTERVAL_S:
      self._drawn_s = now_s
      self._mark(now_s)
      self._live.draw(self.text(), step, self._num_steps)
    elif self._live is None and self._is_log_due(now_s):
      self._mark(now_s)
      self._log(now_s)

  def text(self) -> str:
    """What the line says."""
    parts = [f'step {self._step}/{self._num_steps}']
    if not math.isnan(self._loss):
      parts.append(f'loss {self._loss:.4g}')
    rate = self._steps_per_s()
    if rate > 0:
      parts.append(f'{rate:.3g} steps/s')
      if self._tokens_per_step is not None:
        parts.append(f'{rate * self._tokens_per_step:,.0f} tokens/s')
      left_s = max(0, self._num_steps - self._step) / rate
      parts.append(f'{_duration(left_s)} left')
    if self._last_checkpoint is not None:
      parts.append(f'checkpoint {self._last_checkpoint}')
    return ' · '.join(parts)

  def close(self) -> None:
    """Takes the live line away; the last word goes to the log."""
    if not self._is_enabled:
      return
    self._is_enabled = False
    if self._live is not None:
      self._live.close()
    now_s = self._clock.monotonic_s()
    self._mark(now_s)
    if self._step != self._logged_step or self._logged_s == -math.inf:
      self._log(now_s)

  def __enter__(self) -> 'ProgressLine':
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def _is_log_due(self, now_s: float) -> bool:
    since_s = now_s - self._logged_s
    steps = self._step - self._logged_step
    if since_s < _MIN_LOG_INTERVAL_S:
      return False
    return (
      since_s >= _MAX_LOG_INTERVAL_S
      or steps * _MAX_LOG_LINES >= self._num_steps - self._start_step
    )

  def _log(self, now_s: float) -> None:
    self._logged_s, self._logged_step = now_s, self._step
    logging.info('%s', self.text())

  def _mark(self, now_s: float) -> None:
    self._marks.append((now_s, self._step))
    while len(self._marks) > 2 and now_s - self._marks[1][0] >= _RATE_WINDOW_S:
      self._marks.popleft()

  def _steps_per_s(self) -> float:
    if not self._marks:
      return 0.0
    (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
    return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


class _Live:
  """The line on a terminal, drawn by rich below what is logged."""

  def __init__(self, stream: Any):
    # Rich is slow to import, and of no use without a terminal.
    import rich.console
    import rich.live

    self._console = rich.console.Console(file=stream)
    self._live = rich.live.Live(
      console=self._console, auto_refresh=False, transient=True
    )
    self._live.start()
    # absl holds the original stderr, which rich cannot redirect.
    self._handler: Any = logging.get_absl_handler().python_handler
    self._handler_stream = self._handler.stream
    self._handler.setStream(sys.stderr)

  def draw(self, text: str, step: int, num_steps: int) -> None:
    """Replaces the line."""
    import rich.table
    from rich import progress_bar

    line = rich.table.Table.grid(padding=(0, 1))
    line.add_column()
    line.add_column(no_wrap=True, overflow='ellipsis')
    line.add_row(
      progress_bar.ProgressBar(total=num_steps, completed=step, width=20), text
    )
    self._live.update(line, refresh=True)

  def close(self) -> None:
    """Takes the line away."""
    self._handler.setStream(self._handler_stream)
    self._live.stop()


def _duration(seconds: float) -> str:
  minutes, second = divmod(round(seconds), 60)
  hours, minute = divmod(minutes, 60)
  if hours:
    return f'{hours}:{minute:02d}:{second:02d}'
  return f'{minute}:{second:02d}'
