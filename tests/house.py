"""The rooms of paxlike as they really import each other."""

import functools
import pathlib
import sys
import tomllib

import grimp

ROOT = pathlib.Path(__file__).parent.parent
_PYPROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())


def floors() -> list[list[str]]:
  """Rooms by floor, the highest floor first, as import-linter checks them."""
  contracts = _PYPROJECT['tool']['importlinter']['contracts']
  (layers,) = [c['layers'] for c in contracts if c['id'] == 'floors']
  return [layer.split(' | ') for layer in layers]


@functools.cache
def imports() -> dict[str, set[str]]:
  """What each room imports: other rooms, and '@name' for outside packages.

  Standard library left out; imports inside functions counted, those for type
  checkers not.
  """
  graph = grimp.build_graph(
    'paxlike',
    'experiments',
    include_external_packages=True,
    exclude_type_checking_imports=True,
  )
  found: dict[str, set[str]] = {}
  for module in graph.modules:
    if graph.is_module_squashed(module):
      continue
    room = room_of(module)
    found.setdefault(room, set()).update(
      room_of(imported)
      for imported in graph.find_modules_directly_imported_by(module)
    )
  return {
    room: {
      name
      for name in names - {room}
      if name.removeprefix('@') not in sys.stdlib_module_names
    }
    for room, names in found.items()
  }


def room_of(module: str) -> str:
  """The room of a module; `paxlike` for the package's own `__init__`."""
  top, _, rest = module.partition('.')
  if top == 'experiments':
    return 'experiments'
  if top != 'paxlike':
    return f'@{top}'
  return rest.partition('.')[0] or 'paxlike'


def forbidden_to_experiments() -> set[str]:
  """Rooms that an experiment may not import."""
  contracts = _PYPROJECT['tool']['importlinter']['contracts']
  (modules,) = [
    c['forbidden_modules'] for c in contracts if c['id'] == 'experiments'
  ]
  return {room_of(module) for module in modules}
