"""A flax file is checked whole, unless the disk is to be trusted."""

import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.core import errors
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
