"""How a language model decodes, and what is written of each example.

The examples are prompts with, where known, the text that really follows; the
model either goes on by itself ('generate') or tells how likely it finds that
text ('score').
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, Num

from paxlike import models
from paxlike.core import errors, metrics
from paxlike.core import typing as ptyping
from paxlike.tasks import _base, _text_metrics

if TYPE_CHECKING:
  from paxlike import inputs

MODES = ('generate', 'score')
# Where among the variables `prepare` puts the decoder.
_READY = 'decoder'


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderParams:
  """How a language model decodes.

  Attributes:
    mode: 'generate' continues each prompt; 'score' gives the log-probability
      of the continuation that is in the data.
    max_decode_steps: Longest continuation in tokens, the stop id included.
    temperature: Divides the scores before drawing; 0.0 takes the best token.
    top_k: Draw from this many of the best tokens only; None is all.
    top_p: Draw from the fewest best whose probabilities sum to this.
    min_p: Draw from those at least this probable, relative to the best.
    num_samples: Continuations of each prompt.
    beam_size: Number of beams; None is no beam search.
    length_penalty: Beams are ranked by log-probability divided by length to
      this power.
    stop_ids: Tokens that end a continuation.
    pad_id: Token after the end of a continuation; never counted.
    text_metrics: Which of 'bleu' and 'chrf' to report; needs sacrebleu.
  """

  mode: str = 'generate'
  max_decode_steps: int = 128
  temperature: float = 0.0
  top_k: int | None = None
  top_p: float = 1.0
  min_p: float = 0.0
  num_samples: int = 1
  beam_size: int | None = None
  length_penalty: float = 1.0
  stop_ids: tuple[int, ...] = ()
  pad_id: int = 0
  text_metrics: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    if self.mode not in MODES:
      raise errors.ConfigError(
        f'task_p.decoder.mode is {self.mode!r}, must be one of {MODES}.'
      )
    if self.max_decode_steps < 1:
      raise errors.ConfigError(
        f'task_p.decoder.max_decode_steps is {self.max_decode_steps}, must be '
        '>= 1.'
      )
    _text_metrics.check(self.text_metrics)
    self.generate_config()  # refuses the rest

  def generate_config(self) -> models.GenerateConfig:
    """The same for the model."""
    return models.GenerateConfig(
      max_new_tokens=self.max_decode_steps,
      temperature=self.temperature,
      top_k=self.top_k,
      top_p=self.top_p,
      min_p=self.min_p,
      num_samples=self.num_samples,
      beam_size=self.beam_size,
      length_penalty=self.length_penalty,
      stop_ids=tuple(self.stop_ids),
      pad_id=self.pad_id,
    )


def prepare(
  params: DecoderParams, model: models.Functional, mdl_vars: ptyping.PyTree
) -> dict[str, models.Decoder]:
  """What `decode` would else make for each batch anew; runs under jit."""
  if params.mode == 'score':
    return {}
  return {_READY: model.apply(mdl_vars, 'decoder')[0]}


def decode(
  params: DecoderParams,
  model: models.Functional,
  mdl_vars: ptyping.PyTree,
  batch: ptyping.Batch,
  *,
  key: Key[Array, ''],
) -> dict[str, Array]:
  """Decodes one batch of prompts; runs under jit.

  Args:
    params: How.
    model: The language model.
    mdl_vars: Its variables, and if there is any the result of `prepare`.
    batch: `prompt_ids` and `prompt_lengths`; where the text that follows is
      known also `targets` and `weights`, 1 on that text alone.
    key: For sampling.

  Returns:
    The prompts and targets, and what was generated or scored.
  """
  for name in ('prompt_ids', 'prompt_lengths'):
    if name not in batch:
      raise errors.ConfigError(
        f'A decode input of a language model needs {name!r}, this one has '
        f'{sorted(batch)}: use inputs.TextPromptInput or the like.'
      )
  prompts = {name: batch[name] for name in ('prompt_ids', 'prompt_lengths')}
  targets = _targets(batch)
  if params.mode == 'score':
    if not targets:
      raise errors.ConfigError(
        "task_p.decoder.mode='score' needs a decode input with 'targets' and "
        "'weights'."
      )
    scores, _ = model.apply(
      mdl_vars, models.score, *prompts.values(), *targets.values()
    )
    return {
      **prompts,
      **targets,
      'log_probs': scores.log_probs,
      'is_greedy': scores.is_greedy,
    }
  ready = mdl_vars if _READY in mdl_vars else prepare(params, model, mdl_vars)
  generated = models.generate(
    ready[_READY],
    *prompts.values(),
    config=params.generate_config(),
    key=key,
    # What is drawn for an example depends on neither batch nor mesh.
    example_ids=batch['example_id'],
  )
  return {
    **prompts,
    **targets,
    'ids': generated.ids,
    'lengths': generated.lengths,
    'log_probs': generated.log_probs,
  }


def _targets(batch: ptyping.Batch) -> dict[str, Array]:
  """What really follows each prompt, moved to the left, and its length."""
  if 'targets' not in batch or 'weights' not in batch:
    return {}
  counts = batch['weights'] != 0
  ids = _moved_left(batch['targets'], counts.argmax(axis=1))
  return {'target_ids': ids, 'target_lengths': counts.sum(axis=1)}


def _moved_left(
  rows: Num[Array, 'batch time'], starts: Int[Array, ' batch']
) -> Num[Array, 'batch time']:
  """Each row from its start on; what is moved in behind means nothing."""
  width = rows.shape[1]
  columns = jnp.minimum(starts[:, None] + jnp.arange(width), width - 1)
  return jnp.take_along_axis(rows, columns, axis=1)


def process(
  params: DecoderParams,
  source: 'inputs.Input',
  outputs: Mapping[str, np.ndarray],
) -> _base.Decoded:
  """Turns rows of `decode` into key/value pairs and metrics.

  Args:
    params: How it was decoded.
    source: The input; where it has `to_text`, tokens become text.
    outputs: Host rows, without padding.
  """
  to_text = getattr(source, 'to_text', None)
  rows = [
    _Row(params, outputs, index, to_text)
    for index in range(len(outputs['example_id']))
  ]
  values = _scored if params.mode == 'score' else _generated
  pairs = [
    (source.key(int(outputs['example_id'][row.index])), values(row))
    for row in rows
  ]
  if 'target_ids' not in outputs:
    return _base.Decoded(metrics={}, pairs=pairs)
  if params.mode == 'score':
    return _base.Decoded(metrics=_score_metrics(outputs), pairs=pairs)
  hits = [row.generated(0) == row.target for row in rows]
  texts = [
    (_plain(row.text(row.generated(0))), _plain(row.text(row.target)))
    for row in rows
  ]
  return _base.Decoded(
    metrics={'exact_match': _mean(np.asarray(hits, np.float64))},
    pairs=pairs,
    statistics=_text_metrics.statistics(params.text_metrics, texts),
  )


@dataclasses.dataclass(frozen=True)
class _Row:
  """One example of a batch of outputs, as lists of tokens."""

  params: DecoderParams
  outputs: Mapping[str, np.ndarray]
  index: int
  to_text: Callable[[Sequence[int]], str] | None

  def number(self, name: str, *sample: int) -> float:
    return float(self.outputs[name][(self.index, *sample)])

  @property
  def prompt(self) -> list[int]:
    return self._cut('prompt')

  @property
  def target(self) -> list[int]:
    return self._unstopped(self._cut('target'))

  def generated(self, sample: int) -> list[int]:
    length = int(self.outputs['lengths'][self.index, sample])
    ids = self.outputs['ids'][self.index, sample, :length]
    return self._unstopped(ids.tolist())

  def text(self, ids: Sequence[int]) -> str | list[int]:
    """Text where the input knows how tokens are spelled, else the tokens."""
    return list(ids) if self.to_text is None else self.to_text(ids)

  def _cut(self, name: str) -> list[int]:
    length = int(self.outputs[f'{name}_lengths'][self.index])
    return self.outputs[f'{name}_ids'][self.index, :length].tolist()

  def _unstopped(self, ids: list[int]) -> list[int]:
    is_stopped = bool(ids) and ids[-1] in self.params.stop_ids
    return ids[:-1] if is_stopped else ids


def _generated(row: _Row) -> dict[str, Any]:
  value: dict[str, Any] = {
    'prompt': row.text(row.prompt),
    'decoded': row.text(row.generated(0)),
    'log_prob': row.number('log_probs', 0),
  }
  if row.params.num_samples > 1:
    value['samples'] = [
      {
        'decoded': row.text(row.generated(sample)),
        'log_prob': row.number('log_probs', sample),
      }
      for sample in range(row.params.num_samples)
    ]
  if 'target_ids' in row.outputs:
    value['target'] = row.text(row.target)
  return value


def _scored(row: _Row) -> dict[str, Any]:
  return {
    'prompt': row.text(row.prompt),
    'target': row.text(row.target),
    'log_prob': row.number('log_probs'),
    'num_tokens': int(row.number('target_lengths')),
    'is_greedy': bool(row.number('is_greedy')),
  }


def _score_metrics(
  outputs: Mapping[str, np.ndarray],
) -> dict[str, metrics.WeightedScalar]:
  """Mean nats a token of the targets, and how many were the likeliest."""
  num_tokens = float(outputs['target_lengths'].sum())
  nats = -float(outputs['log_probs'].astype(np.float64).sum())
  return {
    'loss': metrics.WeightedScalar(
      value=nats / num_tokens if num_tokens else 0.0, weight=num_tokens
    ),
    'is_greedy': _mean(outputs['is_greedy'].astype(np.float64)),
  }


def _mean(values: np.ndarray) -> metrics.WeightedScalar:
  return metrics.WeightedScalar(
    value=float(values.mean()) if values.size else 0.0,
    weight=float(values.size),
  )


def _plain(text: str | list[int]) -> str:
  return text if isinstance(text, str) else ' '.join(map(str, text))
