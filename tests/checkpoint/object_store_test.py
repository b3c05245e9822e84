"""Steps in real servers of the S3 and GCS protocols on this machine."""

import os
import socket
import subprocess
import sys
import types

import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.checkpoint import tools
from paxlike.core import _object_store, disks, errors, fs
from tests.checkpoint import samples

# gcsfs else asks a server of Google's which kind of bucket each one is.
os.environ['GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT'] = 'false'
os.environ['NO_GCE_CHECK'] = 'true'

pytestmark = [
  pytest.mark.filterwarnings('ignore::DeprecationWarning'),
  # The servers and clients leave sockets to the garbage collector.
  pytest.mark.filterwarnings('ignore::ResourceWarning'),
  pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning'),
]


def free_port():
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


@pytest.fixture(scope='module')
def s3_endpoint():
  from moto import server as moto_server

  port = free_port()
  server = moto_server.ThreadedMotoServer('127.0.0.1', port)
  server.start()
  yield f'http://127.0.0.1:{port}'
  server.stop()


@pytest.fixture(scope='module')
def gcs_endpoint():
  from gcp_storage_emulator import server as gcs_server

  port = free_port()
  server = gcs_server.create_server('127.0.0.1', port, in_memory=True)
  server.start()
  yield f'http://127.0.0.1:{port}'
  server.stop()


@pytest.fixture(params=['s3', 'gs'])
def bucket(request, monkeypatch):
  import fsspec

  if request.param == 's3':
    endpoint = request.getfixturevalue('s3_endpoint')
    monkeypatch.setenv('AWS_ENDPOINT_URL', endpoint)
    monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'test')
    monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 'test')
    monkeypatch.setenv('AWS_DEFAULT_REGION', 'us-east-1')
    monkeypatch.delenv('AWS_PROFILE', raising=False)
    protocol = 's3'
  else:
    endpoint = request.getfixturevalue('gcs_endpoint')
    monkeypatch.setenv('STORAGE_EMULATOR_HOST', endpoint)
    monkeypatch.setenv('GOOGLE_CLOUD_PROJECT', 'test')
    protocol = 'gcs'
  # The clients remember the endpoint of whoever asked first.
  kind = fsspec.get_filesystem_class(protocol)
  kind.clear_instance_cache()
  _object_store.for_scheme.cache_clear()
  name = f'bucket-{abs(hash(request.node.name)) % 10**12}'
  fsspec.filesystem(protocol, use_listings_cache=False).mkdir(name)
  yield f'{request.param}://{name}/run/checkpoints'
  kind.clear_instance_cache()
  _object_store.for_scheme.cache_clear()


async def soon(seconds):
  """Stands for the half minute that the client waits between its tries."""
  del seconds


@pytest.fixture(params=['s3', 'gs'])
def unreachable(request, monkeypatch):
  """A store at an address where nobody listens."""
  import fsspec

  address = f'http://127.0.0.1:{free_port()}'
  monkeypatch.setenv('AWS_ENDPOINT_URL', address)
  monkeypatch.setenv('AWS_MAX_ATTEMPTS', '1')
  monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'test')
  monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 'test')
  monkeypatch.setenv('STORAGE_EMULATOR_HOST', address)
  monkeypatch.setenv('GOOGLE_CLOUD_PROJECT', 'test')
  protocol = {'s3': 's3', 'gs': 'gcs'}[request.param]
  kind = fsspec.get_filesystem_class(protocol)
  monkeypatch.setattr(kind, 'retries', 1)
  monkeypatch.setattr('gcsfs.retry.asyncio', types.SimpleNamespace(sleep=soon))
  kind.clear_instance_cache()
  _object_store.for_scheme.cache_clear()
  yield f'{request.param}://bucket/run/checkpoints'
  kind.clear_instance_cache()
  _object_store.for_scheme.cache_clear()


@pytest.mark.parametrize(
  'request_name', ['exists', 'is_dir', 'list_dir', 'read_bytes', 'size']
)
def test_a_store_without_an_answer_is_an_error_and_never_a_no(
  unreachable, request_name
):
  store = fs.for_path(unreachable)
  with pytest.raises(errors.StorageError) as caught:
    getattr(store, request_name)(unreachable)
  assert str(caught.value).startswith(f'{unreachable}: ')
  assert 'See that the store can be reached' in str(caught.value)


class Forbidding:
  """A store as a client shows one without the right credentials.

  The servers here ask for none.
  """

  def cat_file(self, path, **options):
    raise PermissionError('Access Denied')


def test_what_a_store_forbids_is_told_with_what_to_do():
  path = 's3://bucket/run/checkpoints/checkpoint_00000001/MANIFEST'
  with pytest.raises(PermissionError) as caught:
    _object_store.ObjectStore(Forbidding()).read_bytes(path)
  said = str(disks.unreadable(path, caught.value))
  assert said.startswith(f'{path} cannot be read: Access Denied.')
  assert 'Give credentials that allow it' in said


def test_states_come_back(bucket):
  state = samples.varied()
  with checkpoint.CheckpointManager(bucket) as manager:
    manager.save(1, state, items={'input_state': {'position': 1}})
    found = manager.restore(samples.abstract(state))
  samples.assert_equal(found.state, state)
  assert found.items == {'input_state': {'position': 1}}


@pytest.mark.parametrize('kind', ['FLAX', 'MULTI_HOST_FLAX'])
def test_flax_files_come_back(bucket, kind):
  config = checkpoint.CheckpointConfig(type=kind)
  with checkpoint.CheckpointManager(bucket, config=config) as manager:
    manager.save(1, samples.small(1))
    samples.assert_equal(
      manager.restore(samples.small()).state, samples.small(1)
    )


def test_old_steps_are_swept(bucket):
  keep = checkpoint.KeepPolicy(max_to_keep=2)
  with checkpoint.CheckpointManager(bucket, keep_policy=keep) as manager:
    for step in range(4):
      manager.save(step, samples.small(step))
    manager.wait()
    assert manager.steps() == [2, 3]
  with checkpoint.CheckpointManager(bucket, read_only=True) as manager:
    assert manager.steps() == [2, 3]
  assert fs.for_path(bucket).list_dir(bucket) == [
    'checkpoint_00000002',
    'checkpoint_00000003',
    'checkpoints.pb',
  ]


def test_an_unlisted_step_without_manifest_is_not_there_and_is_cleared(bucket):
  store = fs.for_path(bucket)
  with checkpoint.CheckpointManager(bucket) as manager:
    manager.save(1, samples.small(1))
  left = fs.join(bucket, 'checkpoint_00000002', 'p00000-12345678.data')
  store.write_new(left, b'of a save that was killed')
  with checkpoint.CheckpointManager(bucket, read_only=True) as manager:
    assert manager.latest_step() == 1
  with checkpoint.CheckpointManager(bucket) as manager:
    assert not store.exists(left)
    assert manager.save(2, samples.small(7))
    manager.wait()
    assert int(manager.restore(samples.small()).state['step']) == 7


def test_a_listed_step_without_manifest_is_damaged_and_is_kept(bucket):
  store = fs.for_path(bucket)
  with checkpoint.CheckpointManager(bucket) as manager:
    manager.save(1, samples.small(1))
    manager.save(2, samples.small(2))
  step = fs.join(bucket, 'checkpoint_00000002')
  store.remove(fs.join(step, 'MANIFEST'))
  before = store.list_dir(step)
  with (
    checkpoint.CheckpointManager(bucket, read_only=True) as manager,
    pytest.raises(errors.CheckpointDamagedError, match='00002/MANIFEST'),
  ):
    manager.restore()
  with pytest.raises(errors.CheckpointDamagedError, match='00002/MANIFEST'):
    checkpoint.CheckpointManager(bucket)
  damage = tools.verify(bucket).damage
  assert fs.join(step, 'MANIFEST') in [each.file for each in damage]
  assert store.list_dir(step) == before
  config = checkpoint.CheckpointConfig(fallback=True)
  with checkpoint.CheckpointManager(bucket, config=config) as manager:
    assert manager.restore(samples.small()).step == 1
    assert manager.save(2, samples.small(7))
  with checkpoint.CheckpointManager(bucket) as manager:
    assert int(manager.restore(samples.small()).state['step']) == 7
  assert set(before) < set(store.list_dir(step))


def test_overwriting_leaves_only_the_new_objects(bucket):
  with checkpoint.CheckpointManager(bucket) as manager:
    manager.save(1, samples.small(1), items={'a': 1, 'b': 2})
    manager.save(1, samples.small(2), overwrite=True)
    assert int(manager.restore(samples.small()).state['step']) == 2
  path = fs.join(bucket, 'checkpoint_00000001')
  assert len(fs.for_path(bucket).list_dir(path)) == 3


def test_a_second_writer_is_refused_until_the_first_is_closed(bucket):
  with checkpoint.CheckpointManager(bucket) as first:
    first.save(1, samples.small(1))
    with pytest.raises(errors.CheckpointBusyError, match='is being written'):
      checkpoint.CheckpointManager(bucket)
    assert first.save(2, samples.small(2))
  with checkpoint.CheckpointManager(bucket) as second:
    assert second.steps() == [1, 2]
    assert second.save(3, samples.small(3))


def test_damage_is_found(bucket):
  with checkpoint.CheckpointManager(bucket) as manager:
    manager.save(1, {'w': np.arange(100.0)})
  store = fs.for_path(bucket)
  step = fs.join(bucket, 'checkpoint_00000001')
  (name,) = [n for n in store.list_dir(step) if n.endswith('.data')]
  data = bytearray(store.read_bytes(fs.join(step, name)))
  data[4096 + 8] ^= 1
  store.write_new(fs.join(step, name), bytes(data))
  with (
    checkpoint.CheckpointManager(bucket, read_only=True) as manager,
    pytest.raises(errors.CheckpointDamagedError, match="array 'w'"),
  ):
    manager.restore()


def test_an_absent_directory_is_told(bucket):
  with (
    checkpoint.CheckpointManager(bucket + '/typo', read_only=True) as manager,
    pytest.raises(errors.CheckpointNotFoundError, match='no directory'),
  ):
    manager.restore()


def test_large_states_lie_in_several_objects(bucket, monkeypatch):
  monkeypatch.setattr(_object_store.ObjectStore, 'part_bytes', 1 << 20)
  values = np.random.default_rng(0).standard_normal((5 << 17,))
  with checkpoint.CheckpointManager(bucket) as manager:
    manager.save(1, {'w': values})
    found = manager.restore().state['w']
  np.testing.assert_array_equal(found, values)
  names = fs.for_path(bucket).list_dir(fs.join(bucket, 'checkpoint_00000001'))
  assert sum(name.endswith('.data') for name in names) == 5


def test_appending_rewrites_the_object(bucket):
  store = fs.for_path(bucket)
  path = fs.join(bucket, 'log')
  for text in (b'a\n', b'b\n'):
    with store.open_append(path) as f:
      f.write(text)
  assert store.read_bytes(path) == b'a\nb\n'
  assert store.size(path) == 4
  assert store.mtime_s(path) > 1e9


def test_what_nobody_closed_does_not_hold_up_the_end_of_the_program(bucket):
  program = (
    'import sys\n'
    'from paxlike.core import fs\n'
    'kept = fs.for_path(sys.argv[1]).open_append(sys.argv[1])\n'
    'kept.write(b"a")\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program, f'{bucket}/log'],
    timeout=60,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
