"""What this process is doing: its phase and step, for peers and watchdogs."""

import contextlib
import dataclasses
import statistics
import threading
from collections import deque
from collections.abc import Iterator

from paxlike.core import clock as clock_lib

# What may take as long as it takes; the steps' pace says nothing about it.
UNTIMED_PHASES = frozenset({'compile', 'eval', 'decode', 'save', 'restore'})
_STEPS_REMEMBERED = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
  """One look at a Progress.

  Attributes:
    phase: The innermost phase, 'train', 'compile', ...; '' before the first.
    step: The last step told of, -1 before the first.
    idle_s: Seconds since a step was told of, or an untimed phase ended.
    is_timed: Whether a step is due: false before the first one and in
      compile, eval, decode, save and restore.
    median_step_s: How long recent steps took; 0.0 before the second.
  """

  phase: str
  step: int
  idle_s: float
  is_timed: bool
  median_step_s: float

  def __str__(self) -> str:
    step = 'no step yet' if self.step < 0 else f'step {self.step}'
    return f'{step}, phase {self.phase or "none"}'


class Progress:
  """Keeps the phase and the step of this process; safe from any thread."""

  def __init__(self, *, clock: clock_lib.Clock = clock_lib.SYSTEM):
    self._clock = clock
    self._lock = threading.Lock()
    self._phases: list[str] = []
    self._step = -1
    self._idle_since_s = clock.monotonic_s()
    self._paces_s: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
    self._was_untimed = True

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Says that the work inside the `with` is `name`; phases may nest."""
    with self._lock:
      self._phases.append(name)
      self._was_untimed |= name in UNTIMED_PHASES
    try:
      yield
    finally:
      with self._lock:
        self._phases.remove(name)
        if name in UNTIMED_PHASES:
          self._idle_since_s = self._clock.monotonic_s()

  def step(self, step: int) -> None:
    """Says that this process has come to `step`."""
    now_s = self._clock.monotonic_s()
    with self._lock:
      # A step beside a compilation or a save is no example of its pace.
      if not self._was_untimed:
        self._paces_s.append(now_s - self._idle_since_s)
      self._was_untimed = False
      self._step = step
      self._idle_since_s = now_s

  def mark(self) -> Mark:
    """Where this process is now."""
    with self._lock:
      return Mark(
        phase=self._phases[-1] if self._phases else '',
        step=self._step,
        idle_s=self._clock.monotonic_s() - self._idle_since_s,
        is_timed=self._step >= 0 and not UNTIMED_PHASES & set(self._phases),
        median_step_s=(
          statistics.median(self._paces_s) if self._paces_s else 0.0
        ),
      )
