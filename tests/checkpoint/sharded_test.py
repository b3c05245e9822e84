"""Every byte of a step is under a checksum, and damage is named."""

import itertools
import os
import pathlib
import shutil

import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.checkpoint import _boxes, _state
from paxlike.checkpoint._stores import plans
from paxlike.core import errors, fs
from tests.checkpoint import samples


def save(directory, state, step=1, kind='GDA'):
  config = checkpoint.CheckpointConfig(type=kind)
  with checkpoint.CheckpointManager(directory, config=config) as manager:
    manager.save(step, state, items={'input_state': {'position': 3}})
  return pathlib.Path(directory) / f'checkpoint_{step:08d}'


def restore(directory):
  with checkpoint.CheckpointManager(directory, read_only=True) as manager:
    return manager.restore()


def state():
  rng = np.random.default_rng(0)
  return {
    'large': rng.standard_normal((700, 1024), np.float32),
    'odd': rng.standard_normal((999,), np.float32),
    'scalar': np.float32(3.0),
  }


def assert_found(directory, path):
  with pytest.raises(errors.CheckpointDamagedError) as caught:
    restore(directory)
  assert path.name in str(caught.value)


@pytest.mark.parametrize('kind', ['GDA', 'FLAX', 'MULTI_HOST_FLAX'])
def test_damage_to_any_file_is_found_and_the_file_named(tmp_path, kind):
  step = save(tmp_path / 'good', state(), kind=kind)
  other = save(tmp_path / 'other', {**state(), 'odd': np.ones(999)}, kind=kind)
  rng = np.random.default_rng(0)
  files = sorted(p for p in step.rglob('*') if p.is_file())
  assert len(files) == (4 if kind == 'GDA' else 3)
  for path in files:
    good = path.read_bytes()
    bads = [good[:-1], good[: len(good) // 2], b'', bytes(len(good))]
    for _ in range(30):
      bad = bytearray(good)
      bad[rng.integers(len(good))] ^= 1 << rng.integers(8)
      bads.append(bytes(bad))
    hole = bytearray(good)
    first = int(rng.integers(max(1, len(good) - (64 << 10))))
    hole[first : first + (64 << 10)] = bytes(
      len(hole[first : first + (64 << 10)])
    )
    bads.append(bytes(hole))
    bads.append((other / path.relative_to(step)).read_bytes())
    for bad in bads:
      path.write_bytes(bad)
      assert_found(tmp_path / 'good', path)
    path.write_bytes(good)
  restore(tmp_path / 'good')


def test_every_bit_of_a_small_step_counts(tmp_path):
  step = save(tmp_path, {'x': np.arange(3.0)})
  for name in ('MANIFEST', 'p00000.index', 'input_state'):
    path = step / name
    good = path.read_bytes()
    for i in range(0, len(good), 2):
      bad = bytearray(good)
      bad[i] ^= 1 << i % 8
      path.write_bytes(bytes(bad))
      assert_found(tmp_path, path)
    path.write_bytes(good)


def test_zeros_between_the_arrays_are_checked_too(tmp_path):
  step = save(tmp_path, {'x': np.float32(1.0), 'y': np.float32(2.0)})
  path = step / 'p00000.data'
  good = path.read_bytes()
  for place in (60, 4095, 4096 + 5, 4096 + 63, len(good) - 1):
    bad = bytearray(good)
    bad[place] ^= 1
    path.write_bytes(bytes(bad))
    assert_found(tmp_path, path)


@pytest.mark.parametrize('kind', ['GDA', 'FLAX', 'MULTI_HOST_FLAX'])
def test_a_lost_file_is_named(tmp_path, kind):
  step = save(tmp_path, state(), kind=kind)
  for path in sorted(p for p in step.rglob('*') if p.is_file()):
    if path.name == 'MANIFEST':
      continue
    aside = tmp_path / 'aside'
    os.rename(path, aside)
    assert_found(tmp_path, path)
    os.rename(aside, path)
  restore(tmp_path)


def test_damage_names_the_array_and_the_range(tmp_path):
  values = np.ones((3, 512, 1024), np.float32)
  step = save(tmp_path, {'a': np.zeros(5), 'params/w': values})
  with open(step / 'p00000.data', 'r+b') as f:
    f.seek(4096 + (1 << 20) + 17)
    f.write(b'\xff')
  with pytest.raises(
    errors.CheckpointDamagedError,
    match=r'p00000.data is damaged: bytes 1052672 to 2101248, which are bytes '
    r"1048576 to 2097152 of box .* of array 'params%2Fw'",
  ):
    restore(tmp_path)


def test_without_verify_damage_passes(tmp_path):
  step = save(tmp_path, {'w': np.zeros(1 << 20, np.float32)})
  with open(step / 'p00000.data', 'r+b') as f:
    f.seek(4096 + 17)
    f.write(b'\xff')
  config = checkpoint.CheckpointConfig(verify=False)
  with checkpoint.CheckpointManager(
    tmp_path, config=config, read_only=True
  ) as manager:
    assert manager.restore().state['w'].any()


class SmallParts(fs.LocalFileSystem):
  """A disk whose files hold little."""

  part_bytes = 64 << 10


def test_arrays_cross_from_one_data_file_to_the_next(tmp_path):
  expected = state()
  with checkpoint.CheckpointManager(
    tmp_path, file_system=SmallParts()
  ) as manager:
    manager.save(1, expected)
    found = manager.restore().state
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value)
  assert len(list(tmp_path.glob('checkpoint_*/*.data'))) > 40


def test_a_header_of_another_step_is_not_taken(tmp_path):
  first = save(tmp_path / 'a', {'x': np.zeros(9)}, step=1)
  second = save(tmp_path / 'b', {'x': np.zeros(9)}, step=2)
  shutil.copy(first / 'p00000.data', second / 'p00000.data')
  with pytest.raises(errors.CheckpointDamagedError, match='step 1, not 2'):
    restore(tmp_path / 'b')


def test_a_plan_leaves_no_byte_out_and_none_twice():
  apart = _state.take_apart(samples.varied())
  plan = plans.make_plan(
    apart, plans.layouts_of(apart), process=0, part_bytes=1 << 30
  )
  end = 0
  for entry in plan.entries:
    assert entry.offset == end
    assert entry.num_bytes <= entry.extent
    assert entry.offset % 64 == 0
    end += entry.extent
  assert end == plan.total_bytes
  assert plan.total_bytes % 4096 == 0


def test_contiguous_pieces_cover_an_array_once():
  for shape, limit in itertools.product(
    [(), (7,), (5, 6), (3, 4, 5), (1, 100), (100, 1), (2, 3, 4, 5)],
    [4, 8, 60, 100, 10_000],
  ):
    flat = np.zeros(int(np.prod(shape)), int)
    values = flat.reshape(shape)
    for piece in _boxes.contiguous_pieces(
      shape, item_bytes=4, limit_bytes=limit
    ):
      assert piece.size * 4 <= max(limit, 4)
      first = _boxes.offset_in(piece, shape)
      flat[first : first + piece.size] += 1
      inside = values[(*piece.slices_in(_boxes.whole(shape)), ...)]
      assert inside.size == piece.size
    assert (flat == 1).all()
