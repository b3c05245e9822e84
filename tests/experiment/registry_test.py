import importlib
import sys
import textwrap
import uuid

import pytest

from paxlike import experiment
from paxlike.core import errors

HEADER = """
from paxlike import experiment

class Base(experiment.BaseExperiment):
  def task_p(self): ...
  def input_p(self): ...

"""


@pytest.fixture
def package(tmp_path, monkeypatch):
  """A fresh importable package to write experiment modules into."""
  monkeypatch.syspath_prepend(tmp_path)
  name = f'pack_{uuid.uuid4().hex}'
  (tmp_path / name).mkdir()
  (tmp_path / name / '__init__.py').touch()
  importlib.invalidate_caches()
  yield Package(name, tmp_path / name)
  for module in [m for m in sys.modules if m.split('.')[0] == name]:
    del sys.modules[module]


class Package:
  def __init__(self, name, path):
    self.name, self.path = name, path

  def write(self, module, *classes, tail=''):
    body = ''.join(
      f'@registry.register\nclass {name}(Base):\n  "About {name}."\n'
      for name in classes
    )
    text = HEADER + f'from {self.name} import registry\n' + body
    (self.path / f'{module}.py').write_text(text + textwrap.dedent(tail))
    importlib.invalidate_caches()

  def registry(self, *modules):
    made = experiment.Registry(
      lambda: iter([f'{self.name}.{module}' for module in modules])
    )
    package = importlib.import_module(self.name)
    package.registry = made
    return made


def test_any_unique_suffix_names_an_experiment(package):
  package.write('lm', 'Tiny', 'Big')
  registry = package.registry('lm')
  found = registry.get('Tiny')
  assert found.__name__ == 'Tiny'
  assert registry.get('lm.Tiny') is found
  assert registry.get(f'{package.name}.lm.Tiny') is found


def test_part_of_a_word_is_no_suffix(package):
  package.write('lm', 'KjvTiny')
  with pytest.raises(errors.UnknownExperimentError, match='KjvTiny'):
    package.registry('lm').get('Tiny')


def test_an_unknown_name_suggests_near_ones(package):
  package.write('lm', 'KjvTiny', 'PythonTiny')
  with pytest.raises(
    errors.UnknownExperimentError, match='Did you mean KjvTiny'
  ):
    package.registry('lm').get('KjvTinny')


@pytest.mark.parametrize(
  'name', ['../x', '.x.Y', 'a..B', 'a/b.C', 'x y.Z', '.']
)
def test_what_can_be_no_name_is_unknown_like_any_other(package, name):
  package.write('lm', 'Tiny')
  with pytest.raises(errors.UnknownExperimentError):
    package.registry('lm').get(name)


def test_an_ambiguous_name_lists_all_that_it_could_mean(package):
  package.write('one', 'Tiny')
  package.write('two', 'Tiny')
  registry = package.registry('one', 'two')
  with pytest.raises(errors.UnknownExperimentError) as caught:
    registry.get('Tiny')
  for module in ('one', 'two'):
    assert f'{package.name}.{module}.Tiny' in str(caught.value)
  assert registry.get('two.Tiny').__module__ == f'{package.name}.two'


def test_another_class_of_the_same_name_is_an_error(package):
  package.write('lm', 'Tiny', 'Tiny')
  with pytest.raises(errors.DuplicateExperimentError) as caught:
    package.registry('lm').get('Tiny')
  assert str(caught.value).count(f'{package.name}.lm') >= 3


def test_two_files_of_one_module_name_are_both_named(package, tmp_path):
  package.write('lm', 'Tiny')
  registry = package.registry('lm')
  registry.get('Tiny')
  del sys.modules[f'{package.name}.lm']
  other = tmp_path / 'other'
  other.mkdir()
  (package.path / 'lm.py').rename(other / 'lm.py')
  sys.modules[package.name].__path__ = [str(other)]
  importlib.invalidate_caches()
  with pytest.raises(errors.DuplicateExperimentError) as caught:
    importlib.import_module(f'{package.name}.lm')
  assert str(package.path / 'lm.py') in str(caught.value)
  assert str(other / 'lm.py') in str(caught.value)


def test_importing_a_module_anew_is_no_duplicate(package):
  package.write('lm', 'Tiny')
  registry = package.registry('lm')
  first = registry.get('Tiny')
  importlib.reload(sys.modules[f'{package.name}.lm'])
  second = registry.get('Tiny')
  assert second is not first
  assert second is sys.modules[f'{package.name}.lm'].Tiny


def test_registering_the_same_class_twice_is_no_duplicate(package):
  package.write('lm', 'Tiny')
  registry = package.registry('lm')
  tiny = registry.get('Tiny')
  assert registry.register(tiny) is tiny


def test_a_missing_dependency_is_shown_as_itself(package):
  package.write('lm', 'Tiny', tail='import not_installed_here')
  registry = package.registry('lm')
  for name in ('NeverMade', f'{package.name}.lm.Other', 'lm.Other'):
    with pytest.raises(ModuleNotFoundError, match='not_installed_here') as e:
      registry.get(name)
    frames = [str(entry.path).rpartition('/')[2] for entry in e.traceback]
    assert 'lm.py' in frames


def test_any_error_of_an_experiment_module_is_shown_as_itself(package):
  package.write('lm', tail='1 / 0')
  with pytest.raises(ZeroDivisionError):
    package.registry('lm').get('Tiny')


def test_a_broken_module_does_not_hide_the_others(package):
  package.write('broken', tail='import not_installed_here')
  package.write('lm', 'Tiny')
  registry = package.registry('broken', 'lm')
  assert registry.get('Tiny').__name__ == 'Tiny'
  listing = registry.list_all()
  assert list(listing.experiments) == [f'{package.name}.lm.Tiny']
  assert list(listing.broken) == [f'{package.name}.broken']


def test_a_full_path_is_imported_without_discovery(package):
  package.write('mine', 'Tiny')
  package.write('broken', tail='import not_installed_here')
  registry = package.registry('broken')
  assert registry.get(f'{package.name}.mine.Tiny').__name__ == 'Tiny'


def test_a_full_path_in_the_current_directory_is_imported(
  package, tmp_path, monkeypatch
):
  package.registry()
  module = f'cwd_{uuid.uuid4().hex}'
  (tmp_path / 'here').mkdir()
  (tmp_path / 'here' / f'{module}.py').write_text(
    HEADER + f'from {package.name} import registry\n'
    '@registry.register\nclass Tiny(Base): pass\n'
  )
  monkeypatch.chdir(tmp_path / 'here')
  monkeypatch.setattr(sys, 'path', [p for p in sys.path if p])
  registry = sys.modules[package.name].registry
  assert registry.get(f'{module}.Tiny').__module__ == module
  del sys.modules[module]


def test_a_class_that_is_not_registered_says_what_to_do(package):
  package.write('lm', tail='class Tiny(Base): pass')
  with pytest.raises(
    errors.UnknownExperimentError, match=r'@experiment.register'
  ):
    package.registry().get(f'{package.name}.lm.Tiny')


def test_a_module_shadowed_by_another_says_where_it_looked(package):
  package.write('lm', 'Tiny')
  with pytest.raises(errors.UnknownExperimentError) as caught:
    package.registry().get(f'{package.name}.gone.Tiny')
  assert str(package.path) in str(caught.value)


def test_what_is_no_experiment_cannot_be_registered(package):
  package.write('lm', tail='@registry.register\nclass Tiny: pass')
  registry = package.registry('lm')
  error = registry.list_all().broken[f'{package.name}.lm']
  assert 'BaseExperiment' in str(error)


def test_the_short_name_is_the_shortest_that_is_unique(package):
  package.write('one', 'Tiny', 'Other')
  package.write('two', 'Tiny')
  listing = package.registry('one', 'two').list_all()
  short = {name: listing.short_name(name) for name in listing.experiments}
  assert short == {
    f'{package.name}.one.Other': 'Other',
    f'{package.name}.one.Tiny': 'one.Tiny',
    f'{package.name}.two.Tiny': 'two.Tiny',
  }


def test_a_package_without_an_init_file_is_named_by_its_directory(
  package, tmp_path
):
  package.write('lm', 'Tiny')
  registry = package.registry()
  (package.path / 'bare').mkdir()
  (package.path / 'lm.py').rename(package.path / 'bare/lm.py')
  name = f'{package.name}.bare'
  assert registry.get(f'{name}.lm.Tiny').__name__ == 'Tiny'
  for wrong, hint in [
    ('lm.Tinny', 'Did you mean Tiny?'),
    ('ml.Tiny', 'Known: lm.'),
    ('Tiny', 'Did you mean lm.Tiny?'),
  ]:
    with pytest.raises(errors.UnknownExperimentError) as caught:
      registry.get(f'{name}.{wrong}')
    assert str(package.path / 'bare') in str(caught.value)
    assert hint in str(caught.value)
    assert 'None' not in str(caught.value)


def test_a_misspelt_module_or_class_suggests_the_near_one_beside_it(package):
  package.write('lm', 'Tiny')
  package.write('vision', 'Small')
  registry = package.registry()
  with pytest.raises(
    errors.UnknownExperimentError, match=r'no module visoin.*mean vision'
  ):
    registry.get(f'{package.name}.visoin.Small')
  with pytest.raises(
    errors.UnknownExperimentError, match=r'no experiment Smal in .*mean Small'
  ):
    registry.get(f'{package.name}.vision.Smal')


def test_a_misspelt_package_suggests_one_of_the_current_directory(
  package, tmp_path, monkeypatch
):
  registry = package.registry()
  (tmp_path / 'my_lab').mkdir()
  (tmp_path / 'my_lab/lm.py').touch()
  monkeypatch.chdir(tmp_path)
  with pytest.raises(errors.UnknownExperimentError) as caught:
    registry.get('mylab.lm.Tiny')
  assert f'no module mylab in {tmp_path}' in str(caught.value)
  assert 'Did you mean my_lab.lm.Tiny?' in str(caught.value)


def test_a_module_is_told_by_the_experiments_in_it(package):
  package.write('lm', 'Tiny', 'Small')
  registry = package.registry()
  for name in (f'{package.name}.lm', 'lm'):
    with pytest.raises(errors.UnknownExperimentError) as caught:
      registry.get(name)
    said = str(caught.value)
    assert f'--exp={name} is a module, not an experiment' in said
    for known in ('Tiny', 'Small'):
      assert f'{package.name}.lm.{known}' in said
    assert said.count('For example: --exp=') == 1


def test_a_module_without_experiments_says_how_one_is_made(package):
  package.write('bare')
  registry = package.registry()
  with pytest.raises(
    errors.UnknownExperimentError, match=r'bare is a module and registers no'
  ):
    registry.get(f'{package.name}.bare')
