"""Which checkpoints have been evaluated or decoded, told by their results.

The line of a step in metrics/<name>.jsonl is the record that it is done: it is
written last and atomically, so there is no second file that could disagree,
and a job that was killed finds out from it where to go on.
"""

from collections.abc import Callable, Sequence
from typing import Any

from paxlike import checkpoint, reporting

# Field of a line: when the checkpoint was saved, which tells it apart from one
# of the same step that a run saved after it was started over.
SAVED_S = 'checkpoint_time'


class Journal:
  """What is done, by input; of use to process 0 alone.

  Attributes:
    names: The inputs, in their order.
    files: Where their results are, below the job's directory.
  """

  def __init__(
    self,
    job_log_dir: str,
    prefix: str,
    names: Sequence[str],
    *,
    is_unfinished: Callable[[str, int], bool] | None = None,
  ):
    """Reads what is there.

    Args:
      job_log_dir: The job's directory.
      prefix: Of the metrics' names, such as 'eval_test'.
      names: The inputs.
      is_unfinished: Whether, whatever its line says, more is to be done for
        this input at this step; None if never.
    """
    self.names = tuple(names)
    self.files = tuple(f'metrics/{prefix}_{name}.jsonl' for name in names)
    self._is_unfinished = is_unfinished
    self._finished: set[tuple[str, int]] = set()
    self._lines: dict[str, dict[int, float | None]] = {}
    for name in names:
      lines = reporting.read_metrics(job_log_dir, f'{prefix}_{name}')
      self._lines[name] = {line['step']: _saved_s(line) for line in lines}

  def missing(self, record: checkpoint.Record) -> list[str]:
    """The inputs for which this checkpoint is not done."""
    return [name for name in self.names if not self._is_done(name, record)]

  def last_step(self, name: str) -> int:
    """The highest step with a result; 0 if there is none."""
    return max(self._lines[name], default=0)

  def has(self, name: str, step: int) -> bool:
    """Whether there is a result for this step, of whichever checkpoint."""
    return step in self._lines[name]

  def is_started_over(self, name: str, step: int, saved_s: float) -> bool:
    """Whether a later step has a result, of a checkpoint that is older.

    Training then went back to before that step, and took another way.
    """
    return any(
      other > step and when is not None and when < saved_s
      for other, when in self._lines[name].items()
    )

  def mark(self, name: str, step: int, saved_s: float | None) -> None:
    """Notes that a checkpoint is done."""
    self._lines[name][step] = saved_s

  def forget_from(self, name: str, step: int) -> None:
    """Drops all that is known of `step` and later ones."""
    lines = self._lines[name]
    self._lines[name] = {s: when for s, when in lines.items() if s < step}
    self._finished = {
      (other, s) for other, s in self._finished if other != name or s < step
    }

  def _is_done(self, name: str, record: checkpoint.Record) -> bool:
    lines = self._lines[name]
    if record.step not in lines:
      return False
    if not self._is_finished(name, record.step):
      return False
    # A line without a time was written by the training job itself.
    return lines[record.step] in (None, record.timestamp_s)

  def _is_finished(self, name: str, step: int) -> bool:
    if self._is_unfinished is None or (name, step) in self._finished:
      return True
    # Looked up until it is so: a follower asks for each step at every look.
    if self._is_unfinished(name, step):
      return False
    self._finished.add((name, step))
    return True


def _saved_s(line: dict[str, Any]) -> float | None:
  value = line.get(SAVED_S)
  return None if value is None else float(value)
