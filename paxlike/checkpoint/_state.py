"""What a state consists of: its structure and its leaves, to and from proto.

The structure is written down, so that a reader without the program that wrote
it can show it, and a reader with another program is told how the two differ.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401 (names like 'bfloat16' become NumPy dtypes)
import numpy as np

from paxlike.core import errors, trees
from paxlike.protos import checkpoint_pb2 as pb

_SCALARS = (bool, int, float, complex, str, bytes)


@dataclasses.dataclass(frozen=True)
class ArrayInfo:
  """What an array leaf is, without its values.

  Attributes:
    name: Its name in the state.
    dtype: Of its elements; of the key data for a typed PRNG key.
    shape: Global shape; with the words of a key as last dimension.
    holder: 'jax', 'numpy' or 'numpy_scalar'.
    prng_impl: Implementation of a typed PRNG key, else ''.
  """

  name: str
  dtype: np.dtype
  shape: tuple[int, ...]
  holder: str = 'jax'
  prng_impl: str = ''

  @property
  def num_bytes(self) -> int:
    """Bytes of the whole array."""
    return math.prod(self.shape) * self.dtype.itemsize

  def __str__(self) -> str:
    if self.prng_impl:
      return f'key<{self.prng_impl}>{list(self.shape[:-1])}'
    return f'{self.dtype.name}{list(self.shape)}'

  def to_proto(self, *, layout: int) -> pb.Array:
    """The record of this array in a manifest."""
    return pb.Array(
      name=self.name,
      dtype=self.dtype.name,
      shape=self.shape,
      layout=layout,
      prng_impl=self.prng_impl,
      holder=self.holder,
    )


def infos_of(manifest: pb.Manifest) -> list[ArrayInfo]:
  """All arrays of a step, by number."""
  return [info_from_proto(array) for array in manifest.arrays]


def info_from_proto(array: pb.Array) -> ArrayInfo:
  """Reads back what `ArrayInfo.to_proto` wrote."""
  return ArrayInfo(
    name=array.name,
    dtype=np.dtype(array.dtype),
    shape=tuple(array.shape),
    holder=array.holder,
    prng_impl=array.prng_impl,
  )


@dataclasses.dataclass(frozen=True)
class State:
  """A state taken apart.

  Attributes:
    tree: Its structure; array leaves are numbers into `arrays`.
    arrays: The arrays, in the order of the structure.
    values: The values of these arrays, raw: key data for PRNG keys.
  """

  tree: pb.Node
  arrays: tuple[ArrayInfo, ...]
  values: tuple[Any, ...]


def is_key(leaf: Any) -> bool:
  """Whether it is an array (or the shape) of typed PRNG keys."""
  import jax

  dtype = getattr(leaf, 'dtype', None)
  return dtype is not None and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def key_impl(leaf: Any) -> str:
  """The name of the implementation of a PRNG key, abstract or not."""
  # `jax.random.key_impl` takes values only, and a target has none.
  return str(leaf.dtype._impl.name)  # noqa: SLF001


def key_words(leaf: Any) -> tuple[int, ...]:
  """The dimensions that one key adds to the shape of its data."""
  return tuple(leaf.dtype._impl.key_shape)  # noqa: SLF001


def describe(name: str, leaf: Any) -> ArrayInfo | None:
  """What kind of array a leaf is, or None if it is a Python scalar.

  Args:
    name: Of the leaf, for the record and for messages.
    leaf: An array, abstract array, NumPy scalar or Python scalar.

  Returns:
    The description, or None for bool, int, float, complex, str and bytes.

  Raises:
    ConfigError: The leaf is nothing that a checkpoint can hold.
  """
  import jax

  if isinstance(leaf, _SCALARS) and not isinstance(leaf, np.generic):
    return None
  if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) and not is_key(leaf):
    return ArrayInfo(name, np.dtype(leaf.dtype), tuple(leaf.shape))
  if is_key(leaf):
    shape = (*leaf.shape, *key_words(leaf))
    return ArrayInfo(name, np.dtype(np.uint32), shape, 'jax', key_impl(leaf))
  if isinstance(leaf, np.generic):
    holder = 'numpy_scalar'
  elif isinstance(leaf, np.ndarray):
    holder = 'numpy'
  elif hasattr(leaf, 'shape') and hasattr(leaf, 'dtype'):
    holder = 'jax'
  else:
    raise errors.ConfigError(
      f'State leaf {name!r} is a {type(leaf).__name__}; a checkpoint holds '
      'arrays, numbers, text and bytes.'
    )
  dtype = np.dtype(leaf.dtype)
  if dtype.kind not in 'biufcV' or dtype.hasobject or dtype.names:
    raise errors.ConfigError(
      f'State leaf {name!r} has dtype {dtype}, which has no fixed bytes.'
    )
  return ArrayInfo(name, dtype.newbyteorder('<'), tuple(leaf.shape), holder)


def take_apart(state: Any) -> State:
  """Splits a state into its structure and its arrays.

  Raises:
    ConfigError: A leaf cannot be saved, or two leaves share a name.
  """
  import jax

  arrays: list[ArrayInfo] = []
  values: list[Any] = []

  def visit(name: str, node: Any) -> pb.Node:
    below = trees.children(node)
    if below is None:
      return leaf_node(name, node)
    out = pb.Node(kind=_container_kind(node), type_name=trees.type_name(node))
    for child in below:
      key = pb.Key()
      if isinstance(child.key, int):
        key.number = child.key
      else:
        key.text = child.key
      out.keys.append(key)
      out.children.append(visit(_child_name(name, child.key), child.value))
    return out

  def leaf_node(name: str, leaf: Any) -> pb.Node:
    info = describe(name, leaf)
    if info is None:
      return pb.Node(
        kind='scalar', type_name=type(leaf).__name__, scalar=_to_scalar(leaf)
      )
    arrays.append(info)
    values.append(jax.random.key_data(leaf) if info.prng_impl else leaf)
    return pb.Node(kind='array', array=len(arrays) - 1)

  tree = visit('', state)
  return State(tree, tuple(arrays), tuple(values))


def _child_name(prefix: str, key: str | int) -> str:
  part = trees.escape(str(key))
  return f'{prefix}{trees.SEPARATOR}{part}' if prefix else part


def _container_kind(node: Any) -> str:
  if node is None:
    return 'none'
  if type(node) in (dict, list, tuple):
    return type(node).__name__
  return 'namedtuple' if isinstance(node, tuple) else 'custom'


def _to_scalar(value: Any) -> pb.Scalar:
  if isinstance(value, bool):
    return pb.Scalar(boolean=value)
  if isinstance(value, int):
    return pb.Scalar(integer=str(int(value)))
  if isinstance(value, float):
    return pb.Scalar(real=value)
  if isinstance(value, complex):
    parts = pb.Complex(real=value.real, imaginary=value.imag)
    return pb.Scalar(complex=parts)
  if isinstance(value, str):
    return pb.Scalar(text=value)
  return pb.Scalar(raw=value)


def from_scalar(scalar: pb.Scalar) -> Any:
  """The Python value of a scalar record."""
  kind = scalar.WhichOneof('kind')
  if kind == 'integer':
    return int(scalar.integer)
  if kind == 'complex':
    return complex(scalar.complex.real, scalar.complex.imaginary)
  return getattr(scalar, str(kind))


def _key_of(key: pb.Key) -> str | int:
  return key.number if key.WhichOneof('kind') == 'number' else key.text


@dataclasses.dataclass(frozen=True)
class SavedArray:
  """An array leaf of a saved state: its number in the manifest."""

  number: int


@dataclasses.dataclass(frozen=True)
class SavedScalar:
  """A Python scalar of a saved state."""

  value: Any


def leaves_of(tree: pb.Node) -> dict[str, Any]:
  """Every leaf of a saved structure by name, empty containers included.

  Returns:
    Name to `SavedArray`, `SavedScalar` or `trees.Empty`.
  """
  found: dict[str, Any] = {}

  def visit(name: str, node: pb.Node) -> None:
    if node.kind == 'array':
      found[name] = SavedArray(node.array)
    elif node.kind == 'scalar':
      found[name] = SavedScalar(from_scalar(node.scalar))
    elif not node.children:
      found[name] = trees.Empty(node.type_name)
    else:
      for key, child in zip(node.keys, node.children, strict=True):
        visit(_child_name(name, _key_of(key)), child)

  visit('', tree)
  return found


def rebuild(tree: pb.Node, array_of: Callable[[int], Any]) -> Any:
  """Builds a saved structure of plain dicts, lists and tuples.

  Args:
    tree: The saved structure.
    array_of: Gives the value of an array by its number.

  Returns:
    The state; NamedTuples and registered classes come back as dicts, since
    only the program that wrote them has their classes.
  """
  if tree.kind == 'array':
    return array_of(tree.array)
  if tree.kind == 'scalar':
    return from_scalar(tree.scalar)
  if tree.kind == 'none':
    return None
  values = [rebuild(child, array_of) for child in tree.children]
  if tree.kind == 'list':
    return values
  if tree.kind == 'tuple':
    return tuple(values)
  return dict(zip(map(_key_of, tree.keys), values, strict=True))
