"""Tells a wrong name in an experiment's own code from any other error.

Python and Fiddle say such a thing at the end of a long traceback through
their own code. Here it is one line: where the experiment says it, and what it
may have meant. Whatever is not surely such a mistake is left as it is.
"""

import contextlib
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator
from typing import Any

from paxlike import config
from paxlike.core import errors, suggest

# Frames of these are between the experiment and the mistake, not the mistake.
_BETWEEN = ('fiddle', 'paxlike', 'jaxtyping', 'beartype')
_FIELD = re.compile(
  r"(?:unexpected keyword argument|No parameter named) '(\w+)'"
)
_CALL = re.compile(r'^(\w+)(?:\.__init__)?\(\) ')
_MISSING = re.compile(r'\(\) missing \d+ required ')
_NAME = re.compile(r"^module '(paxlike[\w.]*)' has no attribute '(\w+)'")


@contextlib.contextmanager
def explained(cls: type) -> Iterator[None]:
  """Raises a wrong name in the block as what it is.

  Args:
    cls: The experiment; what is outside of its package, and of those of its
      base classes, is not looked at.

  Raises:
    ConfigError: Some class has no such field, lacks one, or is not there.
  """
  if lacking := getattr(cls, '__abstractmethods__', None):
    raise errors.ConfigError(
      f'{cls.__module__}.{cls.__qualname__} does not define '
      f'{", ".join(sorted(lacking))}, which every experiment must.'
    )
  try:
    yield
  except (AttributeError, TypeError) as error:
    told = _tell(error, {_package(base.__module__) for base in cls.__mro__})
    if told is None:
      raise
    raise errors.ConfigError(told) from error


@contextlib.contextmanager
def mistakes_told(name: str) -> Iterator[None]:
  """Raises what an experiment's module fails with as one line.

  Args:
    name: What `--exp` was given.

  Raises:
    ConfigError: The module cannot be imported; the error is the cause.
  """
  try:
    yield
  except SyntaxError as error:
    place = f'{error.filename}:{error.lineno}'
    raise _unimportable(name, place, error) from error
  except (ImportError, NameError, AttributeError, TypeError) as error:
    theirs = [
      (frame.f_code.co_filename, line)
      for frame, line in traceback.walk_tb(error.__traceback__)
      if not _is_between(frame) and not _is_of_python(frame)
    ]
    if not theirs:
      raise
    file, line = theirs[-1]
    raise _unimportable(name, f'{file}:{line}', error) from error


def _unimportable(
  name: str, place: str, error: Exception
) -> errors.ConfigError:
  said = error.msg if isinstance(error, SyntaxError) else str(error)
  hint = ''
  if isinstance(error, ModuleNotFoundError) and error.name:
    top = _package(error.name)
    hint = f' Is {top} installed here, or its name misspelt?'
  return errors.ConfigError(
    f'{place}: {type(error).__name__}: {said} (while looking for '
    f'--exp={name}).{hint}'
  )


def _is_of_python(frame: types.FrameType) -> bool:
  file = frame.f_code.co_filename
  return file.startswith(('<', sysconfig.get_path('stdlib')))


def _tell(error: Exception, packages: set[str]) -> str | None:
  """The mistake in one line; None if it is no such mistake."""
  places = list(traceback.walk_tb(error.__traceback__))
  theirs = [(frame, line) for frame, line in places if not _is_between(frame)]
  if not theirs:
    return None
  # The last of them is what called into us or Fiddle.
  frame, line = theirs[-1]
  if _package(_module_of(frame)) not in packages:
    return None
  said = _explanation(str(error), frame, [f for f, _ in places])
  if said is None:
    return None
  code = frame.f_code
  return f'{code.co_filename}:{line}, in {code.co_name}: {said}'


def _is_between(frame: types.FrameType) -> bool:
  return _package(_module_of(frame)) in _BETWEEN


def _module_of(frame: types.FrameType) -> str:
  return frame.f_globals.get('__name__', '')


def _package(module: str) -> str:
  return module.partition('.')[0]


def _explanation(
  text: str, frame: types.FrameType, frames: list[types.FrameType]
) -> str | None:
  missing_name = _NAME.match(text)
  if missing_name is not None:
    module, name = missing_name.groups()
    known = [n for n in dir(sys.modules[module]) if n[0] != '_']
    return f'{module} has no {name}. {suggest.hint(name, known)}'
  wrong_field = _FIELD.search(text)
  if wrong_field is None:
    return text if _MISSING.search(text) else None
  target = _target(text, frame, frames)
  if target is None:
    return text
  field = wrong_field[1]
  known = list(config.fields.of(target))
  return (
    f'{getattr(target, "__name__", target)} has no field {field!r}. '
    f'{suggest.hint(field, known)}'
  )


def _target(
  text: str, frame: types.FrameType, frames: list[types.FrameType]
) -> Any:
  """The class or function that was given the field; None if unknown."""
  for each in reversed(frames):  # as Fiddle calls it
    if 'fn_or_cls' in each.f_locals:
      return each.f_locals['fn_or_cls']
  called = _CALL.search(text)
  if called is None:
    return None
  scope = {**frame.f_globals, **frame.f_locals}
  if called[1] in scope:
    return scope[called[1]]
  rooms = [v for v in scope.values() if isinstance(v, types.ModuleType)]
  found = [getattr(room, called[1], None) for room in rooms]
  return next((target for target in found if callable(target)), None)
