import pytest
from tensorboard.summary.writer import record_writer

from paxlike.core import errors
from paxlike.reporting import _records


def test_records_are_those_that_tensorboard_writes(tmp_path):
  path = tmp_path / 'records'
  with open(path, 'wb') as f:
    writer = record_writer.RecordWriter(f)
    for data in (b'', b'one', b'x' * 1000):
      writer.write(data)
  content = path.read_bytes()
  assert list(_records.split(content, source='f')) == [b'', b'one', b'x' * 1000]
  ours = b''.join(map(_records.frame, (b'', b'one', b'x' * 1000)))
  assert ours == content


def test_a_torn_tail_ends_the_reading_wherever_it_is_torn():
  whole = _records.frame(b'one')
  content = whole + _records.frame(b'two')
  for length in range(len(whole), len(content)):
    assert list(_records.split(content[:length], source='f')) == [b'one']


def test_every_flipped_bit_is_found_and_the_file_is_named():
  content = _records.frame(b'one') + _records.frame(b'two')
  for bit in range(8 * len(_records.frame(b'one'))):
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(errors.ReportingError, match='some/file'):
      list(_records.split(bytes(damaged), source='some/file'))
