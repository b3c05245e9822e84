"""How far a job has come, and whether its generations get anywhere."""

from collections.abc import Sequence


class Headway:
  """Counts steps that all workers of a generation have done.

  Attributes:
    done_step: Of the current generation; -1 if none is known.
    num_futile: Generations in a row that were given up without a new step.
    is_ahead: Whether the current one has got farther than any before it.
  """

  def __init__(self) -> None:
    self.done_step = -1
    self.num_futile = 0
    self.is_ahead = False
    self._best_step = -1
    self._restored_step = -1
    self._is_told = False

  def begin(self, restored_step: int, *, is_adopted: bool = False) -> None:
    """A generation begins, from a snapshot or with -1 without one."""
    self._restored_step = restored_step
    self.is_ahead = False
    if not is_adopted:
      self._is_told = False
      self.done_step = -1

  def lost(self, restored_step: int) -> int:
    """Steps that are to be done again when it goes on from a snapshot."""
    return max(0, self.done_step - restored_step)

  def note(self, steps: Sequence[int], *, num_members: int) -> bool:
    """Takes note of what workers have done.

    Returns:
      Whether all have just done their generation's first step.
    """
    if not steps:
      return False
    least = min(steps)
    self.done_step = max(self.done_step, least)
    if len(steps) < num_members:
      return False
    if least > self._best_step:
      self._best_step = least
      self.num_futile = 0
      self.is_ahead = True
    if self._is_told or least <= max(0, self._restored_step):
      return False
    self._is_told = True
    return True
