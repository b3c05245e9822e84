"""Config trees as lines to read and to grep, in the words of `--set`."""

import datetime
import enum
from collections.abc import Iterator, Mapping
from typing import Any

from paxlike.config import _dtypes, fields, references, values


class Writer:
  """Flattens trees into `path = value` lines, defaults included."""

  def __init__(self) -> None:
    self._seen: dict[int, tuple[str, Any]] = {}

  def lines(self, value: Any, path: str, *, note: str = '') -> Iterator[str]:
    """The lines of `value` and of all below it.

    Args:
      value: A config node or a value in one.
      path: Where it is.
      note: Written behind the first line.
    """
    if hasattr(type(value), '__build__'):
      yield from self._buildable_lines(value, path, note)
    elif fields.is_config(value):
      yield f'{path} = {_reference(type(value))}{note}'
      for name, item in fields.arguments_of(value).items():
        yield from self.lines(item, f'{path}.{name}', note=note)
    elif isinstance(value, Mapping) and _has_config(value.values()):
      for key, item in value.items():
        yield from self.lines(item, f'{path}.{key}' if path else str(key))
    elif type(value) in (list, tuple) and _has_config(value):
      for index, item in enumerate(value):
        yield from self.lines(item, f'{path}[{index}]')
    else:
      yield f'{path} = {_say(value)}{note}'

  def _buildable_lines(self, node: Any, path: str, note: str) -> Iterator[str]:
    if id(node) in self._seen:
      yield f'{path} = the same as {self._seen[id(node)][0]}'
      return
    self._seen[id(node)] = (path, node)
    name = type(node).__name__
    kind = '' if name == 'Config' else f'  # {name.lower()}'
    yield f'{path} = {_reference(node.__fn_or_cls__)}{kind}{note}'
    known = fields.of(node.__fn_or_cls__)
    arguments = dict(node.__arguments__)
    for name, field in known.items():
      if name in arguments:
        yield from self.lines(arguments.pop(name), f'{path}.{name}')
      elif field.factory is not None:
        # Called only where that cannot do anything: dict(), list(), set().
        is_plain = field.factory.__module__ == 'builtins'
        made = (
          repr(field.factory())
          if is_plain
          else f'{_reference(field.factory)}()'
        )
        yield f'{path}.{name} = {made}  # default'
      elif field.default is not fields.Field.REQUIRED:
        yield from self.lines(
          field.default, f'{path}.{name}', note='  # default'
        )
      elif not kind:  # what a template lacks, its caller gives
        yield f'{path}.{name}  # not set'
    for name, item in arguments.items():
      step = f'[{name}]' if isinstance(name, int) else f'.{name}'
      yield from self.lines(item, f'{path}{step}')


def _has_config(items: Any) -> bool:
  return any(
    hasattr(type(item), '__build__')
    or fields.is_config(item)
    or (isinstance(item, Mapping) and _has_config(item.values()))
    or (type(item) in (list, tuple) and _has_config(item))
    for item in items
  )


def _reference(target: Any) -> str:
  return f'@{references.name_of(target) or repr(target)}'


def _say(value: Any) -> str:
  """One value on one line, as `--set` would read it where it can."""
  if isinstance(value, enum.Enum):
    return value.name
  if _dtypes.is_dtype(value):
    return _dtypes.name_of(value)
  if isinstance(value, datetime.timedelta):
    return values.duration_text(value)
  if isinstance(value, list | tuple) and not hasattr(value, '_fields'):
    opening, closing = ('[', ']') if isinstance(value, list) else ('(', ')')
    only = ',' if len(value) == 1 and opening == '(' else ''
    return f'{opening}{", ".join(_say(item) for item in value)}{only}{closing}'
  if callable(value):
    return _reference(value)
  return repr(value)
