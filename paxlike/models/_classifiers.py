"""Small classifiers of arrays and of images.

Both take `example_weights`, so that padding rows leave no trace in batch
statistics, and both give float32 scores of [batch, num_classes].
"""

import functools
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from paxlike.core import errors
from paxlike.models import _batch_norm, _dropout, _layer, _linear

_POOL = 2


class MlpClassifier(_layer.Layer):
  """Hidden layers with ReLU, then one score for each class.

  Attributes:
    input_shape: Shape of one example; it is flattened.
    num_classes: Number of scores.
    hidden_dims: Width of each hidden layer; none is a linear classifier.
    dropout_rate: Of the hidden features, while training.
    compute_dtype: 'float32' or 'bfloat16'; parameters and scores stay float32.
  """

  def __init__(
    self,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden_dims: tuple[int, ...] = (128,),
    dropout_rate: float = 0.0,
    compute_dtype: str = 'float32',
    rngs: nnx.Rngs,
  ):
    _check(
      'MlpClassifier',
      input_shape=input_shape,
      num_classes=num_classes,
      sizes={'hidden_dims': hidden_dims},
      dropout_rate=dropout_rate,
      compute_dtype=compute_dtype,
    )
    self.input_shape = tuple(input_shape)
    self.num_hidden = len(hidden_dims)
    self.dropout_rate = dropout_rate
    dense = functools.partial(
      _linear.Linear, use_bias=True, compute_dtype=compute_dtype, rngs=rngs
    )
    dim = math.prod(input_shape)
    # Neighbours share a name, so that tensor parallelism cuts every other
    # dimension and needs one reduction for two layers.
    axes = ('embed', 'mlp')
    for i, hidden_dim in enumerate(hidden_dims):
      layer = dense(
        (dim,),
        (hidden_dim,),
        in_axes=(axes[i % 2],),
        out_axes=(axes[(i + 1) % 2],),
        init_scale=math.sqrt(2.0),
      )
      setattr(self, f'hidden_{i}', layer)
      dim = hidden_dim
    self.scores = dense(
      (dim,),
      (num_classes,),
      in_axes=(axes[self.num_hidden % 2],),
      out_axes=('classes',),
    )

  def __call__(
    self,
    inputs: Float[Array, 'batch ...'],
    *,
    example_weights: Float[Array, ' batch'] | None = None,
    key: jax.Array | None = None,
    train: bool = False,
  ) -> Float[Array, 'batch classes']:
    """Unnormalised float32 scores.

    Args:
      inputs: Of [batch, *input_shape], or flattened.
      example_weights: Not needed here: no row sees another.
      key: Draws the dropout; required when training with a dropout rate.
      train: Whether to drop.
    """
    del example_weights
    keys = _dropout.keys(
      key, self.num_hidden, rate=self.dropout_rate, train=train
    )
    x = inputs.reshape(inputs.shape[0], math.prod(self.input_shape))
    for i in range(self.num_hidden):
      x = jax.nn.relu(getattr(self, f'hidden_{i}')(x))
      x = _dropout.drop(x, self.dropout_rate, None if keys is None else keys[i])
    return self.scores(x).astype(jnp.float32)


class Conv(_layer.Layer):
  """A convolution of stride 1 that keeps the image's size.

  Attributes:
    kernel: Float32 of (height, width, in, out).
  """

  def __init__(
    self,
    in_dim: int,
    out_dim: int,
    *,
    kernel_size: int,
    compute_dtype: str = 'float32',
    rngs: nnx.Rngs,
  ):
    self.compute_dtype = jnp.dtype(compute_dtype)
    self.kernel = _layer.normal(
      rngs,
      (kernel_size, kernel_size, in_dim, out_dim),
      axes=(None, None, 'conv_in', 'conv_out'),
      stddev=math.sqrt(2.0) * _layer.fan_in_stddev(kernel_size**2 * in_dim),
    )

  def __call__(
    self, x: Float[Array, 'batch height width in_dim']
  ) -> Float[Array, 'batch height width out_dim']:
    """Convolves; a bias is left to the batch norm that follows."""
    return jax.lax.conv_general_dilated(
      x.astype(self.compute_dtype),
      self.kernel[...].astype(self.compute_dtype),
      window_strides=(1, 1),
      padding='SAME',
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )


class CnnClassifier(_layer.Layer):
  """Convolution, batch norm, ReLU and pooling, repeated; then a hidden layer.

  Attributes:
    input_shape: (height, width, channels) of one image.
    num_classes: Number of scores.
    conv_dims: Channels after each convolution; each is followed by a maximum
      over 2 x 2 pixels, so the image must be divisible that often.
    kernel_size: Height and width of the convolutions.
    hidden_dim: Width of the hidden layer.
    dropout_rate: Of the hidden layer's inputs and features, while training.
    batch_norm_momentum: Share of the running statistics that an update keeps.
    compute_dtype: 'float32' or 'bfloat16'; parameters and scores stay float32.
  """

  def __init__(
    self,
    *,
    input_shape: tuple[int, int, int],
    num_classes: int,
    conv_dims: tuple[int, ...] = (32, 64),
    kernel_size: int = 3,
    hidden_dim: int = 128,
    dropout_rate: float = 0.0,
    batch_norm_momentum: float = 0.9,
    compute_dtype: str = 'float32',
    rngs: nnx.Rngs,
  ):
    _check(
      'CnnClassifier',
      input_shape=input_shape,
      num_classes=num_classes,
      sizes={
        'conv_dims': conv_dims,
        'hidden_dim': [hidden_dim],
        'kernel_size': [kernel_size],
      },
      dropout_rate=dropout_rate,
      compute_dtype=compute_dtype,
    )
    height, width, channels = input_shape
    shrink = _POOL ** len(conv_dims)
    if height % shrink or width % shrink:
      raise errors.ConfigError(
        f'CnnClassifier.input_shape {input_shape} is not divisible by {shrink},'
        f' which {len(conv_dims)} poolings need; shorten conv_dims.'
      )
    self.input_shape = tuple(input_shape)
    self.num_convs = len(conv_dims)
    self.dropout_rate = dropout_rate
    for i, conv_dim in enumerate(conv_dims):
      conv = Conv(
        channels,
        conv_dim,
        kernel_size=kernel_size,
        compute_dtype=compute_dtype,
        rngs=rngs,
      )
      norm = _batch_norm.BatchNorm(
        conv_dim, axis='conv_out', momentum=batch_norm_momentum, rngs=rngs
      )
      setattr(self, f'conv_{i}', conv)
      setattr(self, f'norm_{i}', norm)
      channels = conv_dim
    dense = functools.partial(
      _linear.Linear, use_bias=True, compute_dtype=compute_dtype, rngs=rngs
    )
    self.hidden = dense(
      (height // shrink * (width // shrink) * channels,),
      (hidden_dim,),
      in_axes=('embed',),
      out_axes=('mlp',),
      init_scale=math.sqrt(2.0),
    )
    self.scores = dense(
      (hidden_dim,),
      (num_classes,),
      in_axes=('mlp',),
      out_axes=('classes',),
    )

  def __call__(
    self,
    inputs: Float[Array, 'batch ...'],
    *,
    example_weights: Float[Array, ' batch'] | None = None,
    key: jax.Array | None = None,
    train: bool = False,
  ) -> Float[Array, 'batch classes']:
    """Unnormalised float32 scores.

    Args:
      inputs: Of [batch, *input_shape], or without the channel if it is one.
      example_weights: 0 for padding rows, which then leave the batch
        statistics alone.
      key: Draws the dropout; required when training with a dropout rate.
      train: Whether to drop and to update the batch statistics.
    """
    keys = _dropout.keys(key, 2, rate=self.dropout_rate, train=train)
    before, after = (None, None) if keys is None else (keys[0], keys[1])
    x = inputs.reshape(inputs.shape[0], *self.input_shape)
    for i in range(self.num_convs):
      x = getattr(self, f'conv_{i}')(x)
      x = getattr(self, f'norm_{i}')(
        x, example_weights=example_weights, train=train
      )
      x = _max_pool(jax.nn.relu(x))
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(self.hidden(_dropout.drop(x, self.dropout_rate, before)))
    x = _dropout.drop(x, self.dropout_rate, after)
    return self.scores(x).astype(jnp.float32)


def _max_pool(
  x: Float[Array, 'batch height width dim'],
) -> Float[Array, 'batch half_height half_width dim']:
  """Maximum of each 2 x 2 block; its gradient is a select, not a scatter."""
  batch, height, width, dim = x.shape
  blocks = x.reshape(batch, height // _POOL, _POOL, width // _POOL, _POOL, dim)
  return blocks.max(axis=(2, 4))


def _check(
  owner: str,
  *,
  input_shape: Sequence[int],
  num_classes: int,
  sizes: Mapping[str, Sequence[int]],
  dropout_rate: float,
  compute_dtype: str,
) -> None:
  _layer.require_positive(owner, num_classes=num_classes)
  if not input_shape or min(input_shape) < 1:
    raise errors.ConfigError(
      f'{owner}.input_shape is {tuple(input_shape)}: it needs at least one '
      'dimension, each >= 1.'
    )
  for name, dims in sizes.items():
    if min(dims, default=1) < 1:
      said = dims[0] if len(dims) == 1 else tuple(dims)
      raise errors.ConfigError(f'{owner}.{name} is {said}, must be >= 1.')
  _layer.require_fraction(owner, dropout_rate=dropout_rate)
  _layer.require_choice(
    owner, _layer.COMPUTE_DTYPES, compute_dtype=compute_dtype
  )
