"""How far a job has come, and whether its generations get anywhere."""

from collections.abc import Sequence


class Headway:
  """Counts steps that all workers of a generation have done.

  Attributes:
    done_step: Of the current generation; -1 if none is known.
    num_futile: Generations in a row that were given up without a new step.
  """

  def __init__(self) -> None:
    self.done_step = -1
    self.num_futile = 0
    self._best_step = -1
    self._restored_step = -1
    self._begun_step = -1
    self._is_told = False

  def begin(self, restored_step: int, *, is_adopted: bool = False) -> None:
    """A generation begins, from a snapshot or with -1 without one."""
    self._restored_step = self._begun_step = restored_step
    if not is_adopted:
      self._is_told = False
      self.done_step = -1

  def lost(self, restored_step: int) -> int:
    """Steps that are to be done again when it goes on from a snapshot."""
    return max(0, self.done_step - restored_step)

  def has_gained(self, snapshot_steps: int) -> bool:
    """Whether the generation has a snapshot newer than what it began with."""
    begun = max(0, self._begun_step) // snapshot_steps
    return self.done_step // snapshot_steps > begun

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
    if self._begun_step < 0:  # it began with a checkpoint, or anew
      self._begun_step = least
    if least > self._best_step:
      self._best_step = least
      self.num_futile = 0
    if self._is_told or least <= max(0, self._restored_step):
      return False
    self._is_told = True
    return True
