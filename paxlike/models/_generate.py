"""Continues prompts with a language model, and scores given continuations.

Promises: pure functions of a model and arrays, to be compiled whole by the
caller's `jax.jit`: no host round trip per token, an early exit once every row
is done. A row's result depends on its own prompt alone, not on the batch, the
side or the amount of padding, or what the padding holds.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from paxlike.core import errors
from paxlike.models import _beam, _decoder, _prompt, _sampling, _transformer

# A decoder is a model that was made ready, once for many batches.
_Model = _transformer.TransformerLm | _decoder.Decoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateConfig:
  """How to continue a prompt.

  Attributes:
    max_new_tokens: Longest continuation, the stop id included.
    temperature: Divides the scores before a draw; 0.0 is greedy. This and the
      next three, see `Sampling`, are not used by beam search.
    top_k: Draw from this many of the best; None is all.
    top_p: Draw from the fewest best whose probabilities sum to this.
    min_p: Draw from those this probable, relative to the best.
    num_samples: Continuations of each prompt. Beam search returns its best.
    beam_size: Number of beams; None is no beam search.
    length_penalty: Beam search ranks by the log-probability divided by the
      number of new tokens to this power.
    stop_ids: Tokens that end a continuation, which keeps them.
    pad_id: Fills the continuation after its end; it may be a stop id.
    padding: On which side prompts are padded: 'right' or 'left'.
  """

  max_new_tokens: int
  temperature: float = 0.0
  top_k: int | None = None
  top_p: float = 1.0
  min_p: float = 0.0
  num_samples: int = 1
  beam_size: int | None = None
  length_penalty: float = 1.0
  stop_ids: tuple[int, ...] = ()
  pad_id: int = 0
  padding: str = 'right'

  @property
  def sampling(self) -> _sampling.Sampling:
    """How each token is chosen."""
    return _sampling.Sampling(
      temperature=self.temperature,
      top_k=self.top_k,
      top_p=self.top_p,
      min_p=self.min_p,
    )

  def __post_init__(self) -> None:
    _ = self.sampling  # Refuses nonsense.
    for name in ('max_new_tokens', 'num_samples'):
      if getattr(self, name) < 1:
        raise errors.ConfigError(
          f'GenerateConfig.{name} is {getattr(self, name)}, must be >= 1.'
        )
    if self.num_samples > 1 and self.beam_size is None and not self.temperature:
      raise errors.ConfigError(
        f'GenerateConfig.num_samples is {self.num_samples}, but at temperature '
        '0.0 all would be the same: set temperature above it, or beam_size.'
      )
    if any(stop_id < 0 for stop_id in self.stop_ids) or self.pad_id < 0:
      raise errors.ConfigError(
        f'GenerateConfig.stop_ids are {self.stop_ids} and pad_id is '
        f'{self.pad_id}, must be >= 0.'
      )
    if self.beam_size is not None and self.beam_size < self.num_samples:
      raise errors.ConfigError(
        f'GenerateConfig.beam_size is {self.beam_size}, must be at least '
        f'num_samples {self.num_samples}.'
      )
    if self.length_penalty < 0.0:
      raise errors.ConfigError(
        f'GenerateConfig.length_penalty is {self.length_penalty}, must be '
        '>= 0.0; 0.0 ranks by log-probability alone.'
      )
    if self.padding not in _prompt.SIDES:
      raise errors.ConfigError(
        f'GenerateConfig.padding is {self.padding!r}, must be one of '
        f'{", ".join(_prompt.SIDES)}.'
      )


class Generated(NamedTuple):
  """Continuations of each prompt, the prompt not included.

  Attributes:
    ids: Token ids; `pad_id` after the end.
    lengths: Number of tokens, the stop id included, padding not; this, not the
      ids, tells where a continuation ends.
    log_probs: Log-probability of the continuation under the model itself,
      before temperature and rules.
  """

  ids: Int[Array, 'batch samples new']
  lengths: Int[Array, 'batch samples']
  log_probs: Float[Array, 'batch samples']


class _Progress(NamedTuple):
  """What the loop over tokens carries."""

  step: Int[Array, '']
  token: Int[Array, ' rows']
  ids: Int[Array, 'rows new']
  lengths: Int[Array, ' rows']
  log_probs: Float[Array, ' rows']
  is_done: Bool[Array, ' rows']


def generate(
  model: _Model,
  prompt_ids: Int[Array, 'batch prompt'],
  prompt_lengths: Int[Array, ' batch'],
  *,
  config: GenerateConfig,
  key: jax.Array | None = None,
  example_ids: Int[Array, ' batch'] | None = None,
  max_new_tokens: Int[Array, ' batch'] | None = None,
) -> Generated:
  """Continues each prompt.

  Call it inside one `jax.jit`, through `Functional.apply(mdl_vars,
  models.generate, ...)` or with the model's `decoder()`; it compiles once for
  each shape of `prompt_ids`.

  Args:
    model: A language model, or its decoder, which spares each call the copying
      of every parameter.
    prompt_ids: Padded on the side that `config.padding` says.
    prompt_lengths: Number of real tokens of each prompt; a row of length 0 is
      padding and is continued by nothing.
    config: How to continue.
    key: Draws the samples; not needed for greedy and beam search.
    example_ids: What each row's draws depend on; None is the row number.
    max_new_tokens: Each row's own limit, below `config.max_new_tokens`; None
      sets no other.

  Returns:
    `config.num_samples` continuations of each prompt.

  Raises:
    ConfigError: Sampling is asked for without a key.
  """
  prompt = _prompt.Prompt.of(
    prompt_ids,
    prompt_lengths,
    side=config.padding,
    max_new_tokens=config.max_new_tokens,
    limits=max_new_tokens,
  )
  decoder = model if isinstance(model, _decoder.Decoder) else model.decoder()
  if config.beam_size is not None:
    beams = _beam.BeamConfig(
      num_beams=config.beam_size,
      length_penalty=config.length_penalty,
      stop_ids=config.stop_ids,
      pad_id=config.pad_id,
    )
    return Generated(
      *_beam.search(decoder, prompt, beams, num_results=config.num_samples)
    )
  if not config.sampling.is_greedy and key is None:
    raise errors.ConfigError(
      f'generate at temperature {config.temperature} needs key=.'
    )
  batch_size = prompt_ids.shape[0]
  if example_ids is None:
    example_ids = jnp.arange(batch_size, dtype=jnp.int32)
  return _sample(decoder, prompt, config, key, example_ids)


def _sample(
  decoder: _decoder.Decoder,
  prompt: _prompt.Prompt,
  config: GenerateConfig,
  key: jax.Array | None,
  example_ids: Int[Array, ' batch'],
) -> Generated:
  """Every sample of every prompt as a row of its own."""
  features, cache = prompt.prefill(decoder)
  batch_size = features.shape[0]
  rows = jnp.repeat(jnp.arange(batch_size), config.num_samples)
  samples = jnp.tile(jnp.arange(config.num_samples), batch_size)
  examples, lengths = example_ids[rows], prompt.lengths[rows]
  limits = prompt.limits[rows]
  logits = decoder.logits(features)[rows]

  def choose(logits: Array, step: Array) -> Int[Array, ' rows']:
    if key is None or config.sampling.is_greedy:
      return config.sampling.choose(logits, None)
    keys = _sampling.row_keys(key, examples, samples, lengths + step)
    return config.sampling.choose(logits, keys)

  def advance(progress: _Progress, logits: Array) -> _Progress:
    return _advance(
      progress, logits, choose(logits, progress.step), limits, config
    )

  def body(
    state: tuple[_Progress, _decoder.KvCache],
  ) -> tuple[_Progress, _decoder.KvCache]:
    progress, cache = state
    positions = lengths + progress.step - 1
    features, cache = decoder.extend(
      progress.token[:, None], positions[:, None], cache
    )
    return advance(progress, decoder.logits(features[:, 0])), cache

  def goes_on(state: tuple[_Progress, _decoder.KvCache]) -> Bool[Array, '']:
    progress, _ = state
    return (progress.step < config.max_new_tokens) & ~progress.is_done.all()

  first = advance(_start(limits, config), logits)
  # One sample needs no second copy of the cache.
  cache = cache if config.num_samples == 1 else cache.take(rows)
  last, _ = jax.lax.while_loop(goes_on, body, (first, cache))
  shape = (batch_size, config.num_samples)
  return Generated(
    ids=last.ids.reshape(*shape, -1),
    lengths=last.lengths.reshape(shape),
    log_probs=last.log_probs.reshape(shape),
  )


def _start(limits: Int[Array, ' rows'], config: GenerateConfig) -> _Progress:
  rows = limits.shape[0]
  return _Progress(
    step=jnp.zeros((), jnp.int32),
    token=jnp.zeros((rows,), jnp.int32),
    ids=jnp.full((rows, config.max_new_tokens), config.pad_id, jnp.int32),
    lengths=jnp.zeros((rows,), jnp.int32),
    log_probs=jnp.zeros((rows,), jnp.float32),
    is_done=limits <= 0,
  )


def _advance(
  progress: _Progress,
  logits: Float[Array, 'rows vocab'],
  token: Int[Array, ' rows'],
  limits: Int[Array, ' rows'],
  config: GenerateConfig,
) -> _Progress:
  """Takes the chosen token in, in the rows that are not done."""
  goes_on = ~progress.is_done
  token = jnp.where(goes_on, token, config.pad_id)
  chosen = jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0]
  log_prob = chosen - jax.nn.logsumexp(logits, axis=-1)
  lengths = progress.lengths + goes_on
  return _Progress(
    step=progress.step + 1,
    token=token,
    ids=jax.lax.dynamic_update_slice(
      progress.ids,
      token[:, None],
      (jnp.zeros_like(progress.step), progress.step),
    ),
    lengths=lengths,
    log_probs=progress.log_probs + jnp.where(goes_on, log_prob, 0.0),
    is_done=(
      progress.is_done
      | _prompt.is_stop(token, config.stop_ids)
      | (lengths >= limits)
    ),
  )
