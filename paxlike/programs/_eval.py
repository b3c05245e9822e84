"""One evaluation: every example of an input once, as sums over sums."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import numpy as np

from paxlike import inputs, parallel, sync, tasks
from paxlike.core import metrics
from paxlike.core import typing as ptyping
from paxlike.programs import _executable, steps

_MAX_IN_FLIGHT = 2


@dataclasses.dataclass(frozen=True)
class EvalResult:
  """What an evaluation found.

  Attributes:
    metrics: Means over all that was counted, `loss` among them, with what the
      task derives from them.
    num_examples: How many examples were counted.
  """

  metrics: Mapping[str, metrics.WeightedScalar]
  num_examples: int

  def scalars(self) -> dict[str, float | int]:
    """The metrics and the count as plain numbers."""
    values = {name: float(m.value) for name, m in self.metrics.items()}
    return {**values, 'num_examples': self.num_examples}


class EvalProgram:
  """Evaluates a task's variables on inputs; compiled once a batch shape."""

  def __init__(self, task: tasks.Task, partitioner: parallel.Partitioner):
    self._task = task
    self._partitioner = partitioner
    self._step = _executable.Executable(
      functools.partial(steps.eval_step, task),
      out_shardings=partitioner.replicated,
    )

  def run(
    self,
    mdl_vars: ptyping.PyTree,
    source: inputs.Input,
    *,
    on_batch: Callable[[], None] | None = None,
  ) -> EvalResult:
    """Evaluates one pass, from the input's first batch on.

    Args:
      mdl_vars: The variables; not given up.
      source: A finite input, or one with `eval_loop_num_batches`.
      on_batch: Called before each batch, such as to stop by raising.

    Returns:
      The same numbers however often and wherever it is called.
    """
    totals = _Totals()
    in_flight: collections.deque[steps.EvalOutput] = collections.deque()
    with (
      batches(source, self._partitioner, task=self._task) as stream,
      sync.world().progress.batches() as tell,
    ):
      for batch in stream:
        tell()
        if on_batch is not None:
          on_batch()
        in_flight.append(self._step(mdl_vars, batch))
        if len(in_flight) > _MAX_IN_FLIGHT:
          totals.add(in_flight.popleft())
      for output in in_flight:
        totals.add(output)
        tell()
    return totals.result(self._task)

  def run_batch(
    self, mdl_vars: ptyping.PyTree, batch: ptyping.PlacedBatch
  ) -> EvalResult:
    """Evaluates one global batch that the caller has at hand."""
    totals = _Totals()
    totals.add(self._step(mdl_vars, batch))
    return totals.result(self._task)


def batches(
  source: inputs.Input,
  partitioner: parallel.Partitioner,
  position: int = 0,
  *,
  task: tasks.Task | None = None,
) -> inputs.Stream:
  """The batches of one pass from `position`, already on the devices.

  Args:
    source: What to read.
    partitioner: Where batches live.
    position: The first batch.
    task: Is shown the first batch that is read, on the host, to refuse it.
  """
  unseen = [task] if task is not None else []

  def put(batch: ptyping.HostBatch) -> ptyping.PlacedBatch:
    while unseen:
      unseen.pop().check_batch(batch, input_name=source.name)
    return partitioner.put_batch(batch, source.batch_size)

  return inputs.Stream(
    source,
    rows=partitioner.local_rows(source.batch_size),
    position=position,
    put=put,
  )


class _Totals:
  """Sums and rows over the batches of one evaluation."""

  def __init__(self) -> None:
    self._metrics = metrics.Accumulator()
    self._statistics: dict[str, np.ndarray] = {}
    self._rows: dict[str, list[np.ndarray]] = {}
    self._num_examples = 0

  def add(self, output: steps.EvalOutput) -> None:
    output = jax.device_get(output)
    self._metrics.add(output.metrics)
    is_counted = np.asarray(output.is_counted)
    self._num_examples += int(is_counted.sum())
    for name, rows in output.collected.items():
      self._rows.setdefault(name, []).append(np.asarray(rows)[is_counted])
    for name, value in output.statistics.items():
      # Widened, so that counts over many batches cannot wrap or round.
      wide = np.asarray(value).astype(
        np.int64 if np.issubdtype(value.dtype, np.integer) else np.float64
      )
      self._statistics[name] = np.asarray(self._statistics.get(name, 0) + wide)

  def result(self, task: tasks.Task) -> EvalResult:
    found = self._metrics.result()
    if found:
      rows = {name: np.concatenate(r) for name, r in self._rows.items()}
      found |= task.derive(found, {**self._statistics, **rows})
    return EvalResult(metrics=found, num_examples=self._num_examples)
