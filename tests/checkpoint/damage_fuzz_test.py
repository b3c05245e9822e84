"""Damage to any file of a step is found and named before training starts."""

import dataclasses
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from absl import logging

from paxlike import checkpoint
from paxlike.checkpoint import tools
from paxlike.core import errors
from tests.checkpoint import states

_NUM_FLIPS = 100
_HOLE_BYTES = 64 << 10


@dataclasses.dataclass(frozen=True)
class Steps:
  """Two steps that are alike but for every value."""

  directory: pathlib.Path
  kind: str

  @property
  def newest(self) -> pathlib.Path:
    return self.directory / 'checkpoint_00000002'

  @property
  def oldest(self) -> pathlib.Path:
    return self.directory / 'checkpoint_00000001'

  def files(self) -> list[pathlib.Path]:
    """Every file of the newest step."""
    return sorted(p for p in self.newest.rglob('*') if p.is_file())


@pytest.fixture(scope='module', params=states.KINDS)
def steps(request) -> Iterator[Steps]:
  """Of one type, in memory: the tests read them thousands of times."""

  with tempfile.TemporaryDirectory(dir='/dev/shm') as path:
    directory = pathlib.Path(path) / 'checkpoints'
    states.save_steps(directory, request.param, (1, 2), state=state)
    yield Steps(directory, request.param)


@pytest.fixture(autouse=True)
def quiet():
  """Thousands of warnings about the same thing slow the tests down."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  yield
  logging.set_verbosity(before)


def state(step: int) -> dict[str, Any]:
  """270 KB: more than a hole."""
  return {**states.plain(step, num_rows=2000), 'rng': np.array([step] * 4)}


def restore(steps: Steps) -> None:
  with states.manager(steps.directory, steps.kind, read_only=True) as manager:
    manager.restore()


def assert_found(steps: Steps, path: pathlib.Path, what: str) -> None:
  """Restoring raises and `verify` tells, both with the file's name."""
  told = 'nothing: it was restored'
  try:
    restore(steps)
  except errors.CheckpointDamagedError as e:
    told = str(e)
  assert str(path) in told, what
  found = tools.verify(steps.directory).damage
  assert {damage.file for damage in found} == {str(path)}, what


def test_the_steps_are_whole_to_begin_with(steps):
  restore(steps)
  assert tools.verify(steps.directory).damage == ()
  names = {path.name for path in steps.files()}
  assert {'MANIFEST', 'input_state'} < names


def test_a_flipped_bit_anywhere_is_found(steps):
  rng = np.random.default_rng(0)
  for path in steps.files():
    size = path.stat().st_size
    places = rng.choice(size, min(size, _NUM_FLIPS), replace=False)
    with path.open('r+b') as f:
      for place in (0, size - 1, *map(int, places)):
        flip(f, place, bit := 1 << int(rng.integers(8)))
        assert_found(steps, path, f'bit {bit} of byte {place} of {path.name}')
        flip(f, place, bit)
  restore(steps)


def flip(file, place: int, bit: int) -> None:
  file.seek(place)
  byte = file.read(1)[0]
  file.seek(place)
  file.write(bytes([byte ^ bit]))
  file.flush()


def test_a_file_that_is_cut_off_is_found(steps):
  for path in steps.files():
    whole = path.read_bytes()
    for left in (len(whole) - 1, len(whole) // 2, 1, 0):
      path.write_bytes(whole[:left])
      assert_found(steps, path, f'{path.name} cut to {left} bytes')
    path.write_bytes(whole)
  restore(steps)


def test_a_file_that_grew_is_found(steps):
  for path in steps.files():
    whole = path.read_bytes()
    path.write_bytes(whole + b'\0')
    assert_found(steps, path, f'{path.name} with a byte more')
    path.write_bytes(whole)
  restore(steps)


def test_a_hole_of_zeros_is_found(steps):
  rng = np.random.default_rng(1)
  for path in steps.files():
    whole = path.read_bytes()
    last = max(1, len(whole) - _HOLE_BYTES)
    for first in (0, *map(int, rng.integers(0, last, 5))):
      holed = bytearray(whole)
      end = min(first + _HOLE_BYTES, len(whole))
      holed[first:end] = bytes(end - first)
      assert holed != whole
      path.write_bytes(holed)
      assert_found(steps, path, f'{path.name} zero from {first} to {end}')
    path.write_bytes(whole)
  restore(steps)


def test_a_file_swapped_with_that_of_another_step_is_found(steps):
  for path in steps.files():
    whole = path.read_bytes()
    other = steps.oldest / path.relative_to(steps.newest)
    path.write_bytes(other.read_bytes())
    assert_found(steps, path, f'{path.name} of another step')
    path.write_bytes(whole)
  restore(steps)


def test_a_file_of_another_attempt_at_the_same_step_is_found(steps, tmp_path):
  states.save_steps(tmp_path, steps.kind, (2,), state=state)
  for path in steps.files():
    if path.name == 'MANIFEST':
      continue  # with the files of the other attempt it would be a whole step
    whole = path.read_bytes()
    other = tmp_path / path.relative_to(steps.directory)
    assert len(other.read_bytes()) == len(whole)
    path.write_bytes(other.read_bytes())
    assert_found(steps, path, f'{path.name} of another attempt')
    path.write_bytes(whole)
  restore(steps)


def test_a_file_that_is_gone_is_found(steps):
  for path in steps.files():
    if path.name == 'MANIFEST':
      continue  # the history then tells of a step too many: see below
    whole = path.read_bytes()
    path.unlink()
    assert_found(steps, path, f'{path.name} removed')
    path.write_bytes(whole)
  restore(steps)


def test_a_file_that_cannot_be_read_is_found(steps):
  for path in steps.files():
    if path.name == 'MANIFEST':
      continue
    aside = path.with_name('aside')
    path.rename(aside)
    path.mkdir()
    try:
      assert_found(steps, path, f'{path.name} is a directory')
    finally:
      path.rmdir()
      aside.rename(path)
  restore(steps)


def test_a_newest_step_without_manifest_is_passed_over_only_if_asked(steps):
  path = steps.newest / 'MANIFEST'
  whole = path.read_bytes()
  path.unlink()
  # Not even a trainer's manager opens: it would train on from an older step.
  with pytest.raises(errors.CheckpointDamagedError, match=str(path)):
    states.manager(steps.directory, steps.kind)
  with pytest.raises(errors.CheckpointDamagedError, match=str(path)):
    restore(steps)
  damage = tools.verify(steps.directory).damage[0]
  assert (damage.file, damage.reason) == (str(path), 'it is missing')
  fallback = checkpoint.CheckpointConfig(type=steps.kind, fallback=True)
  with checkpoint.CheckpointManager(
    steps.directory, config=fallback, read_only=True
  ) as manager:
    assert manager.restore().step == 1
  with (
    states.manager(steps.directory, read_only=True) as manager,
    pytest.raises(errors.CheckpointNotFoundError, match='no step 2'),
  ):
    manager.restore(step=2)
  path.write_bytes(whole)
  restore(steps)


def test_a_whole_step_under_another_number_is_found(steps):
  moved = steps.directory / 'checkpoint_00000005'
  shutil.copytree(steps.newest, moved)
  try:
    with pytest.raises(
      errors.CheckpointDamagedError, match='belongs to step 2'
    ):
      restore(steps)
    found = {damage.file for damage in tools.verify(steps.directory).damage}
    assert str(moved / 'MANIFEST') in found
  finally:
    shutil.rmtree(moved)


def test_damage_to_an_older_step_does_not_hide_the_newest(steps):
  path = steps.oldest / 'MANIFEST'
  whole = path.read_bytes()
  path.write_bytes(b'')
  restore(steps)
  found = tools.verify(steps.directory).damage
  assert {damage.file for damage in found} == {str(path)}
  path.write_bytes(whole)


def test_every_place_that_is_damaged_is_told(steps):
  wholes = {path: path.read_bytes() for path in steps.files()}
  for path, whole in wholes.items():
    if path.name != 'MANIFEST':
      path.write_bytes(whole[:-1])
  found = {damage.file for damage in tools.verify(steps.directory).damage}
  assert found == {str(p) for p in wholes if p.name != 'MANIFEST'}
  for path, whole in wholes.items():
    path.write_bytes(whole)


@pytest.mark.parametrize('steps', ['GDA'], indirect=True)
def test_damage_is_told_with_array_and_range(steps):
  path = steps.newest / 'p00000.data'
  whole = path.read_bytes()
  values = states.plain(2, num_rows=2000)['mdl_vars']['params']['w']
  at = whole.index(values.tobytes())
  broken = bytearray(whole)
  broken[at + 100_000] ^= 1
  path.write_bytes(broken)
  with pytest.raises(errors.CheckpointDamagedError) as caught:
    restore(steps)
  message = str(caught.value)
  assert f'{path} is damaged: bytes {at} to ' in message
  assert "array 'mdl_vars/params/w' (float32[2000, 33])" in message
  (damage,) = tools.verify(steps.directory).damage
  assert damage.array == 'mdl_vars/params/w'
  assert damage.first <= at + 100_000 < damage.last
  path.write_bytes(whole)


# --- the history, which is repaired


@pytest.mark.parametrize(
  'damage', ['empty', 'half', 'flip', 'noise', 'gone', 'directory']
)
def test_a_damaged_history_is_rebuilt_with_a_warning(
  tmp_path, monkeypatch, damage
):
  states.save_steps(tmp_path, steps=(1, 2))
  path = tmp_path / 'checkpoints.pb'
  whole = path.read_bytes()
  path.unlink()
  flipped = bytes([whole[0], whole[1] ^ 1, *whole[2:]])
  contents = {
    'empty': b'',
    'half': whole[: len(whole) // 2],
    'flip': flipped,
    'noise': os.urandom(100),
  }
  if damage in contents:
    path.write_bytes(contents[damage])
    assert str(path) in {d.file for d in tools.verify(tmp_path).damage}
  elif damage == 'directory':
    path.mkdir()
  told = []
  monkeypatch.setattr(logging, 'warning', lambda *a: told.append(a[0] % a[1:]))
  with states.manager(tmp_path) as manager:
    assert manager.steps() == [1, 2]
    records = manager.records()
    assert [r.metrics for r in records] == [{'loss': 1 / 2}, {'loss': 1 / 3}]
    assert any('rebuilt from the steps' in text for text in told)
    if damage == 'directory':
      return
    manager.save(3, states.plain(3))
  assert tools.verify(tmp_path).damage == ()
