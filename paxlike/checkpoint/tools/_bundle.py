"""A state on its way from one format to another.

Arrays are read one at a time, when the target asks for them, so that formats
which are written piece by piece need no memory for the whole.
"""

import base64
import binascii
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf import message

from paxlike.checkpoint import _state
from paxlike.core import errors, suggest, trees
from paxlike.protos import checkpoint_pb2 as pb


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundle:
  """A state, whatever it is stored in.

  Attributes:
    tree: Its structure; array leaves are numbers into `arrays`.
    arrays: What each array is.
    read: Gives an array by its number.
    step: Number of completed updates; None where the format has none.
    items: Further items: name to (encoding, bytes).
    metrics: Those it was saved with.
    notes: What the user should know, such as what could not be read.
  """

  tree: pb.Node
  arrays: tuple[_state.ArrayInfo, ...]
  read: Callable[[int], np.ndarray]
  step: int | None = None
  items: Mapping[str, tuple[str, bytes]] = dataclasses.field(
    default_factory=dict
  )
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
  notes: tuple[str, ...] = ()

  @property
  def num_bytes(self) -> int:
    """Bytes of all arrays."""
    return sum(info.num_bytes for info in self.arrays)

  def refuse(self, format_name: str, problems: Mapping[str, str]) -> None:
    """Raises if a format cannot hold some arrays.

    Args:
      format_name: Which format.
      problems: Name of an array to what is wrong with it.

    Raises:
      UsageError: There are problems; the message says what to type instead.
    """
    if problems:
      listed = ', '.join(f'{n!r} ({what})' for n, what in problems.items())
      raise errors.UsageError(
        f'{format_name} cannot hold {len(problems)} of the arrays: {listed}. '
        'Choose some with --only, or another format, such as --to zarr3.'
      )

  def outline(self) -> str:
    """All but the arrays' bytes as text, for formats that have a place for it.

    A reader that understands it gets the very state back: containers, typed
    keys, Python numbers, items.
    """
    manifest = pb.Manifest(
      step=self.step or 0,
      tree=self.tree,
      arrays=[info.to_proto(layout=0) for info in self.arrays],
      metrics=dict(self.metrics),
    )
    items = {
      name: [encoding, base64.b64encode(data).decode()]
      for name, (encoding, data) in self.items.items()
    }
    data = manifest.SerializeToString(deterministic=True)
    return json.dumps(
      {'manifest': base64.b64encode(data).decode(), 'items': items}
    )


def from_outline(
  text: str, read: Callable[[str], np.ndarray], *, path: str
) -> Bundle:
  """Puts together what `Bundle.outline` told and a reader of arrays by name.

  Raises:
    CheckpointDamagedError: The text is not what was written.
  """
  try:
    content = json.loads(text)
    manifest = pb.Manifest.FromString(base64.b64decode(content['manifest']))
    items = {
      name: (encoding, base64.b64decode(data))
      for name, (encoding, data) in content['items'].items()
    }
    arrays = tuple(_state.info_from_proto(a) for a in manifest.arrays)
  except (
    ValueError,
    TypeError,
    KeyError,
    binascii.Error,
    message.DecodeError,
  ) as e:
    raise errors.CheckpointDamagedError(
      f'{path} is damaged: its outline of the state does not read: {e}.'
    ) from e

  def read_number(number: int) -> np.ndarray:
    info = arrays[number]
    values = read(info.name)
    if values.shape != info.shape or values.dtype != info.dtype:
      raise errors.CheckpointDamagedError(
        f'{path} is damaged: array {info.name!r} is '
        f'{values.dtype}{list(values.shape)}, not {info}.'
      )
    return values

  return Bundle(
    tree=manifest.tree,
    arrays=arrays,
    read=read_number,
    step=manifest.step,
    items=items,
    metrics=dict(manifest.metrics),
  )


def from_tree(state: Any, *, step: int | None = None) -> Bundle:
  """A bundle of nested containers of NumPy arrays and Python values."""
  apart = _state.take_apart(state)
  values = [np.asarray(value) for value in apart.values]
  return Bundle(
    tree=apart.tree, arrays=apart.arrays, read=values.__getitem__, step=step
  )


def from_names(
  names: Mapping[str, Any], read: Callable[[str], np.ndarray]
) -> Bundle:
  """A bundle of arrays that have only names; '/' in a name makes a dict.

  Args:
    names: Name to something with `shape` and `dtype`.
    read: Gives an array by its name.

  Raises:
    CheckpointError: One name is the beginning of another.
  """
  nested: dict[str, Any] = {}
  for name in names:
    *parents, last = name.split(trees.SEPARATOR)
    node = nested
    for key in parents:
      node = node.setdefault(key, {})
      if not isinstance(node, dict):
        break
    if not isinstance(node, dict) or last in node:
      raise errors.CheckpointError(
        f'Array {name!r} has a name that is also the beginning of another.'
      )
    node[last] = _Named(name, names[name])
  in_order: list[str] = []
  arrays: list[_state.ArrayInfo] = []

  def visit(prefix: str, value: Any) -> pb.Node:
    if isinstance(value, _Named):
      in_order.append(value.name)
      dtype, shape = np.dtype(value.like.dtype), tuple(value.like.shape)
      arrays.append(_state.ArrayInfo(prefix, dtype, shape, 'numpy'))
      return pb.Node(kind='array', array=len(arrays) - 1)
    node = pb.Node(kind='dict', type_name='dict')
    for key in sorted(value):
      node.keys.append(pb.Key(text=key))
      part = trees.escape(key)
      below = f'{prefix}{trees.SEPARATOR}{part}' if prefix else part
      node.children.append(visit(below, value[key]))
    return node

  tree = visit('', nested)
  return Bundle(
    tree=tree, arrays=tuple(arrays), read=lambda i: read(in_order[i])
  )


@dataclasses.dataclass(frozen=True)
class _Named:
  name: str
  like: Any


def select(bundle: Bundle, only: str) -> Bundle:
  """The part of a state whose leaves have names that match.

  Args:
    bundle: The whole.
    only: Regular expression of whole leaf names.

  Raises:
    UsageError: It is no regular expression, or nothing matches.
  """
  try:
    pattern = re.compile(only)
  except re.error as e:
    raise errors.UsageError(
      f'--only={only} is no regular expression: {e}.'
    ) from e
  kept: list[int] = []

  def visit(name: str, node: pb.Node) -> pb.Node | None:
    if not node.children:
      if not pattern.fullmatch(name):
        return None
      if node.kind == 'array':
        kept.append(node.array)
        return pb.Node(kind='array', array=len(kept) - 1)
      return node
    out = pb.Node(kind=node.kind, type_name=node.type_name)
    for key, child in zip(node.keys, node.children, strict=True):
      part = trees.escape(str(key_of(key)))
      below = f'{name}{trees.SEPARATOR}{part}' if name else part
      found = visit(below, child)
      if found is not None:
        out.keys.append(key)
        out.children.append(found)
    return out if out.children else None

  tree = visit('', bundle.tree)
  if tree is None:
    raise errors.UsageError(
      f'No leaf has a name that matches --only={only}. Names are whole: to '
      f"get all parameters, for example, 'mdl_vars/params/.*'."
    )
  return dataclasses.replace(
    bundle,
    tree=tree,
    arrays=tuple(bundle.arrays[i] for i in kept),
    read=lambda i: bundle.read(kept[i]),
  )


def cast(bundle: Bundle, dtype: str) -> Bundle:
  """The same state with every floating array in one dtype.

  Integers, bools, complex numbers, PRNG keys and Python scalars stay as they
  are. A value that the dtype cannot hold is an error, not infinity.

  Args:
    bundle: The state.
    dtype: Name of a floating dtype, such as 'float32' or 'bfloat16'.

  Raises:
    UsageError: There is no such dtype; or, when an array is read, a finite
      value of it is too large.
  """
  wanted = _float_dtype(dtype)
  arrays = tuple(
    dataclasses.replace(info, dtype=wanted) if _is_float(info.dtype) else info
    for info in bundle.arrays
  )

  def read(number: int) -> np.ndarray:
    value = bundle.read(number)
    if value.dtype == arrays[number].dtype:
      return value
    with np.errstate(over='ignore'):
      changed = value.astype(wanted)
    lost = np.isfinite(value) & ~np.isfinite(changed)
    if lost.any():
      raise errors.UsageError(
        f'Array {arrays[number].name!r} has {int(lost.sum())} values that '
        f'{dtype} cannot hold, such as {value[lost].flat[0]}. Choose a dtype '
        'with a larger range.'
      )
    return changed

  return dataclasses.replace(bundle, arrays=arrays, read=read)


_FLOATS = ('float32', 'bfloat16', 'float16', 'float64')


def _float_dtype(name: str) -> np.dtype:
  try:
    found = np.dtype(name)
  except TypeError:
    found = None
  if found is None or not _is_float(found):
    raise errors.UsageError(
      f'--dtype={name} is no floating dtype. {suggest.hint(name, _FLOATS)}'
    )
  return found


def _is_float(dtype: np.dtype) -> bool:
  try:
    ml_dtypes.finfo(dtype)
  except ValueError:
    return False
  return dtype.kind != 'c'


def key_of(key: pb.Key) -> str | int:
  """How a container names a child."""
  return key.number if key.WhichOneof('kind') == 'number' else key.text


def as_state_dict(bundle: Bundle) -> Any:
  """Nested dicts with text keys, as flax writes any state; reads all arrays."""

  def visit(node: pb.Node) -> Any:
    if node.kind in ('array', 'scalar', 'none'):
      return _state.rebuild(node, bundle.read)
    return {
      str(key_of(key)): visit(child)
      for key, child in zip(node.keys, node.children, strict=True)
    }

  return visit(bundle.tree)


def lost_in_plain(bundle: Bundle) -> tuple[str, ...]:
  """Notes on what a format of nested dicts and arrays alone cannot keep."""
  notes = []
  if bundle.items:
    names = ', '.join(sorted(bundle.items))
    notes.append(f'items are not carried over: {names}')
  keys = [info.name for info in bundle.arrays if info.prng_impl]
  if keys:
    notes.append(
      f'typed PRNG keys became plain uint32 arrays: {trees.summarize(keys)}'
    )
  return tuple(notes)
