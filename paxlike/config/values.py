"""Text from a command line, turned into the type that a field declares."""

import ast
import collections.abc
import datetime
import enum
import pathlib
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from paxlike.config import _dtypes, _literals, references

_DURATION_UNITS_S = {
  'ms': 1e-3,
  's': 1.0,
  'm': 60.0,
  'h': 3600.0,
  'd': 86400.0,
  'w': 604800.0,
}
_DURATION = re.compile(r'(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)')


class Mismatch(Exception):  # noqa: N818
  """A value is not of the type; `expected` says what is, in a few words."""

  def __init__(self, expected: str):
    super().__init__(expected)
    self.expected = expected


def convert(value: Any, annotation: Any) -> Any:
  """A value of the type `annotation`.

  Args:
    value: Text as typed, or a part of a literal that was text.
    annotation: The type that is wanted; `Any` takes a Python literal, else a
      `@dotted.reference`, else the text itself.

  Returns:
    The typed value.

  Raises:
    Mismatch: `value` does not spell such a value.
    ReferenceError: `value` is a reference to nothing.
  """
  annotation = _plain(annotation)
  origin = typing.get_origin(annotation) or annotation
  for is_kind, converter in _KINDS:
    if is_kind(origin):
      return converter(value, annotation)
  return _instance(value, annotation)


def annotation_of(value: Any) -> Any:
  """The type to expect in place of `value`, where none was declared."""
  if value is None:
    return Any
  if _dtypes.is_dtype(value):
    return _dtypes.dtype_class()
  if isinstance(value, tuple | list) and value:
    kinds = {annotation_of(item) for item in value}
    item = kinds.pop() if len(kinds) == 1 else Any
    return tuple[item, ...] if isinstance(value, tuple) else list[item]
  if callable(value) and not isinstance(value, type):
    return collections.abc.Callable
  return type(value)


def duration_text(value: datetime.timedelta) -> str:
  """A duration as `convert` reads it back: '1d12h'."""
  rest = round(value.total_seconds() * 1000)
  parts = []
  for unit, length_s in reversed(_DURATION_UNITS_S.items()):
    count, rest = divmod(rest, round(length_s * 1000))
    if count and unit != 'w':
      parts.append(f'{count}{unit}')
    elif unit == 'w':
      rest += count * round(length_s * 1000)
  return ''.join(parts) or '0s'


def _plain(annotation: Any) -> Any:
  """Without the wrappers that say nothing about the value."""
  while True:
    origin = typing.get_origin(annotation)
    if origin in (typing.Annotated, typing.ClassVar, typing.Final):
      annotation = typing.get_args(annotation)[0]
    elif isinstance(annotation, typing.NewType):
      annotation = annotation.__supertype__
    else:
      return annotation


def _anything(value: Any, annotation: Any) -> Any:
  del annotation
  if not isinstance(value, str):
    return value
  if value.startswith('@'):
    return references.load(value[1:])
  if value.lower() in ('none', 'true', 'false'):
    return _literals.WORDS[value.lower()]
  try:
    return ast.literal_eval(value)
  except _literals.FAILURES:
    return value


def _none(value: Any, annotation: Any) -> None:
  del annotation
  if value is not None and str(value).lower() != 'none':
    raise Mismatch('None')


def _bool(value: Any, annotation: Any) -> bool:
  del annotation
  if isinstance(value, str):
    value = {'true': True, 'false': False}.get(value.lower())
  if not isinstance(value, bool):
    raise Mismatch('true or false')
  return value


def _int(value: Any, annotation: Any) -> int:
  del annotation
  if isinstance(value, str):
    try:
      return int(value, 0)
    except ValueError:
      pass
    # 1e6 is how people write a million; 3.0 is a slip.
    if re.fullmatch(r'[-+]?\d+(\.\d+)?[eE]\+?\d+', value):
      value = float(value)
      if value.is_integer():
        return int(value)
  if isinstance(value, bool) or not isinstance(value, int):
    raise Mismatch('an int')
  return value


def _float(value: Any, annotation: Any) -> float:
  del annotation
  if isinstance(value, bool):
    raise Mismatch('a float')
  try:
    return float(value)
  except (ValueError, TypeError, OverflowError):
    raise Mismatch('a float') from None


def _str(value: Any, annotation: Any) -> str:
  del annotation
  if not isinstance(value, str):
    # A part of a literal: 10 in [10, b] is the text 10.
    return str(value)
  if len(value) >= 2 and value[0] == value[-1] and value[0] in '\'"':
    try:
      return str(ast.literal_eval(value))
    except (SyntaxError, ValueError):
      return value
  return value


def _union(value: Any, annotation: Any) -> Any:
  options = [_plain(option) for option in typing.get_args(annotation)]
  dtypes = [
    option
    for option in options
    if _dtypes.is_dtype_class(typing.get_origin(option) or option)
  ]
  if dtypes:
    if type(None) in options and str(value).lower() == 'none':
      return None
    return convert(value, dtypes[0])
  if str in options and isinstance(value, str) and value[:1] not in '([{':
    # Where text is allowed, a word alone is text, not a list of one word.
    options = [option for option in options if not _is_container(option)]
  # None and numbers before text, or every value would be text.
  order = [type(None), bool, int, float]
  options.sort(
    key=lambda o: order.index(o) if o in order else 9 if o is str else 5
  )
  expected = []
  for option in options:
    try:
      return convert(value, option)
    except Mismatch as mismatch:
      expected.append(mismatch.expected)
  raise Mismatch(' or '.join(dict.fromkeys(reversed(expected))))


def _is_container(annotation: Any) -> bool:
  origin = typing.get_origin(annotation) or annotation
  return (
    isinstance(origin, type)
    and issubclass(origin, collections.abc.Iterable)
    and not issubclass(origin, str | bytes)
  )


def _choice(value: Any, annotation: Any) -> Any:
  options = typing.get_args(annotation)
  for option in options:
    if value == option or str(value) == str(option):
      return option
  if None in options and str(value).lower() == 'none':
    return None
  raise Mismatch(f'one of {", ".join(str(option) for option in options)}')


def _enum(value: Any, annotation: Any) -> enum.Enum:
  text = str(value).rpartition('.')[2].lower()
  for member in annotation:
    if text in (member.name.lower(), str(member.value).lower()):
      return member
  names = ', '.join(member.name for member in annotation)
  raise Mismatch(f'one of {names}')


def _duration(value: Any, annotation: Any) -> datetime.timedelta:
  del annotation
  text = str(value).strip().lower()
  if not re.fullmatch(rf'({_DURATION.pattern}\s*)+', text):
    raise Mismatch('a duration such as 90s, 30m, 12h or 1d12h')
  seconds = sum(
    float(count) * _DURATION_UNITS_S[unit]
    for count, unit in _DURATION.findall(text)
  )
  return datetime.timedelta(seconds=seconds)


def _path(value: Any, annotation: Any) -> pathlib.Path:
  del annotation
  return pathlib.Path(str(value))


def _dtype(value: Any, annotation: Any) -> Any:
  del annotation
  name = str(value).removeprefix('@').replace(':', '.').rpartition('.')[2]
  try:
    return _dtypes.from_name(name)
  except TypeError:
    raise Mismatch('a dtype such as float32 or bfloat16') from None


def _parse(text: str, expected: str) -> Any:
  try:
    return _literals.parse(text)
  except _literals.FAILURES:
    raise Mismatch(expected) from None


def _items(value: Any, expected: str) -> Sequence[Any]:
  """The items of a literal; 'a,b' and 'a' do without the brackets."""
  if isinstance(value, str):
    value = _parse(value, expected)
  if isinstance(value, tuple | list | set):
    return list(value)
  if isinstance(value, dict) or value is None:
    raise Mismatch(expected)
  return [value]


def _tuple(value: Any, annotation: Any) -> tuple[Any, ...]:
  kinds = typing.get_args(annotation)
  if not kinds:
    return tuple(_items(value, 'a tuple'))
  if len(kinds) == 2 and kinds[1] is Ellipsis:
    return tuple(_all(_items(value, 'a tuple'), kinds[0], 'a tuple'))
  expected = f'a tuple of {len(kinds)}'
  items = _items(value, expected)
  if len(items) != len(kinds):
    raise Mismatch(expected)
  return tuple(
    convert(item, kind) for item, kind in zip(items, kinds, strict=True)
  )


def _list(value: Any, annotation: Any) -> list[Any]:
  items = _items(value, 'a list')
  kinds = typing.get_args(annotation)
  return _all(items, kinds[0], 'a list') if kinds else list(items)


def _set(value: Any, annotation: Any) -> Any:
  origin = typing.get_origin(annotation) or annotation
  items = _items(value, 'a set')
  kinds = typing.get_args(annotation)
  made = _all(items, kinds[0], 'a set') if kinds else items
  return frozenset(made) if origin is frozenset else set(made)


def _all(items: Sequence[Any], kind: Any, whole: str) -> list[Any]:
  try:
    return [convert(item, kind) for item in items]
  except Mismatch as mismatch:
    raise Mismatch(f'{whole}, each {mismatch.expected}') from None


def _dict(value: Any, annotation: Any) -> dict[Any, Any]:
  expected = 'a dict such as {a: 1, b: 2}'
  if isinstance(value, str):
    value = _parse(value, expected)
  if not isinstance(value, dict):
    raise Mismatch(expected)
  kinds = typing.get_args(annotation)
  if not kinds:
    return value
  return {
    convert(key, kinds[0]): convert(item, kinds[1])
    for key, item in value.items()
  }


def _reference(value: Any, annotation: Any) -> Any:
  expected = 'a reference such as @jax.nn.gelu'
  if not isinstance(value, str) or not re.search(r'[.:]', value):
    raise Mismatch(expected)
  target = references.load(value.removeprefix('@'))
  if not callable(target):
    raise Mismatch(f'something to call, which {value} is not')
  wants_class = (typing.get_origin(annotation) or annotation) is type
  if wants_class and not isinstance(target, type):
    raise Mismatch('a class')
  return target


def _instance(value: Any, annotation: Any) -> Any:
  """The rule for every other class: a literal or reference that is one."""
  made = _anything(value, annotation)
  origin = typing.get_origin(annotation) or annotation
  if isinstance(origin, type):
    try:
      if isinstance(made, origin):
        return made
    except TypeError:  # a protocol that cannot be asked at run time
      return made
    raise Mismatch(f'of type {origin.__name__}')
  return made


def _is_class(*classes: Any) -> Callable[[Any], bool]:
  return lambda origin: any(origin is cls for cls in classes)


def _is_enum(origin: Any) -> bool:
  return isinstance(origin, type) and issubclass(origin, enum.Enum)


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], Any]], ...] = (
  (_is_class(Any, object), _anything),
  (_is_class(None, type(None)), _none),
  (_is_class(typing.Union, types.UnionType), _union),
  (_is_class(typing.Literal), _choice),
  (_is_enum, _enum),
  (_is_class(bool), _bool),
  (_is_class(int), _int),
  (_is_class(float), _float),
  (_is_class(str), _str),
  (_is_class(datetime.timedelta), _duration),
  (_is_class(pathlib.Path, pathlib.PurePath), _path),
  (_dtypes.is_dtype_class, _dtype),
  (_is_class(tuple), _tuple),
  (_is_class(list, collections.abc.MutableSequence), _list),
  (
    _is_class(
      collections.abc.Sequence,
      collections.abc.Iterable,
      collections.abc.Collection,
    ),
    lambda value, annotation: tuple(_list(value, annotation)),
  ),
  (_is_class(set, frozenset, collections.abc.Set), _set),
  (
    _is_class(dict, collections.abc.Mapping, collections.abc.MutableMapping),
    _dict,
  ),
  (_is_class(collections.abc.Callable, type), _reference),
)
