"""Log-probabilities of given continuations."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from paxlike.models import _prompt, _transformer


class Scores(NamedTuple):
  """How likely a model finds each continuation.

  Attributes:
    log_probs: Of the whole continuation; 0.0 for an empty one.
    token_log_probs: Of each token given all before it; 0.0 for padding.
    is_greedy: Whether greedy decoding would have given the continuation.
  """

  log_probs: Float[Array, ' batch']
  token_log_probs: Float[Array, 'batch new']
  is_greedy: Bool[Array, ' batch']


def score(
  model: _transformer.TransformerLm,
  prompt_ids: Int[Array, 'batch prompt'],
  prompt_lengths: Int[Array, ' batch'],
  continuation_ids: Int[Array, 'batch new'],
  continuation_lengths: Int[Array, ' batch'],
  *,
  padding: str = 'right',
) -> Scores:
  """Scores one continuation of each prompt, in one forward pass.

  Args:
    model: A language model.
    prompt_ids: Padded on the side that `padding` says.
    prompt_lengths: Number of real tokens of each prompt, at least 1.
    continuation_ids: Padded on the right.
    continuation_lengths: Number of real tokens of each continuation.
    padding: Side on which prompts are padded: 'right' or 'left'.

  Returns:
    Float32 log-probabilities.
  """
  prompt = _prompt.Prompt.of(prompt_ids, prompt_lengths, side=padding)
  column = jnp.arange(continuation_ids.shape[1], dtype=jnp.int32)[None]
  is_real = column < continuation_lengths[:, None]
  positions = jnp.where(is_real, prompt.lengths[:, None] + column, -1)
  features = model.features(
    jnp.concatenate([prompt.ids, continuation_ids], axis=1),
    positions=jnp.concatenate([prompt.positions, positions], axis=1),
  )
  width = prompt.ids.shape[1]
  # Each token is predicted from the one before it, the first from the prompt.
  before = jnp.concatenate(
    [prompt.at_last(features)[:, None], features[:, width:-1]], axis=1
  )
  logits = model.logits(before)
  chosen = jnp.take_along_axis(logits, continuation_ids[..., None], axis=-1)
  token_log_probs = chosen[..., 0] - jax.nn.logsumexp(logits, axis=-1)
  token_log_probs = jnp.where(is_real, token_log_probs, 0.0)
  is_best = logits.argmax(axis=-1) == continuation_ids
  return Scores(
    log_probs=token_log_probs.sum(axis=-1),
    token_log_probs=token_log_probs,
    is_greedy=(is_best | ~is_real).all(axis=-1),
  )
