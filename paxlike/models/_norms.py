"""Normalisation, computed in float32 whatever the compute dtype."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from paxlike.models import _layer

NORMS = ('rms', 'layer')


class Norm(_layer.Layer):
  """RMSNorm or LayerNorm over the last dimension.

  Attributes:
    kind: 'rms' divides by the root mean square; 'layer' also subtracts the
      mean and adds a bias.
  """

  def __init__(
    self,
    dim: int,
    *,
    kind: str = 'rms',
    epsilon: float = 1e-6,
    axis: str = 'embed',
    rngs: nnx.Rngs,
  ):
    del rngs  # Nothing is drawn; every layer takes it.
    _layer.require_choice('Norm', NORMS, kind=kind)
    self.kind = kind
    self.epsilon = epsilon
    self.scale = _layer.constant(1.0, (dim,), axes=(axis,))
    self.bias = (
      _layer.constant(0.0, (dim,), axes=(axis,)) if kind == 'layer' else None
    )

  def __call__(self, x: Float[Array, '... dim']) -> Float[Array, '... dim']:
    """Normalises each vector; the dtype stays."""
    x32 = x.astype(jnp.float32)
    if self.bias is not None:
      x32 -= x32.mean(axis=-1, keepdims=True)
    mean_square = jnp.square(x32).mean(axis=-1, keepdims=True)
    out = x32 * jax.lax.rsqrt(mean_square + self.epsilon) * self.scale[...]
    if self.bias is not None:
      out += self.bias[...]
    return out.astype(x.dtype)
