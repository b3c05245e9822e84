"""The decode job: key/value outputs of a checkpoint for every decode input."""

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from paxlike import inputs, programs, reporting
from paxlike.core import errors, metrics
from paxlike.core import typing as ptyping
from paxlike.runners import _restore
from paxlike.runners import session as sessions


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeResult:
  """What one decode pass gave.

  Attributes:
    step: Of the checkpoint that was decoded with.
    paths: This process's file of outputs, by input name.
    metrics: The task's decode metrics, by input name.
  """

  step: int
  paths: Mapping[str, str]
  metrics: Mapping[str, Mapping[str, metrics.WeightedScalar]]


def decode_once_spmd_model(
  task_p: Any,
  input_p: Any,
  job_log_dir: str,
  checkpoint_p: Any = None,
  restore_checkpoint_dir: str | None = None,
  restore_checkpoint_step: int | None = None,
  *,
  mesh_p: Any = None,
  decode: Any = None,
  allow_random_init: bool = False,
) -> DecodeResult:
  """Decodes every decode input once and writes key/value pairs.

  Args:
    task_p: Config of a task, or a task.
    input_p: Configs of the inputs to decode, or inputs.
    job_log_dir: Where everything of the job goes.
    checkpoint_p: How checkpoints are read; None: the defaults.
    restore_checkpoint_dir: Directory of checkpoints; None: the job's own.
    restore_checkpoint_step: Which of them; None: the newest.
    mesh_p: How the job is split over devices; None: all in `data`.
    decode: Config of how outputs are written; None: the defaults.
    allow_random_init: Decode with fresh parameters if there is no checkpoint,
      as to try out a pipeline; else that is an error.

  Returns:
    Where the outputs are, and the metrics.

  Raises:
    CheckpointNotFoundError: There is no checkpoint to decode with.
    ConfigError: Some value is nonsense.
  """
  session = sessions.build(
    'decode', task_p, job_log_dir, mesh_p=mesh_p, checkpoint_p=checkpoint_p
  )
  sources = sessions.build_inputs(input_p)
  if not sources:
    raise errors.ConfigError(
      'The experiment has no decode inputs: give it decode_input_p().'
    )
  with session.status() as progress:
    restored = _restore.eval_vars(
      session,
      directory=restore_checkpoint_dir,
      step=restore_checkpoint_step,
      allow_random_init=allow_random_init,
    )
    progress.step = restored.step
    decoder = Decoder(session, sessions.built(decode))
    return decoder.run(restored.step, restored.mdl_vars, sources)


class Decoder:
  """Decodes inputs and writes what came out; compiled once a batch shape."""

  def __init__(
    self,
    session: sessions.Session,
    params: reporting.DecodeParams | None = None,
  ):
    self._session = session
    self._params = params or reporting.DecodeParams()
    self._program = programs.DecodeProgram(session.task, session.partitioner)

  def run(
    self,
    step: int,
    mdl_vars: ptyping.PyTree,
    sources: Sequence[inputs.Input],
  ) -> DecodeResult:
    """Decodes every input with the variables of `step`."""
    paths, found = {}, {}
    for source in sources:
      with self._session.world.progress.phase(f'decode {source.name}'):
        paths[source.name], found[source.name] = self._run_one(
          step, mdl_vars, source
        )
    return DecodeResult(step=step, paths=paths, metrics=found)

  def _run_one(
    self, step: int, mdl_vars: ptyping.PyTree, source: inputs.Input
  ) -> tuple[str, dict[str, metrics.WeightedScalar]]:
    session = self._session
    if source.num_batches is None:
      raise errors.ConfigError(
        f'Decode input {source.name} has no end: set its eval_loop_num_batches.'
      )
    writer = reporting.KeyValueWriter(
      session.job_log_dir,
      source.name,
      step=step,
      num_batches=source.num_batches,
      file_format=self._params.format,
      fingerprint=source.fingerprint,
      batches_per_commit=self._params.batches_per_commit,
      world=session.world,
    )
    totals = metrics.Accumulator()
    for position, rows in self._program.run(
      mdl_vars,
      source,
      writer.pending(),
      process_index=session.world.process_index,
      process_count=session.world.process_count,
    ):
      decoded = session.task.process_decode_out(source, rows)
      totals.add(decoded.metrics)
      writer.write(position, decoded.pairs)
    path = writer.finish()
    found = self._merged(step, source, totals)
    self._report(step, source, found)
    logging.info('Decoded %s with step %d to %s.', source.name, step, path)
    return path, found

  def _merged(
    self, step: int, source: inputs.Input, totals: metrics.Accumulator
  ) -> dict[str, metrics.WeightedScalar]:
    """The metrics over the rows of all processes."""
    mine = {
      name: (float(m.value), float(m.weight))
      for name, m in totals.result().items()
    }
    parts = self._session.world.gather(
      f'decode/{source.name}/{step}/metrics', json.dumps(mine).encode()
    )
    return metrics.combine(
      {
        name: metrics.WeightedScalar(value=value, weight=weight)
        for name, (value, weight) in json.loads(part).items()
      }
      for part in parts
    )

  def _report(
    self,
    step: int,
    source: inputs.Input,
    found: Mapping[str, metrics.WeightedScalar],
  ) -> None:
    with contextlib.closing(
      reporting.SummaryWriter(
        self._session.job_log_dir,
        f'decode_test_{source.name}',
        enabled=self._session.is_writer,
        start_step=None,
      )
    ) as summaries:
      summaries.scalars(
        step, {name: float(m.value) for name, m in found.items()}
      )
