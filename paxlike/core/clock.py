"""Time as an object, so that tests can hold it still.

Wall time is seconds since 1970 in UTC, never a local time: retention and the
history must not change with the time zone of the host.
"""

import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
  """Where the time comes from."""

  def now_s(self) -> float:
    """Seconds since 1970-01-01 UTC; may step backwards."""
    ...

  def monotonic_s(self) -> float:
    """Seconds that only grow, for durations and deadlines."""
    ...

  def sleep_s(self, duration_s: float) -> None:
    """Blocks the calling thread for `duration_s` seconds."""
    ...


class SystemClock:
  """The clock of this machine."""

  def now_s(self) -> float:
    """Seconds since 1970-01-01 UTC."""
    return time.time()

  def monotonic_s(self) -> float:
    """Seconds that only grow."""
    return time.monotonic()

  def sleep_s(self, duration_s: float) -> None:
    """Blocks the calling thread for `duration_s` seconds."""
    time.sleep(duration_s)


SYSTEM: Clock = SystemClock()
