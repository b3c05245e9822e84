"""One layer of a Transformer: attention and feed-forward around a residual."""

import dataclasses
import functools
from collections.abc import Callable

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from paxlike.models import _attention, _dropout, _layer, _linear, _norms

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  'silu': jax.nn.silu,
  'gelu': jax.nn.gelu,
  'relu': jax.nn.relu,
}


class FeedForward(_layer.Layer):
  """Two linear maps with a non-linearity between, or three when gated."""

  def __init__(
    self,
    *,
    model_dim: int,
    mlp_dim: int,
    activation: str = 'silu',
    gated: bool = True,
    use_bias: bool = False,
    out_init_scale: float = 1.0,
    compute_dtype: str = 'float32',
    rngs: nnx.Rngs,
  ):
    widen = functools.partial(
      _linear.Linear,
      (model_dim,),
      (mlp_dim,),
      in_axes=('embed',),
      out_axes=('mlp',),
      use_bias=use_bias,
      compute_dtype=compute_dtype,
      rngs=rngs,
    )
    self.activation = activation
    self.gate = widen() if gated else None
    self.up = widen()
    self.down = _linear.Linear(
      (mlp_dim,),
      (model_dim,),
      in_axes=('mlp',),
      out_axes=('embed',),
      use_bias=use_bias,
      init_scale=out_init_scale,
      compute_dtype=compute_dtype,
      rngs=rngs,
    )

  def __call__(
    self, x: Float[Array, 'batch time embed']
  ) -> Float[Array, 'batch time embed']:
    """Maps each position by itself."""
    activation = ACTIVATIONS[self.activation]
    if self.gate is None:
      return self.down(activation(self.up(x)))
    return self.down(activation(self.gate(x)) * self.up(x))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig:
  """What one layer of the Transformer is made of; see `TransformerLm`."""

  model_dim: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_dim: int
  activation: str
  gated: bool
  norm: str
  norm_epsilon: float
  use_bias: bool
  dropout_rate: float
  out_init_scale: float
  compute_dtype: str


class Block(_layer.Layer):
  """Attention and feed-forward, each normalised before and added after."""

  def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs):
    norm = functools.partial(
      _norms.Norm,
      config.model_dim,
      kind=config.norm,
      epsilon=config.norm_epsilon,
      rngs=rngs,
    )
    self.dropout_rate = config.dropout_rate
    self.attention_norm = norm()
    self.attention = _attention.Attention(
      model_dim=config.model_dim,
      num_heads=config.num_heads,
      num_kv_heads=config.num_kv_heads,
      head_dim=config.head_dim,
      use_bias=config.use_bias,
      out_init_scale=config.out_init_scale,
      compute_dtype=config.compute_dtype,
      rngs=rngs,
    )
    self.mlp_norm = norm()
    self.mlp = FeedForward(
      model_dim=config.model_dim,
      mlp_dim=config.mlp_dim,
      activation=config.activation,
      gated=config.gated,
      use_bias=config.use_bias,
      out_init_scale=config.out_init_scale,
      compute_dtype=config.compute_dtype,
      rngs=rngs,
    )

  def __call__(
    self,
    x: Float[Array, 'batch time embed'],
    *,
    turn: _attention.Rotation,
    mask: Bool[Array, '#batch time slots'],
    cache: _attention.LayerCache | None = None,
    slot: Int[Array, ''] | None = None,
    key: jax.Array | None = None,
  ) -> tuple[Float[Array, 'batch time embed'], _attention.LayerCache]:
    """One layer; `key` draws the dropout, the rest is `Attention`'s."""
    keys = (None, None) if key is None else jax.random.split(key)
    attended, cache = self.attention(
      self.attention_norm(x), turn=turn, mask=mask, cache=cache, slot=slot
    )
    x += _dropout.drop(attended, self.dropout_rate, keys[0])
    widened = self.mlp(self.mlp_norm(x))
    return x + _dropout.drop(widened, self.dropout_rate, keys[1]), cache
