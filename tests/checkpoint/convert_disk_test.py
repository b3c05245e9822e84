"""Conversions that cannot be: onto a full disk, from what is no Orbax."""

import os

import numpy as np
import pytest

from paxlike.checkpoint import tools
from paxlike.cli import ckpt
from paxlike.core import errors
from tests.checkpoint import states
from tests.fakes import disks


@pytest.fixture
def steps(tmp_path):
  """A step of 4 MB that no compression makes smaller."""
  noise = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
  states.save_steps(
    tmp_path / 'steps', steps=(1,), state=lambda _: {'w': noise}
  )
  return tmp_path / 'steps'


@pytest.mark.skipif(os.geteuid() != 0, reason='only root mounts disks')
@pytest.mark.parametrize('kind', ['safetensors', 'msgpack', 'zarr3', 'orbax'])
def test_a_full_disk_is_told_and_nothing_is_left_on_it(tmp_path, steps, kind):
  with disks.mounted(tmp_path / 'disk', size='2m') as disk:
    with pytest.raises(errors.SaveError) as caught:
      tools.convert(steps, disk / 'out', to=kind)
    assert os.listdir(disk) == []
  assert str(caught.value) == (
    f'{disk}/out was not written: its disk is full. Make room there, or '
    'choose another.'
  )


def test_what_is_no_orbax_is_told(steps, tmp_path):
  with pytest.raises(errors.UsageError, match='holds no Orbax checkpoint'):
    ckpt.main(['convert', '--from=orbax', str(steps), str(tmp_path / 'out')])
  assert not (tmp_path / 'out').exists()


def test_there_is_no_step_before_the_first(steps, tmp_path):
  tools.convert(steps, tmp_path / 'w.safetensors')
  with pytest.raises(errors.UsageError, match='There is no step -3'):
    tools.convert(tmp_path / 'w.safetensors', tmp_path / 'out', step=-3)
  assert not (tmp_path / 'out').exists()
