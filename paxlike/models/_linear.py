"""Linear maps and embeddings.

Kernels are stored (out, in), so that a tied embedding is one of them; who reads
them many times for few rows turns them.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from paxlike.models import _layer


def contract(
  x: Float[Array, '... features'],
  kernel: Float[Array, 'out features'],
  *,
  dtype: jnp.dtype,
) -> Float[Array, '... out']:
  """`x @ kernel.T`, with sums and result of `dtype`."""
  return jax.lax.dot_general(
    x, kernel, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=dtype
  )


class Linear(_layer.Layer):
  """An affine map between groups of dimensions, such as (heads, head_dim).

  Attributes:
    in_shape: Trailing dimensions of the input.
    out_shape: Trailing dimensions of the output.
    kernel: Float32 of (*out_shape, *in_shape), until it is turned.
    bias: Float32 of out_shape, or None.
  """

  def __init__(
    self,
    in_shape: tuple[int, ...],
    out_shape: tuple[int, ...],
    *,
    in_axes: _layer.LogicalAxes,
    out_axes: _layer.LogicalAxes,
    use_bias: bool = False,
    init_scale: float = 1.0,
    compute_dtype: str = 'float32',
    rngs: nnx.Rngs,
  ):
    self.in_shape = in_shape
    self.out_shape = out_shape
    self.compute_dtype = jnp.dtype(compute_dtype)
    self.is_turned = False
    self.kernel = _layer.normal(
      rngs,
      (*out_shape, *in_shape),
      axes=(*out_axes, *in_axes),
      stddev=init_scale * _layer.fan_in_stddev(math.prod(in_shape)),
    )
    self.bias = (
      _layer.constant(0.0, out_shape, axes=out_axes) if use_bias else None
    )

  def __call__(self, x: Float[Array, '...']) -> Float[Array, '...']:
    """Maps the trailing `in_shape` of `x` to `out_shape`."""
    lead = x.shape[: x.ndim - len(self.in_shape)]
    kernel = self.kernel[...].astype(self.compute_dtype)
    x = x.astype(self.compute_dtype).reshape(*lead, -1)
    if self.is_turned:
      kernel = kernel.reshape(x.shape[-1], -1)
      flat = jnp.matmul(x, kernel, preferred_element_type=self.compute_dtype)
    else:
      kernel = kernel.reshape(-1, x.shape[-1])
      flat = contract(x, kernel, dtype=self.compute_dtype)
    out = flat.reshape(*lead, *self.out_shape)
    if self.bias is not None:
      out += self.bias[...].astype(self.compute_dtype)
    return out

  def turn(self) -> None:
    """Keeps the kernel as (*in_shape, *out_shape) and compute dtype from now on.

    For who reads it many times: products of 2 to 16 rows then take two thirds
    of the time.
    """
    num_out = len(self.out_shape)
    kernel = jnp.moveaxis(
      self.kernel[...].astype(self.compute_dtype),
      range(num_out),
      range(-num_out, 0),
    )
    self.kernel = nnx.Param(kernel)
    self.is_turned = True


class Embedding(_layer.Layer):
  """A vector for each id, and its use backwards as a classifier.

  Attributes:
    table: Float32 of (vocab_size, model_dim).
  """

  def __init__(
    self,
    vocab_size: int,
    model_dim: int,
    *,
    compute_dtype: str = 'float32',
    rngs: nnx.Rngs,
  ):
    self.compute_dtype = jnp.dtype(compute_dtype)
    self.table = _layer.normal(
      rngs,
      (vocab_size, model_dim),
      axes=('vocab', 'embed'),
      stddev=_layer.fan_in_stddev(model_dim),
    )

  def __call__(
    self, ids: Int[Array, 'batch time']
  ) -> Float[Array, 'batch time embed']:
    """Looks the ids up."""
    return self.table[...][ids].astype(self.compute_dtype)

  def turned(self) -> Float[Array, 'embed vocab']:
    """The table as a classifier that is read many times; see `Linear.turn`."""
    return self.table[...].astype(self.compute_dtype).T

  def logits(self, x: Float[Array, '... embed']) -> Float[Array, '... vocab']:
    """Unnormalised float32 scores of every id."""
    return contract(
      x.astype(self.compute_dtype),
      self.table[...].astype(self.compute_dtype),
      dtype=jnp.dtype('float32'),
    )
