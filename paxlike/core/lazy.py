"""Doors that open on first use, so that naming a room does not load it."""

import importlib
import types
from collections.abc import Callable, Mapping
from typing import Any


def attach(
  package: str, where: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
  """Makes a package's attributes load their modules when first asked for.

  Used in a room's `__init__.py`:

      __getattr__, __dir__, __all__ = lazy.attach(
        __name__, {'Stream': '_stream'}
      )

  Args:
    package: The package's `__name__`.
    where: Public name to the submodule that defines it; a name that maps to
      itself is the submodule.

  Returns:
    `__getattr__`, `__dir__` and `__all__` for the package.
  """
  names = sorted(where)

  def getattribute(name: str) -> Any:
    if name not in where:
      raise AttributeError(f'module {package!r} has no attribute {name!r}')
    module = importlib.import_module(f'{package}.{where[name]}')
    return module if where[name] == name else getattr(module, name)

  return getattribute, lambda: names, names


def import_if_there(name: str) -> types.ModuleType | None:
  """Imports a module; None if there is none of that name.

  Raises:
    ImportError: It is there, and an import inside it fails.
  """
  # Importlib takes what begins with a dot for a name within some package.
  if not all(part.isidentifier() for part in name.split('.')):
    return None
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    missing = error.name or ''
    if name == missing or name.startswith(f'{missing}.'):
      return None
    raise
