"""Clocks that tests hold in their hands."""

import time


class FakeClock:
  """Stands still until told; sleeping on it moves it on."""

  def __init__(self, start_s: float = 1_700_000_000.0):
    self._now_s = start_s
    self._monotonic_s = 0.0

  def now_s(self) -> float:
    return self._now_s

  def monotonic_s(self) -> float:
    return self._monotonic_s

  def sleep_s(self, duration_s: float) -> None:
    self.advance_s(duration_s)

  def advance_s(self, duration_s: float) -> None:
    """Lets time pass: both wall time and monotonic time."""
    self._now_s += duration_s
    self._monotonic_s += duration_s

  def set_wall_s(self, now_s: float) -> None:
    """Sets the wall clock, as an administrator or NTP does."""
    self._now_s = now_s


class FastClock:
  """Real time, told `factor` times as fast, so that deadlines come soon."""

  def __init__(self, factor: float = 20.0):
    self.factor = factor

  def now_s(self) -> float:
    return time.time() * self.factor

  def monotonic_s(self) -> float:
    return time.monotonic() * self.factor

  def sleep_s(self, duration_s: float) -> None:
    time.sleep(duration_s / self.factor)
