"""The upper-case class attributes of an experiment, read and overridden."""

import re
from collections.abc import Sequence
from typing import Any

from paxlike import config
from paxlike.core import errors, suggest

_NAME = re.compile(r'[A-Z][A-Z0-9_]*')


def is_knob_name(path: str) -> bool:
  """Whether a `--set` path names a knob rather than a place in the tree."""
  return _NAME.fullmatch(path) is not None


def values_of(cls: type) -> dict[str, Any]:
  """The knobs of an experiment class that have a value, by name."""
  return {
    name: getattr(cls, name) for name in _names_of(cls) if hasattr(cls, name)
  }


def with_settings(
  cls: type, settings: Sequence[config.overrides.Setting]
) -> type:
  """A subclass with some knobs changed; `cls` itself if none are.

  Args:
    cls: The experiment class.
    settings: Their paths are names of knobs.

  Raises:
    OverrideError: There is no such knob, or the value has another type.
    ConfigError: A knob that is only annotated still has no value.
  """
  names = _names_of(cls)
  annotations = config.fields.annotations_of(cls)
  changed: dict[str, Any] = {}
  for setting in settings:
    if setting.path not in names:
      raise errors.OverrideError(
        f'--set {setting.path}={setting.text}: {cls.__name__} has no knob '
        f'{setting.path}. {suggest.hint(setting.path, names)}'
      )
    changed[setting.path] = config.overrides.convert(
      setting,
      annotations.get(setting.path, Any),
      getattr(cls, setting.path, config.fields.Field.REQUIRED),
    )
  for name in names:
    if name not in changed and not hasattr(cls, name):
      raise errors.ConfigError(
        f'{cls.__name__}.{name} has no value. Give it one in a subclass, or '
        f'with --set {name}=VALUE.'
      )
  if not changed:
    return cls
  # A subclass, so that class methods see the new values too; and the name
  # stays, for whoever prints it.
  body = {
    '__module__': cls.__module__,
    '__qualname__': cls.__qualname__,
    '__doc__': cls.__doc__,
  }
  return type(cls)(cls.__name__, (cls,), {**body, **changed})


def _names_of(cls: type) -> list[str]:
  """Names of knobs, those of base classes first."""
  found: dict[str, None] = {}
  for base in reversed(cls.__mro__):
    annotated = vars(base).get('__annotations__', {})
    for name in [*annotated, *vars(base)]:
      if is_knob_name(name) and not _is_method(vars(base).get(name)):
        found[name] = None
  return list(found)


def _is_method(value: Any) -> bool:
  return isinstance(value, property | classmethod | staticmethod) or (
    type(value).__name__ == 'function' and value.__qualname__.count('.') > 0
  )
