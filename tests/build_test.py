"""The BUILD files say what the rooms really import, and who may use them."""

import pathlib

import pytest
import starlark

from tests import house

# Distributions that are not called as the package that they bring.
_DISTRIBUTIONS = {
  '@absl': 'absl_py',
  '@google': 'protobuf',
  '@orbax': 'orbax_checkpoint',
  '@sklearn': 'scikit_learn',
}
_ROOMS = [room for floor in house.floors() for room in floor if room != 'main']


def read(path: pathlib.Path) -> list[dict]:
  """The rules of a BUILD file, each with its kind and arguments."""
  rules: list[dict] = []
  module = starlark.Module()

  def rule(kind):
    return lambda **fields: rules.append({'kind': kind, **fields})

  for kind in ('py_library', 'py_binary', 'package_group', 'package'):
    module.add_callable(kind, rule(kind))
  module.add_callable('glob', lambda patterns: ['glob', *patterns])
  text = '\n'.join(
    line
    for line in path.read_text().splitlines()
    if not line.startswith('load(')
  )
  dialect = starlark.Dialect.extended()
  starlark.eval(
    module,
    starlark.parse(str(path), text, dialect),
    starlark.Globals.standard(),
  )
  return rules


def labels(names) -> set[str]:
  """Bazel labels of rooms and outside packages."""
  found = set()
  for name in names:
    if name.startswith('@'):
      found.add(f'@pypi//{_DISTRIBUTIONS.get(name, name[1:])}')
    elif name in ('paxlike', 'experiments'):
      found.add(f'//{name}')
    else:
      found.add(f'//paxlike/{name}')
  return found


def visibility(room: str) -> set[str]:
  """Who may use a room: the floors above it, and experiments where allowed."""
  if room == 'protos':
    return {'//paxlike/checkpoint:__subpackages__'}
  floors = house.floors()
  (index,) = [i for i, floor in enumerate(floors) if room in floor]
  allowed = {f'//:above_floor_{len(floors) - 1 - index}'}
  if room not in house.forbidden_to_experiments():
    allowed.add('//experiments:__pkg__')
  return allowed


@pytest.mark.parametrize('room', _ROOMS)
def test_a_room_has_one_target_with_its_real_imports(room):
  (target,) = read(house.ROOT / 'paxlike' / room / 'BUILD')
  assert target['kind'] == 'py_library'
  assert target['name'] == room
  assert target['srcs'] == ['glob', '**/*.py']
  assert set(target.get('deps', [])) == labels(house.imports().get(room, ()))
  assert set(target['visibility']) == visibility(room)


def test_the_program_is_a_target_with_its_real_imports():
  package, program = read(house.ROOT / 'paxlike' / 'BUILD')
  assert (package['name'], package['srcs']) == ('paxlike', ['__init__.py'])
  assert (program['kind'], program['srcs']) == ('py_binary', ['main.py'])
  by_name = {'//paxlike/cli'}  # loaded by its name
  assert set(program['deps']) == labels(house.imports()['main']) | by_name


def test_experiments_are_a_target_with_their_real_imports():
  (target,) = read(house.ROOT / 'experiments' / 'BUILD')
  assert set(target['deps']) == labels(house.imports()['experiments'])


def test_the_package_groups_are_the_floors():
  groups = {
    rule['name']: rule
    for rule in read(house.ROOT / 'BUILD')
    if rule['kind'] == 'package_group'
  }
  floors = house.floors()
  assert len(groups) == len(floors) - 1  # nobody is told of floor 0 by floor
  for index, floor in enumerate(floors[:-1]):
    number = len(floors) - 1 - index
    packages = {'//tests/...'} if index == 0 else set()
    if index > 0:
      packages = {
        '//paxlike' if room == 'main' else f'//paxlike/{room}/...'
        for room in floors[index - 1]
      }
    group = groups[f'above_floor_{number}']
    assert set(group['packages']) == packages
    above = [f':above_floor_{number + 1}'] if index > 0 else []
    assert group.get('includes', []) == above
    assert floor
