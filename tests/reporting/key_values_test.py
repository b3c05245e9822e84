import json
import pathlib
import random

import numpy as np
import pytest

from paxlike import reporting
from paxlike.core import errors, fs
from tests.contracts import input_contract
from tests.fakes import world as fake_world

NUM_BATCHES, BATCH_SIZE = 11, 5


class KilledError(Exception):
  """Stands for SIGKILL: nothing after it runs."""


def pairs_of(position: int, rows: range) -> list:
  return [
    (f'key {position * BATCH_SIZE + row}', {'position': position, 'row': row})
    for row in rows
  ]


def open_writer(directory, world=None, **knobs) -> reporting.KeyValueWriter:
  return reporting.KeyValueWriter(
    str(directory),
    'verses',
    **{
      'step': 20,
      'num_batches': NUM_BATCHES,
      'batches_per_commit': 3,
      'world': world,
      **knobs,
    },
  )


def decode(directory, num_processes: int, *, die_at=(), log=None, **knobs):
  """Decodes all; process i is killed at batch die_at[i] if that is given."""

  def job(world):
    rows = input_contract.split_rows(BATCH_SIZE, num_processes)[
      world.process_index
    ]
    writer = open_writer(directory, world, **knobs)
    for position in writer.pending():
      if die_at and position >= die_at[world.process_index]:
        raise KilledError
      if log is not None and world.process_index == 0:
        log.append(position)
      writer.write(position, pairs_of(position, rows))
    if die_at:
      raise KilledError
    return writer.finish()

  return fake_world.run(num_processes, job, return_errors=bool(die_at))


def read(directory) -> list:
  return list(
    reporting.read_key_values(f'{directory}/decoder_out/verses/decoder_out_20*')
  )


EXPECTED = [
  p for b in range(NUM_BATCHES) for p in pairs_of(b, range(BATCH_SIZE))
]


def file_names(directory) -> list[str]:
  where = pathlib.Path(directory) / 'decoder_out/verses'
  return sorted(path.name for path in where.iterdir())


@pytest.mark.parametrize('num_processes', [1, 2, 4])
def test_shards_hold_each_key_once_in_the_order_of_the_input(
  tmp_path, num_processes
):
  paths = decode(tmp_path, num_processes)
  assert read(tmp_path) == EXPECTED
  assert [fs.base_name(path) for path in paths] == [
    f'decoder_out_20_shard_{i}-of-{num_processes}.jsonl'
    for i in range(num_processes)
  ]
  assert file_names(tmp_path) == sorted(map(fs.base_name, paths))


def test_a_line_is_a_key_and_a_value(tmp_path):
  (path,) = decode(tmp_path, 1)
  line = json.loads(pathlib.Path(path).read_text().splitlines()[6])
  assert line == {'key': 'key 6', 'value': {'position': 1, 'row': 1}}


FORMATS = ['jsonl', 'tfrecord', 'array_record', 'parquet']


@pytest.mark.parametrize('seed', range(8))
def test_kills_and_other_process_counts_lose_and_repeat_no_key(tmp_path, seed):
  draw = random.Random(seed)
  file_format = FORMATS[seed % len(FORMATS)]
  for _ in range(4):
    count = draw.choice([1, 2, 3])
    deaths = [draw.randrange(NUM_BATCHES + 1) for _ in range(count)]
    decode(tmp_path, count, die_at=deaths, file_format=file_format)
  paths = decode(tmp_path, draw.choice([1, 2, 4]), file_format=file_format)
  assert all(path.endswith(f'.{file_format}') for path in paths)
  assert read(tmp_path) == EXPECTED
  assert not any(name.endswith('.partial') for name in file_names(tmp_path))


def test_what_all_processes_committed_is_not_decoded_again(tmp_path):
  decode(tmp_path, 2, die_at=[10, 10])
  log = []
  decode(tmp_path, 1, log=log)
  assert log == [9, 10]
  assert read(tmp_path) == EXPECTED


def test_what_one_process_did_not_commit_is_decoded_again_by_all(tmp_path):
  decode(tmp_path, 2, die_at=[10, 4])
  log = []
  decode(tmp_path, 2, log=log)
  assert log == [3, 4, 5, 6, 7, 8, 9, 10]
  assert read(tmp_path) == EXPECTED


def test_a_kill_at_any_write_of_the_disk_is_survived(tmp_path, monkeypatch):
  original = fs.LocalFileSystem.write_atomic
  calls = [0]

  def dying(self, path, data):
    calls[0] += 1
    if calls[0] == die_at:
      raise KilledError
    original(self, path, data)

  monkeypatch.setattr(fs.LocalFileSystem, 'write_atomic', dying)
  for die_at in range(1, 8):
    directory = tmp_path / str(die_at)
    calls[0] = 0
    try:
      decode(directory, 1)
    except KilledError:
      decode(directory, 1)
    assert read(directory) == EXPECTED
  assert calls[0] < die_at  # The last round was not killed: all were tried.


def test_what_was_begun_and_not_finished_is_listed_and_can_be_dropped(
  tmp_path,
):
  decode(tmp_path, 1, die_at=[4])
  decode(tmp_path, 1, die_at=[4], step=300)
  decode(tmp_path, 1, step=40)
  assert reporting.unfinished_steps(str(tmp_path), 'verses') == [20, 300]
  assert reporting.unfinished_steps(str(tmp_path), 'nothing') == []
  reporting.drop_unfinished(str(tmp_path), 'verses', 20)
  assert reporting.unfinished_steps(str(tmp_path), 'verses') == [300]
  assert file_names(tmp_path) == [
    'decoder_out_300.partial',
    'decoder_out_40_shard_0-of-1.jsonl',
  ]


def test_other_settings_start_over(tmp_path):
  decode(tmp_path, 1, die_at=[10], fingerprint='greedy')
  log = []
  decode(tmp_path, 1, log=log, fingerprint='sampled')
  assert log == list(range(NUM_BATCHES))


def test_decoding_a_step_again_replaces_its_shards_alone(tmp_path):
  decode(tmp_path, 4)
  decode(tmp_path, 2, step=30)
  decode(tmp_path, 1)
  assert file_names(tmp_path) == [
    'decoder_out_20_shard_0-of-1.jsonl',
    'decoder_out_30_shard_0-of-2.jsonl',
    'decoder_out_30_shard_1-of-2.jsonl',
  ]
  assert read(tmp_path) == EXPECTED


def test_two_inputs_and_two_steps_do_not_meet(tmp_path):
  for name, step in (('a', 1), ('a', 2), ('b', 1)):
    writer = reporting.KeyValueWriter(
      str(tmp_path), name, step=step, num_batches=1
    )
    writer.write(0, [('key', f'{name}{step}')])
    writer.finish()
  found = list(reporting.read_key_values(f'{tmp_path}/decoder_out/a/*'))
  assert found == [('key', 'a1'), ('key', 'a2')]


def test_a_key_that_comes_twice_is_named(tmp_path):
  writer = open_writer(tmp_path)
  writer.write(0, [('Ruth 1:1', 1)])
  with pytest.raises(errors.ReportingError, match=r'Ruth 1:1.*twice'):
    writer.write(1, [('Ruth 1:1', 2)])


def test_a_key_that_two_processes_wrote_is_named(tmp_path):
  def job(world):
    writer = open_writer(tmp_path, world, num_batches=2)
    for position in writer.pending():
      writer.write(position, [(f'key {position // 2}', world.process_index)])
    return writer.finish()

  first, _ = fake_world.run(
    2, lambda world: job(world), return_errors=True, join_timeout_s=60
  )
  assert isinstance(first, errors.ReportingError)
  assert 'twice' in str(first)


def test_values_of_any_kind_and_no_pairs_at_all_are_written(tmp_path):
  writer = open_writer(tmp_path, num_batches=3)
  writer.write(0, [('none', None), ('array', np.float32([[1, 2], [3, 4]]))])
  writer.write(1, [])
  writer.write(2, [('ragged', [[1], [], 'text'])])
  writer.finish()
  assert dict(read(tmp_path)) == {
    'none': None,
    'array': [[1.0, 2.0], [3.0, 4.0]],
    'ragged': [[1], [], 'text'],
  }


def test_two_examples_of_one_text_keep_their_own_values(tmp_path):
  writer = open_writer(tmp_path, num_batches=1)
  writer.write(
    0, [('0', {'in': 'x', 'out': 'a'}), ('1', {'in': 'x', 'out': 'b'})]
  )
  writer.finish()
  assert [value['out'] for _, value in read(tmp_path)] == ['a', 'b']


def test_a_batch_that_was_not_written_is_an_error(tmp_path):
  writer = open_writer(tmp_path, num_batches=3)
  writer.write(0, [])
  writer.write(2, [])
  with pytest.raises(errors.ReportingError, match=r'batch 1 '):
    writer.finish()


def test_an_input_without_batches_has_an_empty_shard(tmp_path):
  writer = open_writer(tmp_path, num_batches=0)
  path = writer.finish()
  assert pathlib.Path(path).read_bytes() == b''


@pytest.mark.parametrize('file_format', FORMATS[1:])
def test_another_format_holds_the_same(tmp_path, file_format):
  paths = decode(tmp_path, 2, file_format=file_format)
  assert all(path.endswith(f'.{file_format}') for path in paths)
  assert read(tmp_path) == EXPECTED


def test_notes_survive_kills_and_are_there_once(tmp_path):
  def job(world):
    rows = input_contract.split_rows(BATCH_SIZE, world.process_count)[
      world.process_index
    ]
    writer = open_writer(tmp_path, world)
    for position in writer.pending():
      if position == 7 and world.process_count == 2:
        raise KilledError
      pairs = pairs_of(position, rows)
      writer.write(position, pairs, note={'count': len(pairs), 'sum': 0.1})
    writer.finish()
    return writer.notes()

  fake_world.run(2, job, return_errors=True)
  notes = [note for notes in fake_world.run(3, job) for note in notes]
  assert sum(note['count'] for note in notes) == len(EXPECTED)
  # Two parts of the six batches committed before, three of the others.
  assert len(notes) == 6 * 2 + 5 * 3


def test_a_value_that_json_cannot_say_fails_at_its_batch(tmp_path):
  writer = open_writer(tmp_path)
  writer.write(0, [])
  with pytest.raises(errors.ReportingError, match=r'Batch 1 .* type object'):
    writer.write(1, [('key', object())])


def test_a_decode_is_finished_only_once_its_report_is_made(tmp_path):
  class DeadError(Exception):
    pass

  def die(notes):
    assert notes == [7]
    raise DeadError

  def open_one():
    return open_writer(tmp_path, num_batches=1)

  writer = open_one()
  writer.write(0, [('key', 1)], note=7)
  with pytest.raises(DeadError):
    writer.finish(report=die)
  assert reporting.is_unfinished(str(tmp_path), 'verses', 20)
  again = open_one()
  assert again.pending() == []
  reports = []
  again.finish(report=reports.append)
  assert reports == [[7]]
  assert not reporting.is_unfinished(str(tmp_path), 'verses', 20)
  assert read(tmp_path) == [('key', 1)]
