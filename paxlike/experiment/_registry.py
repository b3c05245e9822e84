"""Experiments by name: registering, finding, listing.

A full name is `module.path.Class`; any dotted suffix of it that no other
experiment shares will do. Modules come from the entry points of the group
`paxlike.experiments`, or from the full name itself.
"""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import os
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from paxlike.core import errors, lazy, suggest
from paxlike.experiment import _base

ENTRY_POINT_GROUP = 'paxlike.experiments'

_C = TypeVar('_C', bound=type)


@dataclasses.dataclass(frozen=True)
class Listing:
  """What discovery came to.

  Attributes:
    experiments: Classes by full name, sorted.
    broken: Modules that could not be imported, with what they raised.
  """

  experiments: dict[str, type[_base.BaseExperiment]]
  broken: dict[str, Exception]

  def short_name(self, name: str) -> str:
    """The shortest suffix of a full name that means only it."""
    parts = name.split('.')
    for count in range(1, len(parts)):
      suffix = '.'.join(parts[-count:])
      if len(_matches(suffix, self.experiments)) == 1:
        return suffix
    return name


@dataclasses.dataclass(frozen=True)
class _Entry:
  """A registered class, and which execution of its module made it."""

  cls: type[_base.BaseExperiment]
  spec: Any


class Registry:
  """Experiment classes by full name."""

  def __init__(self, discover: Callable[[], Iterator[str]]) -> None:
    """Makes an empty one.

    Args:
      discover: Names of the modules to look through.
    """
    self._entries: dict[str, _Entry] = {}
    self._discover = discover

  def register(self, cls: _C) -> _C:
    """Class decorator that makes an experiment known by name.

    Raises:
      DuplicateExperimentError: Another class has that name; names both
        modules. A module that is imported anew replaces its own classes.
      TypeError: This is no subclass of `BaseExperiment`.
    """
    if not issubclass(cls, _base.BaseExperiment):
      raise TypeError(
        f'{cls.__qualname__} cannot be registered: it is no subclass of '
        'experiment.BaseExperiment.'
      )
    name = f'{cls.__module__}.{cls.__qualname__}'
    entry = _Entry(cls, _spec_of(cls.__module__))
    old = self._entries.get(name)
    if old is not None and old.cls is not cls and _clashes(old, entry):
      raise errors.DuplicateExperimentError(
        f'Two experiments are called {name}: one of module '
        f'{_where(old)}, one of module {_where(entry)}. Rename one.'
      )
    self._entries[name] = entry
    return cls

  def get(self, name: str) -> type[_base.BaseExperiment]:
    """The experiment of a name.

    Args:
      name: A full name or a suffix of one, such as 'lm.KjvTiny'. The module
        of a full name is imported if discovery does not find it.

    Raises:
      UnknownExperimentError: None has that name, or several do.
      DuplicateExperimentError: Two classes registered under one full name.
      Exception: Whatever a module that may hold it raised on import.
    """
    listing = self.list_all()
    known = listing.experiments
    if name in known:
      return known[name]
    matches = _matches(name, known)
    if len(matches) > 1:
      raise errors.UnknownExperimentError(
        f'--exp={name} means {len(matches)} experiments: '
        f'{", ".join(matches)}. Give more of the name.'
      )
    if matches:
      return known[matches[0]]
    found = self._import(name)
    if found is None and listing.broken:
      # It may well be in a module that cannot be read: the reason comes first.
      module, error = _likeliest(name, listing.broken)
      error.add_note(f'paxlike: while looking for --exp={name} in {module}')
      raise error
    if found is None:
      raise self._unknown(name)
    return found

  def list_all(self) -> Listing:
    """All registered experiments, after importing the modules of discovery.

    Raises:
      DuplicateExperimentError: Two classes registered under one full name.
    """
    broken: dict[str, Exception] = {}
    for module in self._discover():
      try:
        importlib.import_module(module)
      except errors.DuplicateExperimentError:
        raise
      except Exception as error:  # noqa: BLE001 - the user's code; kept whole
        broken[module] = error
    classes = {name: entry.cls for name, entry in self._entries.items()}
    return Listing(dict(sorted(classes.items())), broken)

  def _import(self, name: str) -> type[_base.BaseExperiment] | None:
    """The experiment of a full name whose module is not discovered."""
    parts = name.split('.')
    _let_current_directory_be_imported()
    for count in range(len(parts) - 1, 0, -1):
      module = lazy.import_if_there('.'.join(parts[:count]))
      if module is not None:
        return self._take(module, '.'.join(parts[count:]), name)
    return None

  def _take(
    self, module: types.ModuleType, attribute: str, name: str
  ) -> type[_base.BaseExperiment] | None:
    found: Any = module
    for part in attribute.split('.'):
      found = getattr(found, part, None)
    if not (
      isinstance(found, type) and issubclass(found, _base.BaseExperiment)
    ):
      return None
    entry = self._entries.get(f'{found.__module__}.{found.__qualname__}')
    if entry is None:
      raise errors.UnknownExperimentError(
        f'--exp={name} is a class but no registered experiment. Put '
        '@experiment.register above it.'
      )
    return entry.cls

  def _unknown(self, name: str) -> errors.UnknownExperimentError:
    """What to say of a name that nothing has; where it went wrong, if known."""
    modules = _matches(
      name, {e.cls.__module__: None for e in self._entries.values()}
    )
    if not modules and '.' in name and lazy.import_if_there(name):
      modules = [name]
    if modules:
      return errors.UnknownExperimentError(self._those_in(name, modules[0]))
    module, rest = _deepest_module(name)
    if module is not None:
      return errors.UnknownExperimentError(self._missing_in(module, rest, name))
    listing = Listing({n: e.cls for n, e in self._entries.items()}, {})
    shown = [listing.short_name(known) for known in listing.experiments]
    top, dot, below = name.partition('.')
    where = ''
    if dot:
      here = os.getcwd()
      where = f', and no module {top} in {here} or installed'
      near = suggest.nearest(top, _modules_in([here]), limit=1)
      shown = [f'{found}.{below}' for found in near] + shown
    return errors.UnknownExperimentError(
      f'There is no experiment {name!r}{where}. {suggest.hint(name, shown)} '
      'See them all: paxlike list'
    )

  def _those_in(self, name: str, module: str) -> str:
    """That a name is a module's, and which experiments it has."""
    inside = [
      known for known in self._entries if known.startswith(f'{module}.')
    ]
    if not inside:
      return (
        f'--exp={name} is a module and registers no experiment: put '
        '@experiment.register above a class in it, and give '
        f'--exp={module}.CLASS.'
      )
    return (
      f'--exp={name} is a module, not an experiment. It has '
      f'{", ".join(inside)}. For example: --exp={inside[0]}'
    )

  def _missing_in(self, module: types.ModuleType, rest: str, name: str) -> str:
    """That a module has no such module below it, or no such class in it."""
    part, dot, _ = rest.partition('.')
    paths = list(getattr(module, '__path__', ()))
    place = getattr(module, '__file__', None) or next(iter(paths), None)
    if dot and paths:
      return (
        f'--exp={name}: there is no module {part} in {module.__name__} '
        f'({place}). {suggest.hint(part, _modules_in(paths))}'
      )
    inside = f'{module.__name__}.'
    classes = [
      known.removeprefix(inside)
      for known in self._entries
      if known.startswith(inside)
    ]
    return (
      f'--exp={name}: there is no experiment {rest} in {module.__name__} '
      f'({place}). {suggest.hint(rest, classes + _modules_in(paths))}'
    )


def _matches(suffix: str, known: Mapping[str, Any]) -> list[str]:
  return [name for name in known if f'.{name}'.endswith(f'.{suffix}')]


def _deepest_module(name: str) -> tuple[types.ModuleType | None, str]:
  """The imported module that the most of a name's parts lead to, and the rest."""
  parts = name.split('.')
  for count in range(len(parts) - 1, 0, -1):
    module = sys.modules.get('.'.join(parts[:count]))
    if module is not None:
      return module, '.'.join(parts[count:])
  return None, name


def _modules_in(paths: Iterable[str]) -> list[str]:
  """Names that can be imported from these directories, private ones left out.

  A directory counts without an `__init__.py` too: Python imports it.
  """
  found = []
  for path in paths:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
      for entry in entries:
        stem, suffix = os.path.splitext(entry.name)
        if suffix == '.py' or (entry.is_dir() and not suffix):
          found.append(stem)
  return sorted(
    {name for name in found if name.isidentifier() and name[0] != '_'}
  )


def _likeliest(
  name: str, broken: dict[str, Exception]
) -> tuple[str, Exception]:
  """The broken module that `name` points into, else the first."""
  module = name.rpartition('.')[0]
  inside = _matches(module, broken) if module else []
  found = inside[0] if inside else next(iter(broken))
  return found, broken[found]


def _entry_point_modules() -> Iterator[str]:
  """Modules of the entry points, and those below the packages among them."""
  points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
  for top in dict.fromkeys(point.value.partition(':')[0] for point in points):
    yield top
    # Whatever importing it did, a package that failed has no path to look in.
    package = sys.modules.get(top)
    for path in getattr(package, '__path__', ()):
      for module in pkgutil.iter_modules([path], f'{top}.'):
        if not module.name.rpartition('.')[2].startswith('_'):
          yield module.name


def _spec_of(module_name: str) -> Any:
  # A new object each time that the module is executed.
  return getattr(sys.modules.get(module_name), '__spec__', None)


def _clashes(old: _Entry, new: _Entry) -> bool:
  """Whether the new class is another one, not the old one made again."""
  if new.cls.__module__ == '__main__':
    return False  # a notebook, where a cell is run again
  if old.spec is None or new.spec is None or old.spec is new.spec:
    return True
  return old.spec.origin != new.spec.origin


def _where(entry: _Entry) -> str:
  return f'{entry.cls.__module__} ({getattr(entry.spec, "origin", None)})'


def _let_current_directory_be_imported() -> None:
  """As `python -m` does; last, so that it hides nothing."""
  if '' not in sys.path and os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())


_DEFAULT = Registry(_entry_point_modules)
register = _DEFAULT.register
get = _DEFAULT.get
list_all = _DEFAULT.list_all
