import pytest

from tests.multiprocess import jobs


@pytest.fixture(scope='module', name='trained')
def _trained(tmp_path_factory):
  """A directory with a checkpoint of step 5."""
  directory = tmp_path_factory.mktemp('trained')
  (ended,) = jobs.run('Plain', 'train', directory, 1, '--set=NUM_TRAIN_STEPS=5')
  assert ended.status == 0, ended.output
  return directory
