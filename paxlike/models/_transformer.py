"""A decoder-only Transformer language model.

Promises: one definition serves training on whole sequences and decoding with a
cache, and both give the same logits. How to choose the next token is
`generate`'s, what a loss is `tasks`'.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from paxlike.core import errors
from paxlike.models import (
  _attention,
  _block,
  _decoder,
  _dropout,
  _layer,
  _linear,
  _norms,
)

_REMAT_POLICIES: dict[str, Callable[..., Any] | None] = {
  'elementwise': jax.checkpoint_policies.dots_saveable,
  'attention': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'full': None,
}


class TransformerLm(_layer.Layer):
  """A decoder-only language model of the Llama kind, or of the GPT-2 kind.

  Parameters are float32. The layers' are stacked on a leading 'layers' axis, so
  that compile time does not grow with depth.

  Attributes:
    vocab_size: Number of token ids.
    model_dim: Features of a position between layers.
    num_layers: Depth.
    num_heads: Query heads.
    num_kv_heads: Key and value heads, a divisor of `num_heads`; None is as
      many as there are query heads.
    head_dim: Features of a head, even; None is `model_dim / num_heads`.
    mlp_dim: Features inside the feed-forward layer; None is 4 `model_dim`, or
      8/3 of it rounded up to a multiple of 64 when gated.
    activation: 'silu', 'gelu' or 'relu'.
    gated: Whether the feed-forward layer multiplies by a gate.
    norm: 'rms' or 'layer'.
    norm_epsilon: Added to the mean square before its root.
    use_bias: Whether linear maps add a bias.
    tie_embeddings: Whether the output scores use the embedding's table.
    rope_base: Base of the rotary embedding.
    window: Newest positions that a position sees, its own included; None is
      all before it.
    dropout_rate: Of what each layer adds, and of the embedding.
    compute_dtype: 'float32' or 'bfloat16'; norms, softmax and logits stay
      float32.
    remat: What the backward pass computes again instead of keeping: 'none';
      'elementwise', all but matrix products, the fastest here and a third
      smaller than 'none'; 'attention', its products too; 'full', everything
      but the layers' inputs.
    activation_sharding: Mesh axes of [batch, time, embed] between layers, under
      `jax.set_mesh`; None leaves it to the compiler.
  """

  def __init__(
    self,
    *,
    vocab_size: int,
    model_dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    mlp_dim: int | None = None,
    activation: str = 'silu',
    gated: bool = True,
    norm: str = 'rms',
    norm_epsilon: float = 1e-6,
    use_bias: bool = False,
    tie_embeddings: bool = True,
    rope_base: float = 10_000.0,
    window: int | None = None,
    dropout_rate: float = 0.0,
    compute_dtype: str = 'float32',
    remat: str = 'elementwise',
    activation_sharding: tuple[str | None, ...] | None = None,
    rngs: nnx.Rngs,
  ):
    _layer.require_positive(
      'TransformerLm',
      vocab_size=vocab_size,
      model_dim=model_dim,
      num_layers=num_layers,
      num_heads=num_heads,
    )
    config = _block.BlockConfig(
      model_dim=model_dim,
      num_heads=num_heads,
      num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
      head_dim=_head_dim(model_dim, num_heads, head_dim),
      mlp_dim=_mlp_dim(model_dim, mlp_dim, gated=gated),
      activation=activation,
      gated=gated,
      norm=norm,
      norm_epsilon=norm_epsilon,
      use_bias=use_bias,
      dropout_rate=dropout_rate,
      # Keeps the variance between layers about 1 at any depth.
      out_init_scale=(2 * num_layers) ** -0.5,
      compute_dtype=compute_dtype,
    )
    _check(config, window=window, remat=remat)
    self.config = config
    self.num_layers = num_layers
    self.vocab_size = vocab_size
    self.rope_base = rope_base
    self.window = window
    self.remat = remat
    self.activation_sharding = activation_sharding
    self.embedding = _linear.Embedding(
      vocab_size, model_dim, compute_dtype=compute_dtype, rngs=rngs
    )
    self.layers = _stack(
      functools.partial(_block.Block, config), num_layers, rngs=rngs
    )
    self.final_norm = _norms.Norm(
      model_dim, kind=norm, epsilon=norm_epsilon, rngs=rngs
    )
    self.classifier = (
      None
      if tie_embeddings
      else _linear.Embedding(
        vocab_size, model_dim, compute_dtype=compute_dtype, rngs=rngs
      )
    )

  def __call__(
    self,
    ids: Int[Array, 'batch time'],
    *,
    positions: Int[Array, 'batch time'] | None = None,
    segment_ids: Int[Array, 'batch time'] | None = None,
    key: jax.Array | None = None,
    train: bool = False,
  ) -> Float[Array, 'batch time vocab']:
    """Float32 scores of the token that follows each position.

    Args:
      ids: Token ids.
      positions: Of each token within its segment; below 0 is padding, which
        nobody sees. None counts from 0.
      segment_ids: Which packed example each token belongs to; None is one
        example a row. With it, give `positions` that restart in each.
      key: Draws the dropout; required when training with a dropout rate.
      train: Whether to drop.
    """
    return self.logits(
      self.features(
        ids,
        positions=positions,
        segment_ids=segment_ids,
        key=key,
        train=train,
      )
    )

  def features(
    self,
    ids: Int[Array, 'batch time'],
    *,
    positions: Int[Array, 'batch time'] | None = None,
    segment_ids: Int[Array, 'batch time'] | None = None,
    key: jax.Array | None = None,
    train: bool = False,
  ) -> Float[Array, 'batch time embed']:
    """What `logits` scores: see `__call__`."""
    if positions is None:
      positions = jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
    turn = self._rotation(positions)
    mask = _attention.visible(
      positions,
      positions,
      window=self.window,
      query_segments=segment_ids,
      key_segments=segment_ids,
    )
    keys = _dropout.keys(
      key, self.num_layers + 1, rate=self.config.dropout_rate, train=train
    )
    x = self.embedding(ids)
    if keys is not None:
      x = _dropout.drop(x, self.config.dropout_rate, keys[-1])
      keys = keys[:-1]

    graphdef, stacked = nnx.split(self.layers)

    def body(x: Array, layer: tuple[Any, jax.Array | None]) -> Any:
      state, layer_key = layer
      block = nnx.merge(graphdef, state)
      x, _ = block(self._constrain(x), turn=turn, mask=mask, key=layer_key)
      return x, None

    if self.remat != 'none':
      body = jax.checkpoint(
        body, policy=_REMAT_POLICIES[self.remat], prevent_cse=False
      )
    x, _ = jax.lax.scan(body, self._constrain(x), (stacked, keys))
    return self.final_norm(x)

  def logits(
    self, features: Float[Array, '... embed']
  ) -> Float[Array, '... vocab']:
    """Float32 scores of every token id, from `features`."""
    return self._scorer().logits(features)

  def decoder(self) -> _decoder.Decoder:
    """These parameters in the form that decodes fast, with a cache.

    Call it once and outside of the loop over tokens: it copies every parameter.
    A job that decodes many batches makes it in a program of its own, for all.
    """
    graphdef, stacked = nnx.split(self.layers)
    return _decoder.Decoder(
      config=self.config,
      window=self.window,
      rope_base=self.rope_base,
      embedding=self.embedding,
      blocks=tuple(
        _decoder.turned(
          nnx.merge(graphdef, jax.tree.map(lambda a, i=i: a[i], stacked))
        )
        for i in range(self.num_layers)
      ),
      final_norm=self.final_norm,
      scorer=self._scorer().turned(),
    )

  def _scorer(self) -> _linear.Embedding:
    return self.embedding if self.classifier is None else self.classifier

  def _rotation(self, positions: Int[Array, 'batch time']):
    return _attention.rotation(
      positions, head_dim=self.config.head_dim, base=self.rope_base
    )

  def _constrain(self, x: Array) -> Array:
    if self.activation_sharding is None:
      return x
    spec = jax.sharding.PartitionSpec(*self.activation_sharding)
    return jax.lax.with_sharding_constraint(x, spec)


def _stack(
  make: Callable[..., _block.Block], num_layers: int, *, rngs: nnx.Rngs
) -> _block.Block:
  """One block whose every parameter holds those of all layers, stacked."""

  def state_of(key: jax.Array) -> nnx.State:
    return nnx.state(make(rngs=nnx.Rngs(params=key)))

  keys = jax.random.split(rngs.params(), num_layers)
  graphdef, _ = nnx.split(
    nnx.eval_shape(lambda: make(rngs=nnx.Rngs(params=jax.random.key(0))))
  )
  block = nnx.merge(graphdef, jax.vmap(state_of)(keys))
  for _, variable in nnx.to_flat_state(nnx.state(block)):
    axes = variable.get_metadata()['logical_axes']
    variable.set_metadata('logical_axes', ('layers', *axes))
  return block


def _head_dim(model_dim: int, num_heads: int, head_dim: int | None) -> int:
  if head_dim is not None:
    return head_dim
  if model_dim % num_heads:
    raise errors.ConfigError(
      f'TransformerLm.model_dim {model_dim} is no multiple of num_heads '
      f'{num_heads}; change one of them or set head_dim.'
    )
  return model_dim // num_heads


def _mlp_dim(model_dim: int, mlp_dim: int | None, *, gated: bool) -> int:
  if mlp_dim is not None:
    return mlp_dim
  return -(-model_dim * 8 // 3 // 64) * 64 if gated else 4 * model_dim


def _check(
  config: _block.BlockConfig, *, window: int | None, remat: str
) -> None:
  owner = 'TransformerLm'
  _layer.require_positive(
    owner,
    num_kv_heads=config.num_kv_heads,
    head_dim=config.head_dim,
    mlp_dim=config.mlp_dim,
    window=1 if window is None else window,
  )
  _layer.require_fraction(owner, dropout_rate=config.dropout_rate)
  _layer.require_choice(
    owner, tuple(_block.ACTIVATIONS), activation=config.activation
  )
  _layer.require_choice(owner, _norms.NORMS, norm=config.norm)
  _layer.require_choice(owner, ('none', *_REMAT_POLICIES), remat=remat)
  _layer.require_choice(
    owner, _layer.COMPUTE_DTYPES, compute_dtype=config.compute_dtype
  )
  if config.num_heads % config.num_kv_heads:
    raise errors.ConfigError(
      f'{owner}.num_heads {config.num_heads} is no multiple of num_kv_heads '
      f'{config.num_kv_heads}.'
    )
  if config.head_dim % 2:
    raise errors.ConfigError(
      f'{owner}.head_dim is {config.head_dim}, must be even: rotary positions '
      'turn pairs of features.'
    )
