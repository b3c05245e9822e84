"""The tools on `gs://` and `s3://`, against emulators on this machine."""

import pytest

from paxlike.checkpoint import tools
from paxlike.core import errors, fs
from tests.checkpoint import states
from tests.checkpoint.object_store_test import (  # noqa: F401 (fixtures, marks)
  bucket,
  gcs_endpoint,
  pytestmark,
  s3_endpoint,
)


@pytest.fixture
def run(bucket):  # noqa: F811 (the fixture above)
  """A remote job_log_dir with the steps 100 and 200."""
  job_log_dir = fs.join(bucket, 'run')
  states.save_steps(fs.join(job_log_dir, 'checkpoints'), state=states.varied)
  return job_log_dir


def test_looking_checking_pinning_and_removing_work_remotely(run):
  tools.pin(run, [100])
  first, second = tools.list_steps(run).steps
  assert (first.state, first.keep) == ('complete', ('pinned',))
  assert (second.step, second.keep) == (200, ('newest',))
  assert second.size_bytes > 9000
  assert len(tools.show(run, stats=True).arrays) == 12
  assert tools.verify(run).damage == ()
  tools.unpin(run, [100])
  assert tools.remove(run, [100]) == [100]
  assert [s.step for s in tools.list_steps(run).steps] == [200]


def test_remote_damage_is_named(run):
  directory = fs.join(run, 'checkpoints', 'checkpoint_00000200')
  store = fs.for_path(directory)
  (name,) = [n for n in store.list_dir(directory) if n.endswith('.data')]
  path = fs.join(directory, name)
  data = bytearray(store.read_bytes(path))
  data[5000] ^= 1
  store.write_new(path, bytes(data))
  assert {d.file for d in tools.verify(run).damage} == {path}
  assert tools.verify(run, step=100).damage == ()


def test_steps_travel_to_the_store_and_back(run, tmp_path):
  tools.convert(run, tmp_path / 'w.safetensors', step=100)
  remote = fs.join(run, 'copy.safetensors')
  tools.convert(run, remote, step=100)
  assert (
    fs.for_path(remote).read_bytes(remote)
    == (tmp_path / 'w.safetensors').read_bytes()
  )
  tools.convert(remote, fs.join(run, 'again'))
  tools.convert(run, tmp_path / 'local', to='FLAX', step=100)
  assert tools.diff(tmp_path / 'local', fs.join(run, 'again')).is_equal
  with pytest.raises(errors.UsageError, match='on a local disk only'):
    tools.convert(run, fs.join(run, 'x.zarr'))


def test_a_wrong_remote_path_is_one_line(run):
  for path in (f'{run}x', fs.join(run, 'checkpoints', 'checkpoint_00000003')):
    with pytest.raises(errors.UsageError) as caught:
      tools.list_steps(path)
    assert path in str(caught.value)
    assert '\n' not in str(caught.value)
