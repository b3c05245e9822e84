"""checkpoints.pb is an index: it is rebuilt from the steps where it is lost."""

import os

import pytest

from paxlike import checkpoint
from paxlike.checkpoint import _history
from paxlike.core import errors
from paxlike.protos import checkpoint_pb2 as pb
from tests.checkpoint import samples
from tests.fakes import clock as fake_clock

RECORDS = [
  _history.Record(1, 100.5, 'GDA', 'interval', {'loss': 0.5}),
  _history.Record(200, 101.5, 'FLAX'),
]


def test_records_come_back():
  assert _history.decode(_history.encode(RECORDS), path='x') == RECORDS


def test_the_file_is_plain_protobuf_with_the_known_names():
  message = pb.CheckpointHistory.FromString(_history.encode(RECORDS))
  assert [c.global_step_id for c in message.checkpoints] == [1, 200]
  assert message.checkpoints[0].timestamp_sec == 100.5


def test_every_flipped_bit_and_every_cut_is_found():
  data = _history.encode(RECORDS)
  for bit in range(len(data) * 8):
    bad = bytearray(data)
    bad[bit // 8] ^= 1 << bit % 8
    with pytest.raises(errors.CheckpointDamagedError):
      _history.decode(bytes(bad), path='x')
  for length in range(len(data)):
    with pytest.raises(errors.CheckpointDamagedError):
      _history.decode(data[:length], path='x')


@pytest.mark.parametrize('content', [None, b'', b'torn', b'\0' * 100])
def test_a_lost_history_is_rebuilt_with_the_times_of_the_steps(
  tmp_path, caplog, content
):
  clock = fake_clock.FakeClock()
  with checkpoint.CheckpointManager(tmp_path, clock=clock) as manager:
    for step in (1, 2):
      manager.save(step, samples.small(), metrics={'loss': 0.5})
      manager.wait()
      clock.advance_s(10.0)
    before = manager.records()
  path = tmp_path / 'checkpoints.pb'
  if content is None:
    os.unlink(path)
  else:
    path.write_bytes(content)
  with checkpoint.CheckpointManager(tmp_path, clock=clock) as manager:
    assert manager.records() == before
  assert 'rebuilt from the steps' in caplog.text


def test_a_step_that_was_copied_in_is_adopted_and_one_taken_away_forgotten(
  tmp_path, caplog
):
  for name, steps in (('a', (1, 3)), ('b', (2,))):
    with checkpoint.CheckpointManager(tmp_path / name) as manager:
      for step in steps:
        manager.save(step, samples.small(step))
  os.rename(
    tmp_path / 'b' / 'checkpoint_00000002',
    tmp_path / 'a' / 'checkpoint_00000002',
  )
  os.rename(tmp_path / 'a' / 'checkpoint_00000003', tmp_path / 'elsewhere')
  with checkpoint.CheckpointManager(tmp_path / 'a') as manager:
    assert manager.steps() == [1, 2]
  assert 'Steps [3]' in caplog.text


@pytest.mark.parametrize('name', ['checkpoint_100000000', 'checkpoint_7'])
def test_a_newest_step_that_lost_its_manifest_is_told_whatever_its_width(
  tmp_path, name
):
  step = int(name.removeprefix('checkpoint_'))
  with checkpoint.CheckpointManager(tmp_path) as manager:
    for each in (step - 1, step):
      manager.save(each, samples.small(each))
  written = tmp_path / f'checkpoint_{step:08d}'
  if written.name != name:
    os.rename(written, tmp_path / name)
  os.unlink(tmp_path / name / 'MANIFEST')
  with pytest.raises(errors.CheckpointDamagedError, match=f'{name}/MANIFEST'):
    checkpoint.CheckpointManager(tmp_path)
  with (
    checkpoint.CheckpointManager(tmp_path, read_only=True) as reader,
    pytest.raises(errors.CheckpointDamagedError, match=f'{name}/MANIFEST'),
  ):
    reader.restore()
  config = checkpoint.CheckpointConfig(fallback=True)
  with checkpoint.CheckpointManager(tmp_path, config=config) as manager:
    assert manager.restore(samples.small()).step == step - 1
