"""A Transformer in the form that extends sequences token by token.

Promises: the features of a position are those of the whole forward pass, for
any split of the sequence into calls of `extend`, padding anywhere included; the
cache keeps its structure, shapes and dtypes, so it can be carried by
`lax.while_loop`. Which token comes next is `generate`'s.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from paxlike.models import _attention, _block, _linear, _norms

# The position of a slot that holds nothing, or padding.
EMPTY = -1


class KvCache(NamedTuple):
  """What the positions so far left for those to come.

  All rows write the same slot at a time, which makes the write one cheap
  in-place update; who sees what follows from `positions`, so rows of different
  lengths, padded on either side, need nothing else.

  Attributes:
    layers: Keys and values of each layer.
    positions: Position of the token in each slot; below 0 hides the slot.
    next_slot: The slot that is written next, of every row.
  """

  layers: tuple[_attention.LayerCache, ...]
  positions: Int[Array, 'batch slots']
  next_slot: Int[Array, '']

  def take(self, rows: Int[Array, ' new_batch']) -> 'KvCache':
    """The cache of these rows, in this order; a row may come twice."""
    layers, positions = jax.tree.map(
      lambda a: a[rows], (self.layers, self.positions)
    )
    return self._replace(layers=layers, positions=positions)

  def forget(self, rows: Bool[Array, ' batch']) -> 'KvCache':
    """Empties these rows for other sequences; the others stay."""
    positions = jnp.where(rows[:, None], EMPTY, self.positions)
    return self._replace(positions=positions)


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['embedding', 'blocks', 'final_norm', 'scorer'],
  meta_fields=['config', 'window', 'rope_base'],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
  """The layers of a `TransformerLm`, one by one; made by its `decoder`.

  Slicing a stack of layers inside a loop over tokens would copy every weight
  for every token. Matrices are turned to (in, out), of the compute dtype. A pytree, so that a function under jit can make it once for
  the calls of another one.
  """

  config: _block.BlockConfig
  window: int | None
  rope_base: float
  embedding: _linear.Embedding
  blocks: tuple[_block.Block, ...]
  final_norm: _norms.Norm
  # [embed, vocab]; of no checked type, since JAX puts other leaves there.
  scorer: Any

  def prefill(
    self,
    ids: Int[Array, 'batch time'],
    positions: Int[Array, 'batch time'],
    *,
    num_slots: int,
  ) -> tuple[Float[Array, 'batch time embed'], KvCache]:
    """Takes the first tokens of each row in, and makes the cache.

    Args:
      ids: Token ids, in the order of time.
      positions: Of each token in its row, below 0 for padding.
      num_slots: How many columns the cache holds, these ones included.

    Returns:
      As `extend` does.
    """
    time = ids.shape[1]
    positions = positions.astype(jnp.int32)
    mask = _attention.visible(positions, positions, window=self.window)
    turn, x = self._rotation(positions), self.embedding(ids)
    layers = []
    for block in self.blocks:
      x, layer = block(x, turn=turn, mask=mask)
      layers.append(layer)

    def pad(a: Array) -> Array:
      empty = [(0, 0), (0, 0), (0, num_slots - time), (0, 0)]
      return jnp.pad(a, empty)

    return self.final_norm(x), KvCache(
      layers=jax.tree.map(pad, tuple(layers)),
      positions=jnp.pad(
        positions, [(0, 0), (0, num_slots - time)], constant_values=EMPTY
      ),
      next_slot=jnp.int32(time),
    )

  def init_cache(self, batch_size: int, *, num_slots: int) -> KvCache:
    """An empty cache of so many columns, padding included."""
    dtype = jnp.dtype(self.config.compute_dtype)
    empty = jnp.zeros(
      (
        batch_size,
        self.config.num_kv_heads,
        num_slots,
        self.config.head_dim,
      ),
      dtype,
    )
    layer = _attention.LayerCache(keys=empty, values=empty)
    return KvCache(
      layers=(layer,) * len(self.blocks),
      positions=jnp.full((batch_size, num_slots), EMPTY, jnp.int32),
      next_slot=jnp.zeros((), jnp.int32),
    )

  def extend(
    self,
    ids: Int[Array, 'batch time'],
    positions: Int[Array, 'batch time'],
    cache: KvCache,
  ) -> tuple[Float[Array, 'batch time embed'], KvCache]:
    """Takes more tokens in, of each row.

    Args:
      ids: Token ids, a whole prompt or one token.
      positions: Of each token in its row, below 0 for padding.
      cache: Of the tokens before, with room for these: a slot past the end
        would overwrite the last one, unnoticed.

    Returns:
      Features of each token, for `logits`; garbage at padding. The cache with
      these tokens in it.
    """
    slot = cache.next_slot
    positions = positions.astype(jnp.int32)
    seen = jax.lax.dynamic_update_slice(
      cache.positions, positions, (jnp.zeros_like(slot), slot)
    )
    mask = _attention.visible(positions, seen, window=self.window)
    turn, x = self._rotation(positions), self.embedding(ids)
    layers = []
    for block, layer in zip(self.blocks, cache.layers, strict=True):
      x, layer = block(x, turn=turn, mask=mask, cache=layer, slot=slot)
      layers.append(layer)
    cache = KvCache(
      layers=tuple(layers),
      positions=seen,
      next_slot=slot + jnp.int32(ids.shape[1]),
    )
    return self.final_norm(x), cache

  def logits(
    self, features: Float[Array, '... embed']
  ) -> Float[Array, '... vocab']:
    """Float32 scores of every token id."""
    return jnp.matmul(
      features.astype(self.scorer.dtype),
      self.scorer,
      preferred_element_type=jnp.float32,
    )

  def _rotation(
    self, positions: Int[Array, 'batch time']
  ) -> _attention.Rotation:
    return _attention.rotation(
      positions, head_dim=self.config.head_dim, base=self.rope_base
    )


def turned(block: _block.Block) -> _block.Block:
  """A copy whose matrices are (in, out), of the compute dtype."""
  copy = nnx.merge(*nnx.split(block))
  for _, module in nnx.iter_modules(copy):
    if isinstance(module, _linear.Linear):
      module.turn()
  return copy
