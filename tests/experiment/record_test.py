import json
import subprocess

import pytest

from paxlike import config, experiment
from paxlike.core import errors
from tests.experiment import toys


def write(directory, *settings):
  resolved = experiment.resolve(toys.Toy, settings)
  command = ['paxlike', '--exp=Toy', '--set', 'a=b c']
  experiment.write_record(str(directory), 'train', resolved, command=command)
  return resolved


def test_the_text_has_what_is_needed_to_repeat_the_run(tmp_path):
  write(tmp_path, 'NUM_LAYERS=7')
  text = (tmp_path / 'config' / 'train.txt').read_text()
  for line in [
    '# experiment: tests.experiment.toys.Toy',
    '# mode: train',
    "# command: paxlike --exp=Toy --set 'a=b c'",
    'task_p.model.num_layers = 7',
    'train_input_p.batch_size = 4  # default',
  ]:
    assert line in text.splitlines()


def test_the_json_rebuilds_the_config(tmp_path):
  resolved = write(tmp_path, 'NUM_LAYERS=7', 'mesh_p.data=3')
  text = (tmp_path / 'config' / 'train.json').read_text()
  assert config.dump.from_json(text) == resolved.roots()
  record = json.loads(text)
  assert record['knobs']['NUM_LAYERS'] == 7
  assert {'python', 'jax', 'flax', 'fiddle'} <= set(record['versions'])


def record(directory, *settings, mode='train'):
  resolved = experiment.resolve(toys.Toy, settings)
  return experiment.recording(str(directory), mode, resolved)


def names(directory):
  return sorted(p.name for p in (directory / 'config').iterdir())


def test_a_restart_overwrites_the_record(tmp_path):
  with record(tmp_path, 'NUM_LAYERS=7') as news:
    assert news == ''
  with record(tmp_path, 'NUM_LAYERS=7') as news:
    assert news == ''
  assert names(tmp_path) == ['train.json', 'train.txt']


def test_a_restart_with_another_value_tells_it_and_keeps_what_was(tmp_path):
  for layers in (7, 8, 9):
    with record(tmp_path, f'NUM_LAYERS={layers}') as news:
      pass
  assert 'task_p.model.num_layers: 8 -> 9' in news
  assert f'{tmp_path}/config/train.2.txt' in news
  assert '\n' not in news
  for name, layers in (('train.1', 7), ('train.2', 8), ('train', 9)):
    content = (tmp_path / 'config' / f'{name}.json').read_text()
    assert json.loads(content)['knobs']['NUM_LAYERS'] == layers
    text = (tmp_path / 'config' / f'{name}.txt').read_text()
    assert f'task_p.model.num_layers = {layers}' in text


def test_five_changes_are_told_and_the_number_of_the_others(tmp_path):
  with record(tmp_path):
    pass
  path = tmp_path / 'config' / 'train.txt'
  values = [f'task_p.value_{i} = {i}\n' for i in range(7)]
  path.write_text(path.read_text() + ''.join(values))
  with record(tmp_path) as news:
    pass
  assert 'task_p.value_4: 4 -> absent; and 2 more' in news
  assert 'value_5' not in news


def test_what_other_jobs_were_started_with_is_overwritten(tmp_path):
  for layers in (7, 8):
    with record(tmp_path, f'NUM_LAYERS={layers}', mode='eval') as news:
      assert news == ''
  assert names(tmp_path) == ['eval.json', 'eval.txt']


def test_another_value_that_is_refused_leaves_what_was(tmp_path):
  with record(tmp_path, 'NUM_LAYERS=7'):
    pass
  before = (tmp_path / 'config' / 'train.json').read_text()
  with (
    pytest.raises(errors.RestoreMismatchError),
    record(tmp_path, 'NUM_LAYERS=8'),
  ):
    raise errors.RestoreMismatchError('it does not fit')
  assert names(tmp_path) == ['train.json', 'train.txt']
  assert (tmp_path / 'config' / 'train.json').read_text() == before


def test_code_that_differs_in_no_revision_is_another_fact(
  tmp_path, monkeypatch
):
  monkeypatch.syspath_prepend(str(tmp_path))
  package = tmp_path / 'lab_of_facts'
  package.mkdir()
  (package / '__init__.py').touch()
  (package / 'toy.py').write_text(
    'from paxlike import experiment\nfrom tests.experiment import toys\n'
    '@experiment.register\nclass FactsToy(toys.Toy):\n  pass\n'
  )
  (package / 'layers.py').write_text('WIDTH = 1\n')
  resolved = experiment.resolve(experiment.get('lab_of_facts.toy.FactsToy'), [])
  before = experiment.facts(resolved)
  (package / 'layers.py').write_text('WIDTH = 2\n')
  after = experiment.facts(resolved)
  changed = set(before.pop('code').split('\n')) ^ set(
    after.pop('code').split('\n')
  )
  assert {line.split()[0] for line in changed} == {'lab_of_facts/layers.py'}
  assert before == after


def test_the_code_of_the_package_is_among_the_facts():
  code = experiment.facts(experiment.resolve(toys.Toy, []))['code']
  assert 'paxlike/experiment/_record.py ' in code


def test_the_revision_of_the_experiments_repository_is_noted():
  resolved = experiment.resolve(toys.Toy)
  head = subprocess.run(
    ['git', 'rev-parse', 'HEAD'], capture_output=True, text=True
  ).stdout.strip()
  found = experiment.describe(resolved)['git']
  assert (found or '').rstrip('+') == head


def test_a_directory_that_cannot_be_is_wrong_use(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(errors.UsageError, match='cannot be made'):
    write(tmp_path / 'file' / 'job')
  for path in (tmp_path / 'file', tmp_path / 'file' / 'job'):
    with pytest.raises(errors.UsageError, match='cannot be made'), record(path):
      pass
  assert (tmp_path / 'file').read_bytes() == b''


def test_wrong_use_puts_back_the_record_of_the_run(tmp_path):
  write(tmp_path, 'NUM_LAYERS=7')
  before = (tmp_path / 'config' / 'train.json').read_text()
  refused = experiment.resolve(toys.Toy, ['NUM_LAYERS=8'])
  with (
    pytest.raises(errors.ConfigError),
    experiment.recording(str(tmp_path), 'train', refused),
  ):
    raise errors.ConfigError('it does not fit')
  assert (tmp_path / 'config' / 'train.json').read_text() == before


def refuse(directory, made):
  """A run that makes a directory and then turns out to be wrong use."""

  def run():
    with record(directory):
      made.mkdir(parents=True)
      raise errors.ConfigError('it does not fit')

  with pytest.raises(errors.ConfigError):
    run()


@pytest.mark.parametrize('is_there', [True, False])
def test_a_first_start_that_is_refused_leaves_nothing(tmp_path, is_there):
  directory = tmp_path / 'job'
  if is_there:
    directory.mkdir()
  refuse(directory, directory / 'status')
  assert directory.exists() == is_there
  assert not is_there or not list(directory.iterdir())


def test_what_others_put_into_a_directory_stays(tmp_path):
  directory = tmp_path / 'job'
  refuse(directory, directory / 'notes' / 'mine')
  found = [path.name for path in directory.rglob('*')]
  assert sorted(found) == ['mine', 'notes']


def test_a_run_that_fails_keeps_its_record(tmp_path):
  resolved = experiment.resolve(toys.Toy, [])
  with (
    pytest.raises(errors.NonFiniteLossError),
    experiment.recording(str(tmp_path), 'train', resolved),
  ):
    raise errors.NonFiniteLossError('NaN')
  assert (tmp_path / 'config' / 'train.json').exists()
