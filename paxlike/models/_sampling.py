"""How to choose the next token from its scores.

Promises: what a row draws is a function of the key, its example, its sample
number and the position, so neither the batch around it nor the number of
devices changes it.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from paxlike.core import errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
  """Which tokens may be drawn, and how evenly; the default is greedy.

  The rules apply in the order of the attributes, each to what the one before
  left.

  Attributes:
    temperature: Divides the scores; 0.0 takes the best token, ties to the
      lowest id, and ignores the rules that follow.
    top_k: Keep this many of the best; None is all.
    top_p: Keep the fewest best whose probabilities sum to at least this.
    min_p: Keep those at least this probable, relative to the best one.
  """

  temperature: float = 0.0
  top_k: int | None = None
  top_p: float = 1.0
  min_p: float = 0.0

  def __post_init__(self) -> None:
    if not (self.temperature >= 0.0 and math.isfinite(self.temperature)):
      raise errors.ConfigError(
        f'Sampling.temperature is {self.temperature}, must be 0.0 (greedy) or '
        'a finite number above.'
      )
    if self.top_k is not None and self.top_k < 1:
      raise errors.ConfigError(
        f'Sampling.top_k is {self.top_k}, must be >= 1, or None to keep all.'
      )
    if not 0.0 < self.top_p <= 1.0:
      raise errors.ConfigError(
        f'Sampling.top_p is {self.top_p}, must be above 0 and at most 1.'
      )
    if not 0.0 <= self.min_p <= 1.0:
      raise errors.ConfigError(
        f'Sampling.min_p is {self.min_p}, must be within 0 and 1.'
      )

  @property
  def is_greedy(self) -> bool:
    """Whether no key is needed."""
    return self.temperature == 0.0

  def choose(
    self,
    logits: Float[Array, 'rows vocab'],
    keys: jax.Array | None,
  ) -> Int[Array, ' rows']:
    """The next token of each row.

    Args:
      logits: Float32 scores.
      keys: A PRNG key for each row; not needed when greedy.
    """
    if self.is_greedy:
      return logits.argmax(axis=-1).astype(jnp.int32)
    if keys is None:
      raise errors.ConfigError('Sampling at a temperature needs a key.')
    scores, ids = self._candidates(logits / self.temperature)
    drawn = jax.vmap(jax.random.categorical)(keys, scores)
    if ids is not None:
      drawn = jnp.take_along_axis(ids, drawn[:, None], axis=-1)[:, 0]
    return drawn.astype(jnp.int32)

  def _candidates(
    self, scores: Float[Array, 'rows vocab']
  ) -> tuple[Float[Array, 'rows kept'], Int[Array, 'rows kept'] | None]:
    """Scores of what may be drawn, -inf of what not, and their token ids.

    The ids are None where they are simply 0, 1, 2 ...
    """
    ids = None
    if self.top_k is not None or self.top_p < 1.0:
      size = scores.shape[-1]
      scores, ids = jax.lax.top_k(scores, min(self.top_k or size, size))
    if self.top_p < 1.0:
      probabilities = jax.nn.softmax(scores, axis=-1)
      before = jnp.cumsum(probabilities, axis=-1) - probabilities
      # The best one has nothing before it, whatever the rounding says.
      kept = (before < self.top_p).at[:, 0].set(True)
      scores = jnp.where(kept, scores, -jnp.inf)
    if self.min_p > 0.0:
      floor = scores.max(axis=-1, keepdims=True) + math.log(self.min_p)
      scores = jnp.where(scores >= floor, scores, -jnp.inf)
    return scores, ids


def row_keys(
  key: jax.Array,
  example_ids: Int[Array, ' rows'],
  samples: Int[Array, ' rows'],
  positions: Int[Array, ' rows'],
) -> jax.Array:
  """A key for each row's token at this position."""

  def fold(example: Array, sample: Array, position: Array) -> jax.Array:
    by_example = jax.random.fold_in(key, example)
    return jax.random.fold_in(jax.random.fold_in(by_example, sample), position)

  return jax.vmap(fold)(example_ids, samples, positions)
