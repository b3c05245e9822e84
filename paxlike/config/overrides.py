"""Changes values of a config tree by path, as `--set PATH=VALUE` does.

A name that does not exist, an index out of range and a value of another type
are errors at once, with the nearest name; none of them is passed on to fail
late or to be ignored.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paxlike.config import _dtypes, _paths, fields, references, values
from paxlike.core import errors, suggest


@dataclasses.dataclass(frozen=True)
class Setting:
  """One `PATH=VALUE`.

  Attributes:
    path: The part before the first '='.
    text: The part after it.
  """

  path: str
  text: str

  @classmethod
  def parse(cls, setting: str) -> 'Setting':
    """Takes 'path=value' apart.

    Raises:
      OverrideError: There is no '=', or nothing before it.
    """
    path, equals, text = setting.partition('=')
    if not equals or not path.strip():
      raise errors.OverrideError(
        f'--set {setting}: write it as PATH=VALUE, for example '
        '--set task_p.train.num_train_steps=100.'
      )
    return cls(path.strip(), text.strip())


def apply(tree: Any, settings: Sequence[str | Setting]) -> Any:
  """A copy of a config tree with some values changed.

  Args:
    tree: A Fiddle buildable, a frozen dataclass, a list, tuple or dict of
      such; most often the dict of a run's roots.
    settings: 'path=value' each, applied in order.

  Returns:
    A new tree. A dataclass instance that was reached into has become the
    `fdl.Config` of its class, so that it is checked with all changes made.

  Raises:
    OverrideError: A path or value is wrong; says what is near or expected.
  """
  tree = copy.deepcopy(tree)
  for setting in settings:
    if isinstance(setting, str):
      setting = Setting.parse(setting)
    steps = _paths.parse(setting.path)
    tree = _changed(tree, Any, steps, 0, setting)
  return tree


def convert(setting: Setting, annotation: Any, current: Any) -> Any:
  """The typed value of a setting.

  Args:
    setting: What was typed.
    annotation: The declared type; `Any` falls back to the type of `current`.
    current: The value now or by default; `fields.Field.REQUIRED` if none.

  Raises:
    OverrideError: The text does not spell a value of that type.
  """
  if annotation is Any and current is not fields.Field.REQUIRED:
    annotation = values.annotation_of(current)
  try:
    made = values.convert(setting.text, annotation)
  except values.Mismatch as mismatch:
    raise errors.OverrideError(
      f'--set {setting.path}={setting.text}: expected {mismatch.expected}.'
    ) from None
  except references.ReferenceError as error:
    raise errors.OverrideError(
      f'--set {setting.path}={setting.text}: {error}'
    ) from None
  if isinstance(current, str) and _dtypes.is_dtype(made):
    return _dtypes.name_of(made)  # as the config itself wrote it
  return made


def _changed(
  node: Any,
  annotation: Any,
  steps: list[_paths.Step],
  depth: int,
  setting: Setting,
) -> Any:
  """`node`, or what takes its place, with the setting made below it."""
  if depth == len(steps):
    return _new_value(node, annotation, setting)
  node = _open(node)
  where = _Where(setting, _paths.text(steps[:depth]), steps[depth])
  if _is_buildable(node):
    return _change_buildable(node, steps, depth, setting, where)
  if isinstance(node, Mapping):
    key = _dict_key(node, where)
    return {
      **node,
      key: _changed(
        node[key], _item_type(annotation, 1), steps, depth + 1, setting
      ),
    }
  if isinstance(node, list | tuple):
    return _change_sequence(node, annotation, steps, depth, setting, where)
  raise where.error(
    f'{where.parent} is {_say(node)}, which has nothing inside to set.'
  )


@dataclasses.dataclass(frozen=True)
class _Where:
  """The place that a setting has come to, for its errors."""

  setting: Setting
  parent: str
  step: _paths.Step

  def error(self, message: str) -> errors.OverrideError:
    return errors.OverrideError(f'--set {self.setting.path}: {message}')

  def unknown(self, known: Sequence[Any]) -> errors.OverrideError:
    names = [str(name) for name in known]
    near = suggest.hint(str(self.step.key), names)
    parent = self.parent or 'the config'
    return self.error(f'{parent} has no {self.step.key!r}. {near}')


def _new_value(node: Any, annotation: Any, setting: Setting) -> Any:
  if not _is_buildable(node) and not fields.is_config(node):
    return convert(setting, annotation, node)
  if setting.text.lower() == 'none':
    return convert(setting, annotation, None)
  if setting.text.startswith('@'):
    # Another class in the same place: --set task_p.model=@my.models.Model.
    target = convert(setting, Callable, None)
    return _buildable_class(node)(target)
  names = ', '.join(_field_names(_open(node))[:8])
  raise errors.OverrideError(
    f'--set {setting.path}={setting.text}: {setting.path} is a config; set one '
    f'of its fields ({names}) or another class, as @module.Class.'
  )


def _change_buildable(
  node: Any,
  steps: list[_paths.Step],
  depth: int,
  setting: Setting,
  where: _Where,
) -> Any:
  step = steps[depth]
  if step.is_item:
    return _change_positional(node, steps, depth, setting, where)
  known = fields.of(_callable_of(node))
  current = node.__arguments__.get(step.key, fields.Field.REQUIRED)
  field = known.get(str(step.key))
  if field is None and current is fields.Field.REQUIRED:
    raise where.unknown(_field_names(node))
  annotation = Any
  if field is not None:
    annotation = field.annotation
    if current is fields.Field.REQUIRED:
      current = field.value_if_unset()
  if current is fields.Field.REQUIRED and depth + 1 < len(steps):
    raise where.error(f'{_paths.text(steps[: depth + 1])} is not set yet.')
  setattr(
    node,
    str(step.key),
    _changed(current, annotation, steps, depth + 1, setting),
  )
  return node


def _change_positional(
  node: Any,
  steps: list[_paths.Step],
  depth: int,
  setting: Setting,
  where: _Where,
) -> Any:
  """A change in what `*args` takes, as in fdl.Config(optax.chain, a, b)."""
  indices = [key for key in node.__arguments__ if isinstance(key, int)]
  index = steps[depth].key
  if index not in indices:
    raise where.unknown([f'[{i}]' for i in indices] or _field_names(node))
  node[index] = _changed(node[index], Any, steps, depth + 1, setting)
  return node


def _change_sequence(
  node: Any,
  annotation: Any,
  steps: list[_paths.Step],
  depth: int,
  setting: Setting,
  where: _Where,
) -> Any:
  key = steps[depth].key
  names = getattr(node, '_fields', ())
  if key in names:
    key = names.index(key)
  if isinstance(key, str):
    raise where.error(
      f'{where.parent} is a list; write {where.parent}[0] for its first item.'
    )
  if not -len(node) <= key < len(node):
    raise where.error(
      f'{where.parent} has {len(node)} items'
      + (f', [0] to [{len(node) - 1}].' if node else '.')
    )
  items = list(node)
  kind = _item_type(annotation, key)
  items[key] = _changed(items[key], kind, steps, depth + 1, setting)
  if names:
    return type(node)(*items)
  return tuple(items) if isinstance(node, tuple) else items


def _dict_key(node: Mapping[Any, Any], where: _Where) -> Any:
  for key in node:
    if key == where.step.key or str(key) == str(where.step.key):
      return key
  raise where.unknown(list(node))


def _item_type(annotation: Any, index: int) -> Any:
  """The declared type of one item of a list, tuple or dict."""
  kinds = getattr(annotation, '__args__', ())
  origin = getattr(annotation, '__origin__', None)
  if not kinds or not isinstance(origin, type):
    return Any
  if issubclass(origin, Mapping):
    return kinds[1]
  if Ellipsis in kinds or len(kinds) == 1:
    return kinds[0]
  return kinds[index] if origin is tuple and index < len(kinds) else Any


def _open(node: Any) -> Any:
  """A dataclass instance as the `fdl.Config` that builds an equal one."""
  if _is_buildable(node) or not fields.is_config(node):
    return node
  import fiddle as fdl

  return fdl.Config(type(node), **fields.arguments_of(node))


def _is_buildable(node: Any) -> bool:
  # Asked without importing Fiddle: a tree without one does not load it.
  return hasattr(type(node), '__build__')


def _callable_of(node: Any) -> Any:
  return node.__fn_or_cls__


def _buildable_class(node: Any) -> type:
  if _is_buildable(node):
    return type(node)
  import fiddle as fdl

  return fdl.Config


def _field_names(node: Any) -> list[str]:
  arguments = [str(key) for key in node.__arguments__]
  return list(dict.fromkeys([*fields.of(_callable_of(node)), *arguments]))


def _say(node: Any) -> str:
  if node is None or isinstance(node, bool | int | float | str):
    return repr(node)
  return f'of type {type(node).__name__}'
