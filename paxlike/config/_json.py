"""Config trees as JSON that outlives a move of files, and back.

Plain JSON values stand for themselves. Everything else is an object with one
key that begins with '$': `{"$config": "paxlike.tasks:TrainParams", "args":
{...}}`. Classes and functions go by their public names. A node that is used in
two places is written once and then referred to, since it is built once.
"""

import base64
import datetime
import enum
import math
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from paxlike.config import _dtypes, fields, references, values
from paxlike.core import errors


class Encoder:
  """Turns trees into JSON values; remembers which nodes it has seen."""

  def __init__(self) -> None:
    # The nodes are held too: an id is only theirs while they live.
    self._seen: dict[int, tuple[str, Any]] = {}

  def encode(self, value: Any, path: str) -> Any:
    """The JSON value for `value`.

    Args:
      value: A config node or a value in one.
      path: Where it is, for what refers to it later.
    """
    # By exact type: an enum member may be an int or a str as well.
    if value is None or type(value) in (bool, int, str):
      return value
    if type(value) is float:
      return value if math.isfinite(value) else {'$float': repr(value)}
    if hasattr(type(value), '__build__'):
      return self._encode_buildable(value, path)
    if isinstance(value, Mapping):
      return self._encode_dict(value, path)
    if type(value) in (list, tuple, set, frozenset):
      return self._encode_items(value, path)
    return self._encode_other(value, path)

  def _encode_buildable(self, node: Any, path: str) -> Any:
    if id(node) in self._seen:
      return {'$same_as': self._seen[id(node)][0]}
    self._seen[id(node)] = (path, node)
    target = references.name_of(node.__fn_or_cls__)
    if target is None:
      return _opaque(node.__fn_or_cls__)
    encoded = {
      _BUILDABLE_KEYS.get(type(node).__name__, '$config'): target,
      'args': {
        str(name): self.encode(item, _join(path, name))
        for name, item in node.__arguments__.items()
      },
    }
    tags = {
      str(name): sorted(str(references.name_of(tag)) for tag in found)
      for name, found in node.__argument_tags__.items()
      if found
    }
    return {**encoded, 'tags': tags} if tags else encoded

  def _encode_dict(self, value: Mapping[Any, Any], path: str) -> Any:
    if all(isinstance(key, str) and key[:1] != '$' for key in value):
      return {
        key: self.encode(item, f'{path}.{key}') for key, item in value.items()
      }
    return {
      '$dict': [
        [self.encode(key, path), self.encode(item, _join(path, str(key)))]
        for key, item in value.items()
      ]
    }

  def _encode_items(self, value: Any, path: str) -> Any:
    items = [
      self.encode(item, f'{path}[{index}]') for index, item in enumerate(value)
    ]
    return items if type(value) is list else {f'${type(value).__name__}': items}

  def _encode_other(self, value: Any, path: str) -> Any:
    if isinstance(value, enum.Enum):
      target = references.name_of(type(value))
      return {'$enum': target, 'name': value.name} if target else _opaque(value)
    if _dtypes.is_dtype(value) and not isinstance(value, type):
      if type(value).__name__ != '_ScalarMeta':
        return {'$dtype': _dtypes.name_of(value)}
      return {'$ref': f'jax.numpy:{value.dtype.name}'}
    if isinstance(value, datetime.timedelta):
      return {'$duration': values.duration_text(value)}
    if isinstance(value, pathlib.PurePath):
      return {'$path': str(value)}
    if isinstance(value, bytes):
      return {'$bytes': base64.b64encode(value).decode('ascii')}
    call = self._encode_call(value, path)
    if call is not None:
      return call
    target = references.name_of(value)
    return {'$ref': target} if target else _opaque(value)

  def _encode_call(self, value: Any, path: str) -> Any:
    """Values that their class makes again from known arguments."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if fields.is_config(value):
      kwargs = fields.arguments_of(value)
    elif _is_partition_spec(value) or _is_named_tuple(value):
      args = list(value)
    else:
      return None
    target = references.name_of(type(value))
    if target is None:
      return _opaque(value)
    return {
      '$call': target,
      'args': {
        **{
          str(index): self.encode(item, f'{path}[{index}]')
          for index, item in enumerate(args)
        },
        **{
          name: self.encode(item, f'{path}.{name}')
          for name, item in kwargs.items()
        },
      },
    }


class Decoder:
  """Turns JSON values back into trees; hands out a shared node twice."""

  def __init__(self) -> None:
    self._made: dict[str, Any] = {}

  def decode(self, value: Any, path: str) -> Any:
    """The value that `Encoder.encode` wrote.

    Raises:
      ConfigError: It holds what cannot be written by name, or this is not
        what an encoder wrote.
    """
    if isinstance(value, list):
      return [
        self.decode(item, f'{path}[{index}]')
        for index, item in enumerate(value)
      ]
    if not isinstance(value, dict):
      return value
    kind = next((key for key in value if key.startswith('$')), None)
    if kind is None:
      return {
        key: self.decode(item, f'{path}.{key}') for key, item in value.items()
      }
    if kind == '$opaque':
      raise errors.ConfigError(
        f'{path} was {value[kind]}, which has no name that it could be loaded '
        'by. Define it at the top of a module and run again.'
      )
    try:
      return self._decode_kind(kind, value, path)
    except references.ReferenceError as error:
      raise errors.ConfigError(f'{path}: {error}') from None

  def _decode_kind(self, kind: str, value: Any, path: str) -> Any:
    match kind:
      case '$config' | '$partial' | '$factory':
        return self._decode_buildable(kind, value, path)
      case '$call':
        return self._decode_call(value, path)
      case '$same_as':
        return self._made[value[kind]]
      case '$dict':
        return self._decode_dict(value[kind], path)
      case '$tuple' | '$set' | '$frozenset':
        return _COLLECTIONS[kind](self.decode(value[kind], path))
      case '$enum':
        return references.load(value[kind])[value['name']]
      case _ if kind in _SCALARS:
        return _SCALARS[kind](value[kind])
      case _:
        raise errors.ConfigError(f'{path} holds {kind}, which means nothing.')

  def _decode_buildable(self, kind: str, value: Any, path: str) -> Any:
    import fiddle as fdl

    cls = {'$config': fdl.Config, '$partial': fdl.Partial}.get(
      kind, fdl.ArgFactory
    )
    args, kwargs = self._decode_arguments(value, path)
    target = references.load(value[kind])
    if args:  # what stands before *args can only be given by position too
      leading = [
        name
        for name, field in fields.of(target).items()
        if name in kwargs and not field.is_keyword_only
      ]
      args = [*(kwargs.pop(name) for name in leading), *args]
    try:
      node = cls(target, *args, **kwargs)
    except TypeError as error:  # its signature has changed since
      raise errors.ConfigError(f'{path}: {error}') from None
    for name, tags in value.get('tags', {}).items():
      for tag in tags:
        fdl.add_tag(node, name, references.load(tag))
    self._made[path] = node
    return node

  def _decode_call(self, value: Any, path: str) -> Any:
    target = references.load(value['$call'])
    if not isinstance(target, type):
      raise errors.ConfigError(f'{path}: {value["$call"]} is no class.')
    args, kwargs = self._decode_arguments(value, path)
    return target(*args, **kwargs)

  def _decode_arguments(
    self, value: Any, path: str
  ) -> tuple[list[Any], dict[str, Any]]:
    args = []
    kwargs = {}
    for name, item in value['args'].items():
      if name.isdigit():
        args.append(self.decode(item, f'{path}[{name}]'))
      else:
        kwargs[name] = self.decode(item, f'{path}.{name}')
    return args, kwargs

  def _decode_dict(self, pairs: Any, path: str) -> Any:
    made = {}
    for key, item in pairs:
      name = self.decode(key, path)
      made[name] = self.decode(item, _join(path, str(name)))
    return made


def _is_named_tuple(value: Any) -> bool:
  return isinstance(value, tuple) and hasattr(value, '_fields')


def _is_partition_spec(value: Any) -> bool:
  jax = sys.modules.get('jax')
  return jax is not None and isinstance(value, jax.sharding.PartitionSpec)


def _opaque(value: Any) -> dict[str, str]:
  return {'$opaque': repr(value)}


def _join(path: str, name: str | int) -> str:
  return f'{path}[{name}]' if isinstance(name, int) else f'{path}.{name}'


_BUILDABLE_KEYS = {
  'Config': '$config',
  'Partial': '$partial',
  'ArgFactory': '$factory',
}
_COLLECTIONS: dict[str, Callable[[Any], Any]] = {
  '$tuple': tuple,
  '$set': set,
  '$frozenset': frozenset,
}
_SCALARS: dict[str, Callable[[Any], Any]] = {
  '$bytes': base64.b64decode,
  '$dtype': _dtypes.from_name,
  '$duration': lambda text: values.convert(text, datetime.timedelta),
  '$float': float,
  '$path': pathlib.Path,
  '$ref': references.load,
}
