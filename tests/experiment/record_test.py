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
