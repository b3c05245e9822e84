"""Beam search: the likeliest continuations instead of likely tokens."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from paxlike.models import _decoder, _prompt


class _Beams(NamedTuple):
  """Continuations of each prompt; `scores` rank them, -inf is none.

  While they can grow, their score is their log-probability; once finished, that
  over the length to the power of the penalty.
  """

  ids: Int[Array, 'batch beams new']
  lengths: Int[Array, 'batch beams']
  log_probs: Float[Array, 'batch beams']
  scores: Float[Array, 'batch beams']

  def take(self, index: Int[Array, 'batch kept']) -> '_Beams':
    """These beams of each prompt."""

    def gather(a: Array) -> Array:
      shape = (*index.shape, *(1,) * (a.ndim - 2))
      return jnp.take_along_axis(a, index.reshape(shape), axis=1)

    return jax.tree.map(gather, self)


class _State(NamedTuple):
  step: Int[Array, '']
  alive: _Beams
  finished: _Beams
  cache: _decoder.KvCache


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamConfig:
  """See `GenerateConfig`."""

  num_beams: int
  length_penalty: float
  stop_ids: tuple[int, ...]
  pad_id: int


def search(
  decoder: _decoder.Decoder,
  prompt: _prompt.Prompt,
  config: BeamConfig,
  *,
  num_results: int,
) -> tuple[
  Int[Array, 'batch results new'],
  Int[Array, 'batch results'],
  Float[Array, 'batch results'],
]:
  """The best continuations of each prompt, best first.

  Args:
    decoder: Of a language model.
    prompt: The prompts, and how far to continue them.
    config: How to search.
    num_results: How many to return, at most the number of beams.

  Returns:
    Ids, lengths and log-probabilities. Where there are fewer continuations
    than asked for, the length is 0 and the log-probability -inf; of a row of
    padding they are 0 and 0.0.
  """
  features, cache = prompt.prefill(decoder)
  rows = jnp.repeat(jnp.arange(features.shape[0]), config.num_beams)
  logits = decoder.logits(features)[rows]
  lengths, limits = prompt.lengths[rows], prompt.limits

  def body(state: _State) -> _State:
    last = state.alive.ids[:, :, state.step - 1].reshape(-1)
    positions = lengths + state.step - 1
    features, cache = decoder.extend(
      last[:, None], positions[:, None], state.cache
    )
    state = state._replace(cache=cache)
    return _grow(state, decoder.logits(features[:, 0]), limits, config)

  def goes_on(state: _State) -> Bool[Array, '']:
    improves = ~_is_settled(state, limits, config)
    return (state.step < prompt.max_new_tokens) & improves.any()

  start = _start(prompt, config, cache.take(rows))
  last = jax.lax.while_loop(goes_on, body, _grow(start, logits, limits, config))
  best = jax.tree.map(lambda a: a[:, :num_results], last.finished)
  log_probs = jnp.where(limits[:, None] > 0, best.log_probs, 0.0)
  return best.ids, best.lengths, log_probs


def _start(
  prompt: _prompt.Prompt, config: BeamConfig, cache: _decoder.KvCache
) -> _State:
  shape = (prompt.ids.shape[0], config.num_beams)
  nothing = jnp.full(shape, -jnp.inf, jnp.float32)
  finished = _Beams(
    ids=jnp.full((*shape, prompt.max_new_tokens), config.pad_id, jnp.int32),
    lengths=jnp.zeros(shape, jnp.int32),
    log_probs=nothing,
    scores=nothing,
  )
  # All beams hold the same prompt: only one of them may grow.
  first = nothing.at[:, 0].set(jnp.where(prompt.limits > 0, 0.0, -jnp.inf))
  alive = finished._replace(log_probs=first, scores=first)
  return _State(
    step=jnp.zeros((), jnp.int32), alive=alive, finished=finished, cache=cache
  )


def _grow(
  state: _State,
  logits: Float[Array, 'rows vocab'],
  limits: Int[Array, ' batch'],
  config: BeamConfig,
) -> _State:
  """Adds one token to every beam and keeps the best of all."""
  batch_size, num_beams, _ = state.alive.ids.shape
  candidates, parents, tokens = _expand(state, logits, config)
  ends = _prompt.is_stop(tokens, config.stop_ids)
  ends |= candidates.lengths >= limits[:, None]
  penalty = candidates.lengths.astype(jnp.float32) ** config.length_penalty

  grown = jnp.where(ends, -jnp.inf, candidates.scores)
  scores, kept = jax.lax.top_k(grown, num_beams)
  alive = candidates.take(kept)._replace(scores=scores)
  parents = jnp.take_along_axis(parents, kept, axis=1)
  rows = (jnp.arange(batch_size)[:, None] * num_beams + parents).reshape(-1)

  ended = jnp.where(ends, candidates.log_probs / penalty, -jnp.inf)
  # Those found earlier come first, so that ties stay as they are.
  pool = jax.tree.map(
    lambda a, b: jnp.concatenate([a, b], axis=1),
    state.finished,
    candidates._replace(scores=ended),
  )
  _, kept = jax.lax.top_k(pool.scores, num_beams)
  return _State(
    step=state.step + 1,
    alive=alive,
    finished=_blank(pool.take(kept), config),
    cache=state.cache.take(rows),
  )


def _expand(
  state: _State, logits: Float[Array, 'rows vocab'], config: BeamConfig
) -> tuple[_Beams, Int[Array, 'batch kept'], Int[Array, 'batch kept']]:
  """The best one-token continuations, their parents and their tokens."""
  alive = state.alive
  batch_size, num_beams, _ = alive.ids.shape
  vocab_size = logits.shape[-1]
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  total = alive.scores[:, :, None] + log_probs.reshape(
    batch_size, num_beams, vocab_size
  )
  # Each beam may end in every stop id; so many leave enough to go on with.
  num_kept = num_beams * (1 + len(config.stop_ids))
  scores, index = jax.lax.top_k(
    total.reshape(batch_size, -1), min(num_kept, num_beams * vocab_size)
  )
  parents, tokens = index // vocab_size, index % vocab_size
  candidates = alive.take(parents)
  column = jnp.arange(alive.ids.shape[-1]) == state.step
  return (
    _Beams(
      ids=jnp.where(column, tokens[:, :, None], candidates.ids),
      lengths=candidates.lengths + 1,
      log_probs=scores,
      scores=scores,
    ),
    parents,
    tokens,
  )


def _blank(beams: _Beams, config: BeamConfig) -> _Beams:
  """Empties the beams that are none."""
  is_none = beams.scores == -jnp.inf
  return _Beams(
    ids=jnp.where(is_none[:, :, None], config.pad_id, beams.ids),
    lengths=jnp.where(is_none, 0, beams.lengths),
    log_probs=jnp.where(is_none, -jnp.inf, beams.log_probs),
    scores=beams.scores,
  )


def _is_settled(
  state: _State, limits: Int[Array, ' batch'], config: BeamConfig
) -> Bool[Array, ' batch']:
  """Whether nothing alive can still beat what is finished."""
  # A log-probability only falls, and the longest length divides it most.
  longest = jnp.maximum(limits, 1).astype(jnp.float32) ** config.length_penalty
  bound = state.alive.scores.max(axis=1) / longest
  return bound <= state.finished.scores.min(axis=1)
