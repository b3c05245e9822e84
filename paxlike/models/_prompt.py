"""Prompts of different lengths in one array, and their way into a cache."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from paxlike.models import _decoder

SIDES = ('right', 'left')


@dataclasses.dataclass(frozen=True)
class Prompt:
  """A batch of prompts, padded on one side.

  Attributes:
    ids: Token ids.
    positions: Of each token in its prompt; below 0 for padding.
    lengths: Number of real tokens.
    last: Column of the last real token.
    limits: How many tokens each row may get; 0 for a row of padding.
    max_new_tokens: The largest of `limits` that there may be.
  """

  ids: Int[Array, 'batch prompt']
  positions: Int[Array, 'batch prompt']
  lengths: Int[Array, ' batch']
  last: Int[Array, ' batch']
  limits: Int[Array, ' batch']
  max_new_tokens: int

  @classmethod
  def of(
    cls,
    ids: Int[Array, 'batch prompt'],
    lengths: Int[Array, ' batch'],
    *,
    side: str,
    max_new_tokens: int = 0,
    limits: Int[Array, ' batch'] | None = None,
  ) -> 'Prompt':
    """Works out where the real tokens are; see `generate` for the rest."""
    lengths = lengths.astype(jnp.int32)
    width = ids.shape[1]
    column = jnp.arange(width, dtype=jnp.int32)[None]
    if side == 'left':
      positions = column - (width - lengths[:, None])
      last = jnp.full_like(lengths, width - 1)
    else:
      positions = jnp.where(column < lengths[:, None], column, _decoder.EMPTY)
      last = jnp.maximum(lengths - 1, 0)
    if limits is None:
      limits = jnp.full_like(lengths, max_new_tokens)
    limits = jnp.clip(limits.astype(jnp.int32), 0, max_new_tokens)
    return cls(
      ids=ids.astype(jnp.int32),
      positions=jnp.maximum(positions, _decoder.EMPTY),
      lengths=lengths,
      last=last,
      limits=jnp.where(lengths > 0, limits, 0),
      max_new_tokens=max_new_tokens,
    )

  def prefill(
    self, decoder: _decoder.Decoder
  ) -> tuple[Float[Array, 'batch embed'], _decoder.KvCache]:
    """Features of each prompt's last token, and the cache of all of them."""
    features, cache = decoder.prefill(
      self.ids,
      self.positions,
      num_slots=self.ids.shape[1] + self.max_new_tokens,
    )
    return self.at_last(features), cache

  def at_last(
    self, features: Float[Array, 'batch prompt embed']
  ) -> Float[Array, 'batch embed']:
    """Features of each prompt's last real token."""
    index = self.last[:, None, None]
    return jnp.take_along_axis(features, index, axis=1)[:, 0]


def is_stop(
  token: Int[Array, '...'], stop_ids: tuple[int, ...]
) -> Bool[Array, '...']:
  """Whether each token is one of `stop_ids`."""
  if not stop_ids:
    return jnp.zeros(token.shape, bool)
  return jnp.isin(token, jnp.asarray(stop_ids, jnp.int32))
