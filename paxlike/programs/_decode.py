"""One decode pass: every example's outputs, on the process that writes them."""

from collections.abc import Generator, Iterator, Sequence

import jax
import numpy as np

from paxlike import inputs, parallel, sync, tasks
from paxlike.core import typing as ptyping
from paxlike.programs import _eval, _executable, steps


class DecodeProgram:
  """Decodes inputs with a task's variables; compiled once a batch shape."""

  def __init__(self, task: tasks.Task, partitioner: parallel.Partitioner):
    self._partitioner = partitioner
    seed = task.train.random_seed

    def decode_step(
      mdl_vars: ptyping.PyTree, batch: ptyping.Batch
    ) -> dict[str, jax.Array]:
      key = jax.random.key(seed, impl='threefry2x32')
      return steps.decode_step(task, mdl_vars, batch, key)

    self._prepare = _executable.Executable(task.prepare_decode)
    self._step = _executable.Executable(
      decode_step, out_shardings=partitioner.replicated
    )

  def run(
    self,
    mdl_vars: dict[str, ptyping.PyTree],
    source: inputs.Input,
    positions: Sequence[int],
    *,
    process_index: int = 0,
    process_count: int = 1,
  ) -> Generator[tuple[int, dict[str, np.ndarray]], None, None]:
    """Decodes some batches.

    Args:
      mdl_vars: The variables; not given up.
      source: The input to decode.
      positions: Which batches, in growing order.
      process_index: Which process this is.
      process_count: How many share the work of writing.

    Yields:
      For each batch its position and this process's rows of the outputs, on
      the host, padding rows left out, in the order of the input.
    """
    ready = {**mdl_vars, **self._prepare(mdl_vars)}
    for position, outputs in self._launched(ready, source, positions):
      rows = jax.device_get(outputs)
      real = np.flatnonzero(rows['example_weights'] != 0)
      mine = np.array_split(real, process_count)[process_index]
      yield position, {name: v[mine] for name, v in rows.items()}

  def _launched(
    self,
    mdl_vars: ptyping.PyTree,
    source: inputs.Input,
    positions: Sequence[int],
  ) -> Iterator[tuple[int, ptyping.PlacedBatch]]:
    """Positions and outputs, the device always one batch ahead of the host."""
    before: tuple[int, ptyping.PlacedBatch] | None = None
    with sync.world().progress.batches() as tell:
      for stretch in _stretches(positions):
        with _eval.batches(source, self._partitioner, stretch.start) as stream:
          for position in stretch:
            tell()
            launched = position, self._step(mdl_vars, next(stream))
            if before is not None:
              yield before
            before = launched
      if before is not None:
        yield before


def _stretches(positions: Sequence[int]) -> Iterator[range]:
  """Growing numbers as ranges without a gap."""
  start = 0
  for i in range(1, len(positions) + 1):
    if i == len(positions) or positions[i] != positions[i - 1] + 1:
      yield range(positions[start], positions[i - 1] + 1)
      start = i
