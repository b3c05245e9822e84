"""What this process is doing: its phase and step, for peers and watchdogs."""

import collections
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
_PLACE = '_paxlike_place'


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
    ticks: How many steps were told of and programs begun so far. All main
      threads run one program, so they go through these in one order.
    is_patient: Whether inside of a phase that takes as long as it takes.
  """

  phase: str
  step: int
  idle_s: float
  is_timed: bool
  median_step_s: float
  ticks: int = 0
  is_patient: bool = False

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
    self._ticks = 0
    self._idle_since_s = clock.monotonic_s()
    self._paces_s: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
    self._was_untimed = True
    self._totals_s: dict[str, float] = collections.defaultdict(float)
    self._charged_s = self._idle_since_s

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Says that the work inside the `with` is `name`; phases may nest."""
    with self._lock:
      self._charge()
      self._phases.append(name)
      self._was_untimed |= _is_untimed(name)
    try:
      yield
    except BaseException as error:
      # Told later, when the phases are over: this is where it happened.
      vars(error).setdefault(_PLACE, str(self.mark()))
      raise
    finally:
      with self._lock:
        now_s = self._charge()
        self._phases.remove(name)
        if _is_untimed(name):
          self._idle_since_s = now_s

  def step(self, step: int) -> None:
    """Says that this process has come to `step`."""
    now_s = self._clock.monotonic_s()
    with self._lock:
      # A step beside a compilation or a save is no example of its pace.
      if not self._was_untimed:
        self._paces_s.append(now_s - self._idle_since_s)
      self._was_untimed = False
      self._step = step
      self._ticks += 1
      self._idle_since_s = now_s

  def tick(self) -> None:
    """Says that a program of all processes is about to begin.

    For the main thread, which begins the same programs in the same order on
    every process.
    """
    with self._lock:
      self._ticks += 1

  def place_of(self, error: BaseException) -> str:
    """Step and phase at which `error`, or what caused it, was raised."""
    cause: BaseException | None = error
    while cause is not None:
      if _PLACE in vars(cause):
        return vars(cause)[_PLACE]
      cause = cause.__cause__ or cause.__context__
    return str(self.mark())

  def totals_s(self) -> dict[str, float]:
    """Seconds spent in each phase so far, '' for outside of any.

    Time in a phase inside another counts for the inner one alone.
    """
    with self._lock:
      self._charge()
      return dict(self._totals_s)

  def _charge(self) -> float:
    now_s = self._clock.monotonic_s()
    innermost = self._phases[-1] if self._phases else ''
    self._totals_s[innermost] += now_s - self._charged_s
    self._charged_s = now_s
    return now_s

  def mark(self) -> Mark:
    """Where this process is now."""
    with self._lock:
      return Mark(
        phase=self._phases[-1] if self._phases else '',
        step=self._step,
        idle_s=self._clock.monotonic_s() - self._idle_since_s,
        is_timed=self._step >= 0 and not any(map(_is_untimed, self._phases)),
        median_step_s=(
          statistics.median(self._paces_s) if self._paces_s else 0.0
        ),
        ticks=self._ticks,
        is_patient=any(map(_is_untimed, self._phases)),
      )


def _is_untimed(phase: str) -> bool:
  # 'eval kjv' is an evaluation too.
  return phase.partition(' ')[0] in UNTIMED_PHASES
