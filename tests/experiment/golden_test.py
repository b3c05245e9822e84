"""The resolved config of each experiment, value for value.

A change of a default shows here before it shows in anyone's run. If it is
meant: paxlike --exp=NAME --dump_config > tests/golden/NAME.txt
"""

import pytest

from paxlike import config, experiment
from tests import house

_GOLDEN = house.ROOT / 'tests' / 'golden'
_NAMES = sorted(
  name.rpartition('.')[2]
  for name in experiment.list_all().experiments
  if name.startswith('experiments.')
)


@pytest.mark.parametrize('name', _NAMES)
def test_the_resolved_config_is_the_one_on_record(name):
  resolved = experiment.resolve(experiment.get(name))
  text = f'# experiment: {resolved.name}\n'
  text += config.dump.to_text(resolved.roots())
  assert text == (_GOLDEN / f'{name}.txt').read_text()


@pytest.mark.parametrize('name', _NAMES)
def test_the_resolved_config_survives_json(name):
  roots = experiment.resolve(experiment.get(name)).roots()
  text = config.dump.to_json(roots)
  assert 'opaque' not in text
  assert '._' not in text
  assert config.dump.from_json(text) == roots


def test_every_record_has_its_experiment():
  assert sorted(path.stem for path in _GOLDEN.glob('*.txt')) == _NAMES
