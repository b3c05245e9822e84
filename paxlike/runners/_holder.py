"""Keeps the checkpoints that are to be worked on next from being swept."""

from collections.abc import Sequence

from absl import logging

from paxlike import checkpoint
from paxlike.core import clock as clocks

# So many steps more than it keeps may a trainer find on its disk.
MAX_HELD = 4


class Holder:
  """Leases on the oldest checkpoints that are due, until they are done.

  A step is let go once it is due no more, not before: whoever is killed while
  at work on it finds it there when it comes back. A lease outlives its owner
  by `duration_s` at most.
  """

  def __init__(
    self,
    directory: str,
    *,
    duration_s: float,
    clock: clocks.Clock = clocks.SYSTEM,
  ):
    """Holds nothing yet.

    Args:
      directory: Directory of checkpoints.
      duration_s: How long a lease lasts that nobody renews.
      clock: Where the time comes from.
    """
    self._directory = directory
    self._duration_s = duration_s
    self._clock = clock
    self._held: dict[int, checkpoint.Lease] = {}
    self._told: set[int] = set()

  def hold(self, due: Sequence[int]) -> None:
    """Holds the first few of these steps and lets go of all others.

    Args:
      due: Steps to be worked on, the one at work first.
    """
    self.keep(due)
    for step in due[:MAX_HELD]:
      if step in self._held:
        self._held[step].renew()
      else:
        self._take(step)
    for step in set(due[MAX_HELD:]) - self._told:
      self._told.add(step)
      logging.info('Step %d is not held yet: so many are.', step)

  def keep(self, due: Sequence[int]) -> None:
    """Lets go of all but these steps."""
    for step in self._held.keys() - set(due):
      self._held.pop(step).release()

  def _take(self, step: int) -> None:
    lease = checkpoint.lease(
      self._directory, step, duration_s=self._duration_s, clock=self._clock
    )
    if lease is None:
      logging.info('Step %d was swept before it could be held.', step)
      return
    if not self._held and not lease.is_granted:
      logging.info('No lease on step %d: it may be swept any time.', step)
    if lease.is_granted:
      logging.info('Step %d is held until it is done.', step)
    self._held[step] = lease
