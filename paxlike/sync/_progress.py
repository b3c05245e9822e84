"""What this process is doing: its phase and step, for peers and watchdogs."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

from paxlike.core import clock as clock_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
  """One look at a Progress.

  Attributes:
    phase: The innermost phase, 'train', 'compile', ...; '' before the first.
    step: The last step told of, -1 before the first.
    phase_since_s: Monotonic seconds at which the phase was entered.
    step_since_s: Monotonic seconds at which the step was told of.
  """

  phase: str
  step: int
  phase_since_s: float
  step_since_s: float

  def __str__(self) -> str:
    step = 'no step yet' if self.step < 0 else f'step {self.step}'
    return f'{step}, phase {self.phase or "start"}'


class Progress:
  """Keeps the phase and the step of this process; safe from any thread."""

  def __init__(self, *, clock: clock_lib.Clock = clock_lib.SYSTEM):
    self._clock = clock
    self._lock = threading.Lock()
    self._phases: list[tuple[str, float]] = []
    self._step = -1
    self._step_since_s = clock.monotonic_s()
    self._start_s = self._step_since_s

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Says that the work inside the `with` is `name`; phases may nest."""
    entry = (name, self._clock.monotonic_s())
    with self._lock:
      self._phases.append(entry)
    try:
      yield
    finally:
      with self._lock:
        self._phases.remove(entry)
        # A phase is not a slow step: time inside one does not count as idle.
        self._step_since_s = self._clock.monotonic_s()

  def step(self, step: int) -> None:
    """Says that this process has come to `step`."""
    with self._lock:
      self._step = step
      self._step_since_s = self._clock.monotonic_s()

  def mark(self) -> Mark:
    """Where this process is now."""
    with self._lock:
      phase, since_s = self._phases[-1] if self._phases else ('', self._start_s)
      return Mark(
        phase=phase,
        step=self._step,
        phase_since_s=since_s,
        step_since_s=self._step_since_s,
      )
