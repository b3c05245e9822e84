"""Decodes inputs with the variables of a step and writes what came out."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from paxlike import inputs, programs, reporting, tasks
from paxlike.core import errors, metrics
from paxlike.runners import _follow, _journal, _restore
from paxlike.runners import session as sessions

_PREFIX = 'decode_test'


def metrics_names(sources: Sequence[inputs.Input]) -> list[str]:
  """Of the metrics of decoding these inputs."""
  return [f'{_PREFIX}_{source.name}' for source in sources]


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


class Decoder:
  """Decodes inputs and writes what came out; compiled once a batch shape.

  Attributes:
    journal: Which checkpoints are done.
  """

  def __init__(
    self,
    session: sessions.Session,
    sources: Sequence[inputs.Input],
    params: reporting.DecodeParams | None = None,
  ):
    self._session = session
    self._sources = {source.name: source for source in sources}
    for source in sources:
      if source.num_batches is None:
        raise errors.ConfigError(
          f'Decode input {source.name} has no end: set its '
          'eval_loop_num_batches.'
        )
    self._params = params or reporting.DecodeParams()
    self._program = programs.DecodeProgram(session.task, session.partitioner)
    self.journal = _journal.Journal(
      session.job_log_dir,
      _PREFIX,
      list(self._sources),
      is_unfinished=lambda name, step: reporting.is_unfinished(
        session.job_log_dir, name, step
      ),
    )

  def run(
    self, eval_vars: _restore.EvalVars, names: Sequence[str]
  ) -> DecodeResult:
    """Decodes the inputs of these names."""
    paths, found = {}, {}
    for name in names:
      with self._session.world.progress.phase(f'decode {name}'):
        one = _OneDecode(self._session, self._sources[name], eval_vars)
        paths[name] = one.run(self._program, self._params)
      found[name] = one.metrics
      self.journal.mark(name, eval_vars.step, eval_vars.saved_s)
      logging.info(
        'Decoded %s with step %d to %s.  %s',
        name,
        eval_vars.step,
        paths[name],
        '  '.join(f'{tag} {m.value:.5g}' for tag, m in one.metrics.items()),
      )
    return DecodeResult(step=eval_vars.step, paths=paths, metrics=found)

  def forget_from(self, step: int) -> None:
    """Drops what is known of `step` and later, and what is half decoded."""
    for name in self.journal.names:
      self.journal.forget_from(name, step)
    self._drop_partial(lambda partial: partial >= step)

  def forget_gone(self, steps: Sequence[int]) -> None:
    """Drops what is half decoded of steps that nobody can go on with.

    Args:
      steps: Those of which there is a checkpoint.
    """
    there = frozenset(steps)
    self._drop_partial(lambda step: step < max(there) and step not in there)

  def _drop_partial(self, is_dropped: Callable[[int], bool]) -> None:
    job_log_dir = self._session.job_log_dir
    if not self._session.is_writer:
      return
    for name in self._sources:
      for step in reporting.unfinished_steps(job_log_dir, name):
        if is_dropped(step):
          logging.info(
            'Step %d of %s was decoded in part: dropped.', step, name
          )
          reporting.drop_unfinished(job_log_dir, name, step)


class _OneDecode:
  """One pass over one input with one checkpoint.

  Attributes:
    metrics: Over the examples of all processes, and of killed runs before.
  """

  def __init__(
    self,
    session: sessions.Session,
    source: inputs.Input,
    eval_vars: _restore.EvalVars,
  ):
    self.metrics: dict[str, metrics.WeightedScalar] = {}
    self._session = session
    self._source = source
    self._eval_vars = eval_vars
    self._world = session.world.scoped(f'decode/{source.name}/{eval_vars.step}')

  def run(
    self, program: programs.DecodeProgram, params: reporting.DecodeParams
  ) -> str:
    """Decodes and writes; returns the path of this process's outputs."""
    session, source = self._session, self._source
    assert source.num_batches is not None
    writer = reporting.KeyValueWriter(
      session.job_log_dir,
      source.name,
      step=self._eval_vars.step,
      num_batches=source.num_batches,
      file_format=params.format,
      fingerprint=self._fingerprint(),
      batches_per_commit=params.batches_per_commit,
      world=session.world,
    )
    with contextlib.closing(
      program.run(
        self._eval_vars.mdl_vars,
        source,
        writer.pending(),
        process_index=session.world.process_index,
        process_count=session.world.process_count,
      )
    ) as batches:
      for position, rows in batches:
        _follow.stop_if_asked(session)
        decoded = session.task.process_decode_out(source, rows)
        writer.write(position, decoded.pairs, note=_note(decoded))
    return writer.finish(report=self._report)

  def _fingerprint(self) -> str:
    """What the outputs depend on: with another one they are made anew."""
    return json.dumps(
      {
        'input': self._source.fingerprint,
        'checkpoint': self._eval_vars.saved_s,
        'settings': self._session.task.decode_settings,
      }
    )

  def _report(self, notes: list[Any]) -> None:
    """Puts the metrics of all examples into the summaries."""
    parts = self._world.gather('notes', json.dumps(notes).encode())
    totals, statistics = _merged(
      [note for part in parts for note in json.loads(part)]
    )
    task = self._session.task
    self.metrics = {**totals, **task.derive_decoded(totals, statistics)}
    saved_s = self._eval_vars.saved_s
    with reporting.SummaryWriter(
      self._session.job_log_dir,
      f'{_PREFIX}_{self._source.name}',
      enabled=self._session.is_writer,
      start_step=None,
      one_line_a_step=True,
    ) as summaries:
      summaries.scalars(
        self._eval_vars.step,
        {name: float(m.value) for name, m in self.metrics.items()},
        facts={} if saved_s is None else {_journal.SAVED_S: saved_s},
      )


def _note(decoded: tasks.Decoded) -> dict[str, Any]:
  """What a batch adds to the metrics, as JSON."""
  return {
    'metrics': {
      name: (float(m.value), float(m.weight))
      for name, m in decoded.metrics.items()
    },
    'statistics': {
      name: np.asarray(value).tolist()
      for name, value in decoded.statistics.items()
    },
  }


def _merged(
  notes: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, metrics.WeightedScalar], dict[str, np.ndarray]]:
  """Metrics and statistics over the batches of all notes."""
  totals = metrics.combine(
    {
      name: metrics.WeightedScalar(value=float(value), weight=float(weight))
      for name, (value, weight) in note['metrics'].items()
    }
    for note in notes
  )
  statistics: dict[str, np.ndarray] = {}
  for note in notes:
    for name, value in note['statistics'].items():
      statistics[name] = np.asarray(statistics.get(name, 0) + np.asarray(value))
  return totals, statistics
