"""What this process is doing: its phase and step, for peers and watchdogs."""

import collections
import contextlib
import dataclasses
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator

from paxlike.core import clock as clock_lib

# What may take as long as it takes; the steps' pace says nothing about it. Of
# an evaluation or a decoding the part between its batches has its own pace.
UNTIMED_PHASES = frozenset({'compile', 'eval', 'decode', 'save', 'restore'})
_STEPS_REMEMBERED = 64
# A step that takes over this many medians, and this long, has stood still.
_STALL_FACTOR = 10.0
_STALL_LEAST_S = 1.0
_PLACE = '_paxlike_place'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
  """One look at a Progress.

  Attributes:
    phase: The innermost phase, 'train', 'compile', ...; '' before the first.
    step: The last step told of, -1 before the first.
    idle_s: Seconds since a step or batch was told of, or an untimed phase
      ended.
    is_timed: Whether a step or a batch is due: false before the first one, in
      compile, save and restore, and in eval and decode outside of their
      batches.
    median_step_s: How long recent steps took, or batches in an evaluation or
      a decoding; 0.0 before the second.
    batch: How many batches of an evaluation or a decoding were told of.
    due: What is due: 'step' or 'batch'.
    stretch: What is the same on every process for as long as nothing that is
      due is done.
    ticks: How many steps were told of and programs begun so far. All main
      threads run one program, so they go through these in one order.
    is_patient: Whether inside of a phase that takes as long as it takes.
  """

  phase: str
  step: int
  idle_s: float
  is_timed: bool
  median_step_s: float
  batch: int = 0
  due: str = 'step'
  stretch: str = ''
  ticks: int = 0
  is_patient: bool = False

  def __str__(self) -> str:
    step = '' if self.step < 0 else f'step {self.step}, '
    batch = f', batch {self.batch}' if self.batch else ''
    return f'{step}phase {self.phase or "none"}{batch}'


@dataclasses.dataclass(eq=False)
class _Frame:
  """A phase that is under way, or the batches inside of one.

  Attributes:
    name: Of the phase.
    is_patient: Whether it takes as long as it takes.
    paces_s: How long batches took; None for a phase.
    since_ticks: How many programs had begun before it.
    num_batches: How many batches were told of.
    is_paced: Whether the time since the last batch is an example of the pace.
  """

  name: str
  is_patient: bool = False
  paces_s: deque[float] | None = None
  since_ticks: int = 0
  num_batches: int = 0
  is_paced: bool = False


class Progress:
  """Keeps the phase and the step of this process; safe from any thread."""

  def __init__(self, *, clock: clock_lib.Clock = clock_lib.SYSTEM):
    self._clock = clock
    self._lock = threading.Lock()
    self._frames: list[_Frame] = []
    self._step = -1
    self._ticks = 0
    self._idle_since_s = clock.monotonic_s()
    self._paces_s = _paces()
    self._batch_paces_s = collections.defaultdict(_paces)
    self._was_untimed = True
    self._totals_s: dict[str, float] = collections.defaultdict(float)
    self._charged_s = self._idle_since_s
    self._steps_s = 0.0  # of the totals, '' as of the last step

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Says that the work inside the `with` is `name`; phases may nest."""
    frame = _Frame(name, is_patient=_is_untimed(name))
    with self._lock:
      self._charge()
      self._frames.append(frame)
      if frame.is_patient:
        self._was_untimed = True
        for each in self._frames:
          each.is_paced = False
    try:
      yield
    except BaseException as error:
      # Told later, when the phases are over: this is where it happened.
      vars(error).setdefault(_PLACE, str(self.mark()))
      raise
    finally:
      with self._lock:
        now_s = self._charge()
        self._frames.remove(frame)
        if frame.is_patient:
          self._idle_since_s = now_s

  @contextlib.contextmanager
  def batches(self) -> Iterator[Callable[[], None]]:
    """Says that a phase goes through batches, which have a pace of their own.

    Yields:
      To be called at each batch.
    """
    with self._lock:
      frame = _Frame(self._phase(), since_ticks=self._ticks)
      frame.paces_s = self._batch_paces_s[frame.name]
      self._frames.append(frame)
      self._idle_since_s = self._clock.monotonic_s()
    try:
      yield lambda: self._batch(frame)
    finally:
      with self._lock:
        self._frames.remove(frame)

  def _batch(self, frame: _Frame) -> None:
    now_s = self._clock.monotonic_s()
    with self._lock:
      # Nor is a batch that was compiled for.
      if frame.is_paced and frame.paces_s is not None:
        frame.paces_s.append(now_s - self._idle_since_s)
      frame.is_paced = True
      frame.num_batches += 1
      self._idle_since_s = now_s

  def step(self, step: int) -> None:
    """Says that this process has come to `step`."""
    with self._lock:
      now_s = self._charge()
      stalled_s = self._stalled_s()
      self._totals_s[''] -= stalled_s
      self._totals_s['stall'] += stalled_s
      self._steps_s = self._totals_s['']
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

    Time in a phase inside another counts for the inner one alone. 'stall' is
    what a step took over the median, where it took many medians.
    """
    with self._lock:
      self._charge()
      totals_s, stalled_s = dict(self._totals_s), self._stalled_s()
    totals_s[''] = totals_s.get('', 0.0) - stalled_s
    totals_s['stall'] = totals_s.get('stall', 0.0) + stalled_s
    return {phase: s for phase, s in totals_s.items() if s}

  def _stalled_s(self) -> float:
    """How long the step that is under way stands still; charge before."""
    spent_s = self._totals_s[''] - self._steps_s
    if spent_s < _STALL_LEAST_S or not self._paces_s:
      return 0.0
    median_s = statistics.median(self._paces_s)
    return spent_s - median_s if spent_s > _STALL_FACTOR * median_s else 0.0

  def _phase(self) -> str:
    return self._frames[-1].name if self._frames else ''

  def _charge(self) -> float:
    now_s = self._clock.monotonic_s()
    self._totals_s[self._phase()] += now_s - self._charged_s
    self._charged_s = now_s
    return now_s

  def mark(self) -> Mark:
    """Where this process is now."""
    with self._lock:
      batch, due, stretch = 0, 'step', f'step {self._step}'
      is_timed, paces_s = self._step >= 0, self._paces_s
      for frame in reversed(self._frames):
        if frame.paces_s is not None:
          batch, due, paces_s = frame.num_batches, 'batch', frame.paces_s
          stretch = f'{frame.name} after {frame.since_ticks}'
          is_timed = bool(frame.num_batches or paces_s)
          break
        if frame.is_patient:
          is_timed = False
          break
      return Mark(
        phase=self._phase(),
        step=self._step,
        idle_s=self._clock.monotonic_s() - self._idle_since_s,
        is_timed=is_timed,
        median_step_s=statistics.median(paces_s) if paces_s else 0.0,
        batch=batch,
        due=due,
        stretch=stretch,
        ticks=self._ticks,
        is_patient=any(frame.is_patient for frame in self._frames),
      )


def _paces() -> deque[float]:
  return deque(maxlen=_STEPS_REMEMBERED)


def _is_untimed(phase: str) -> bool:
  # 'eval kjv' is an evaluation too.
  return phase.partition(' ')[0] in UNTIMED_PHASES
