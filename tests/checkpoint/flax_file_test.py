"""A flax file is checked whole, unless the disk is to be trusted."""

import flax.serialization
import jax
import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.checkpoint._stores import msgpack_stream
from paxlike.checkpoint.tools import _reading
from paxlike.core import errors, fs
from tests.checkpoint import states

FILES = {'FLAX': 'state.msgpack', 'MULTI_HOST_FLAX': '000/state.msgpack'}


def saved(directory, kind):
  with states.manager(directory, kind) as manager:
    manager.save(1, {'w': np.zeros(1 << 16, np.float32)})
  return directory / 'checkpoint_00000001' / FILES[kind]


def restore(directory, kind, *, verify):
  config = checkpoint.CheckpointConfig(type=kind, verify=verify)
  with checkpoint.CheckpointManager(
    directory, config=config, read_only=True
  ) as manager:
    return manager.restore().state['w']


@pytest.mark.parametrize('kind', FILES)
def test_a_changed_value_is_damage_unless_the_disk_is_trusted(tmp_path, kind):
  path = saved(tmp_path, kind)
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 0xFF
  path.write_bytes(data)
  with pytest.raises(errors.CheckpointDamagedError, match='checksum'):
    restore(tmp_path, kind, verify=True)
  assert restore(tmp_path, kind, verify=False).any()


@pytest.mark.parametrize('kind', FILES)
def test_a_file_that_is_no_msgpack_is_damage_even_if_trusted(tmp_path, kind):
  path = saved(tmp_path, kind)
  data = bytearray(path.read_bytes())
  data[48:60] = b'\xc1' * 12
  path.write_bytes(data)
  with pytest.raises(errors.CheckpointDamagedError, match=r'state\.msgpack'):
    restore(tmp_path, kind, verify=False)


@pytest.mark.parametrize('kind', FILES)
def test_a_short_file_is_damage_even_if_trusted(tmp_path, kind):
  path = saved(tmp_path, kind)
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(errors.CheckpointDamagedError, match='bytes'):
    restore(tmp_path, kind, verify=False)


def replace(path, old, new):
  data = path.read_bytes()
  assert data.count(old) == 1
  assert len(old) == len(new)
  path.write_bytes(data.replace(old, new))


@pytest.mark.parametrize(
  ('old', 'new'),
  [
    # The array's extension, the list in it, its bytes, the map around it.
    (b'\xc9\x00\x04\x00', b'\xc9\xff\xff\xff'),
    (b'\x01\x93\x91\xce', b'\x01\xdd\xff\xff'),
    (b'\xc6\x00\x04\x00\x00', b'\xc6\xff\xff\xff\xff'),
    (b'\xc6\x00\x04\x00\x00', b'\xc6\x00\x00\x00\x00'),
    (b'\xce\x00\x01\x00\x00', b'\xce\xff\xff\xff\xff'),
    (b'\xa6leaves\x81', b'\xa6leaves\x8f'),
    (b'\xa6leaves', b'\xdbleaves'),
    (b'\xa7float32', b'\xa7float\xff2'),
    (b'\xa6leaves', b'\xa6lea_es'),
  ],
)
@pytest.mark.parametrize('verify', [True, False])
def test_a_wrong_length_is_damage_and_never_memory(tmp_path, old, new, verify):
  replace(saved(tmp_path, 'FLAX'), old, new)
  says = 'checksum' if verify else 'state.msgpack is damaged: '
  if not verify and old.startswith((b'\xce', b'\xa7float')):
    # It says of itself that it is an array of another kind.
    says = 'damaged|on process 0'
  with pytest.raises(errors.CheckpointError, match=says):
    restore(tmp_path, 'FLAX', verify=verify)


def test_whatever_the_bytes_are_a_trusting_restore_ends(tmp_path):
  path = saved(tmp_path, 'FLAX')
  whole = path.read_bytes()
  rng = np.random.default_rng(0)
  ended = {'restored': 0, 'refused': 0}
  for at in range(48, 120):
    for value in (0x00, 0xFF, *rng.integers(0, 256, 2)):
      path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
      try:
        restore(tmp_path, 'FLAX', verify=False)
      except (errors.CheckpointDamagedError, errors.RestoreMismatchError):
        ended['refused'] += 1
      else:
        ended['restored'] += 1
  assert min(ended.values()) > 10


# --- what is read, and when


def boxes(directory, mesh_shape, spec, value):
  """What comes back of an array on a mesh of 8 devices."""
  mesh = jax.make_mesh(
    mesh_shape, ('x', 'y'), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
  target = {
    'w': jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding),
    'z': jax.ShapeDtypeStruct((3,), np.int8),
  }
  with states.manager(directory, 'FLAX', read_only=True) as manager:
    return np.asarray(manager.restore(target).state['w'])


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'int8'])
@pytest.mark.parametrize('spec', [('x', 'y'), ('y',), (None, 'x'), ()])
def test_boxes_on_any_mesh_come_out_of_a_file_of_many_chunks(
  tmp_path, monkeypatch, dtype, spec
):
  monkeypatch.setattr(msgpack_stream, '_PIECE_BYTES', 10_000)
  monkeypatch.setattr(fs.LocalFileSystem, 'chunk_bytes', 8192)
  rng = np.random.default_rng(0)
  value = rng.standard_normal((160, 3, 240)).astype(dtype)
  value = value.reshape(160, 720)
  with states.manager(tmp_path, 'FLAX') as manager:
    manager.save(1, {'w': value, 'z': np.arange(3, dtype=np.int8)})
  found = boxes(tmp_path, (4, 2), spec, value)
  assert found.dtype == value.dtype
  assert found.tobytes() == value.tobytes()


@pytest.mark.parametrize('verify', [True, False])
def test_an_array_that_flax_cuts_comes_back_as_one(
  tmp_path, monkeypatch, verify
):
  monkeypatch.setattr(flax.serialization, 'MAX_CHUNK_SIZE', 1000)
  state = states.varied(3)
  with states.manager(tmp_path, 'FLAX') as manager:
    manager.save(1, state)
  path = tmp_path / 'checkpoint_00000001' / FILES['FLAX']
  assert path.read_bytes().count(b'__msgpack_chunked_array__') > 0
  config = checkpoint.CheckpointConfig(type='FLAX', verify=verify)
  with checkpoint.CheckpointManager(
    tmp_path, config=config, read_only=True
  ) as manager:
    states.assert_equal(manager.restore(state).state, state)
  with _reading.open_at(path.parent) as opened:
    numbers = {info.name: i for i, info in enumerate(opened.arrays)}
    last, first = opened.read(len(numbers) - 1), opened.read(0)
    again = opened.read(numbers['mdl_vars/params/w'])
  assert last.size
  assert first.size
  assert again.tobytes() == state['mdl_vars']['params']['w'].tobytes()


def test_the_file_is_read_once_and_each_array_again_as_asked(tmp_path):
  state = {f'x{i}': np.full(1 << 20, i, np.float64) for i in range(4)}
  with states.manager(tmp_path, 'FLAX') as manager:
    manager.save(1, state)
    found = manager.restore(state)
  path = tmp_path / 'checkpoint_00000001' / FILES['FLAX']
  assert found.report.bytes_read == path.stat().st_size
  config = checkpoint.CheckpointConfig(type='FLAX', verify=False)
  with checkpoint.CheckpointManager(
    tmp_path, config=config, read_only=True
  ) as manager:
    part = manager.restore({'x2': state['x2']}, allow_extra='x.')
  np.testing.assert_array_equal(part.state['x2'], state['x2'])
  assert part.report.bytes_read < path.stat().st_size * 0.7


def test_an_array_that_changed_since_the_file_was_checked_is_damage(tmp_path):
  state = {f'x{i}': np.full(1 << 20, i, np.float64) for i in range(4)}
  with states.manager(tmp_path, 'FLAX') as manager:
    manager.save(1, state)
  path = tmp_path / 'checkpoint_00000001' / FILES['FLAX']
  with _reading.open_at(path.parent) as opened:
    assert opened.read(0)[0] == 0
    with path.open('r+b') as f:
      f.seek(path.stat().st_size * 5 // 8)  # in the third of four arrays
      f.write(b'changed!')
    assert opened.read(3)[-1] == 3
    with pytest.raises(errors.CheckpointDamagedError, match='no longer'):
      opened.read(2)
