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


def test_a_restart_overwrites_the_record(tmp_path):
  write(tmp_path, 'NUM_LAYERS=7')
  write(tmp_path, 'NUM_LAYERS=8')
  files = sorted(p.name for p in (tmp_path / 'config').iterdir())
  assert files == ['train.json', 'train.txt']
  record = json.loads((tmp_path / 'config' / 'train.json').read_text())
  assert record['knobs']['NUM_LAYERS'] == 8


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


def test_a_first_start_that_is_refused_leaves_no_record(tmp_path):
  refused = experiment.resolve(toys.Toy, [])
  with (
    pytest.raises(errors.ConfigError),
    experiment.recording(str(tmp_path), 'train', refused),
  ):
    raise errors.ConfigError('it does not fit')
  assert not list((tmp_path / 'config').iterdir())


def test_a_run_that_fails_keeps_its_record(tmp_path):
  resolved = experiment.resolve(toys.Toy, [])
  with (
    pytest.raises(errors.NonFiniteLossError),
    experiment.recording(str(tmp_path), 'train', resolved),
  ):
    raise errors.NonFiniteLossError('NaN')
  assert (tmp_path / 'config' / 'train.json').exists()
