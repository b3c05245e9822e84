import builtins
import importlib

import numpy as np
import pytest

from paxlike import reporting
from paxlike.core import errors
from paxlike.reporting import _pairs

PAIRS = [
  ('Ruth 1:1', {'ids': [1, 2], 'text': 'Now it — came'}),
  ('Ruth 1:2', None),
  ('Ruth "1:3"\n', ['a', 1.5, 'NaN']),
]
NEEDS = {'array_record': 'array_record', 'parquet': 'pyarrow'}


@pytest.mark.parametrize('file_format', _pairs.FORMATS)
def test_every_format_gives_back_what_was_written(tmp_path, file_format):
  path = f'{tmp_path}/out.{file_format}'
  assert reporting.WriteKeyValuePairs(path, PAIRS) == path
  assert list(reporting.read_key_values(path)) == PAIRS
  reporting.WriteKeyValuePairs(path, [])
  assert list(reporting.read_key_values(path)) == []


@pytest.mark.parametrize('file_format', sorted(NEEDS))
def test_a_missing_package_says_what_to_install(monkeypatch, file_format):
  original = importlib.import_module

  def without(name, package=None):
    if name.split('.')[0] in NEEDS.values():
      raise ModuleNotFoundError(name)
    return original(name, package)

  monkeypatch.setattr(importlib, 'import_module', without)
  with pytest.raises(errors.ConfigError, match='pip install'):
    _pairs.check_format(file_format)


def test_an_unknown_format_is_refused():
  with pytest.raises(errors.ConfigError, match="'pickle'"):
    _pairs.check_format('pickle')


def test_the_pax_name_writes_json_lines_with_arrays_as_lists(tmp_path):
  path = reporting.WriteKeyValuePairs(
    tmp_path / 'decoded', [('k', {'scores': np.array([0.5, np.nan])})]
  )
  assert path == f'{tmp_path}/decoded.jsonl'
  assert (tmp_path / 'decoded.jsonl').read_text() == (
    '{"key": "k", "value": {"scores": [0.5, "NaN"]}}\n'
  )
  assert [p.name for p in tmp_path.iterdir()] == ['decoded.jsonl']


def test_nothing_is_read_by_running_it(tmp_path, monkeypatch):
  # A pickle under a known name is no pairs, whatever it would do.
  path = tmp_path / 'evil.jsonl'
  path.write_bytes(b'cbuiltins\nexit\n(I7\ntR.')
  monkeypatch.setattr(builtins, 'exit', lambda *a: pytest.fail('was run'))
  with pytest.raises(errors.ReportingError, match=r'evil\.jsonl'):
    list(reporting.read_key_values(path))


def test_shards_are_read_in_the_order_of_their_numbers(tmp_path):
  for shard in range(12):
    reporting.WriteKeyValuePairs(
      f'{tmp_path}/decoder_out_5_shard_{shard}-of-12.jsonl',
      [(f'k{shard}', shard)],
    )
  read = reporting.read_key_values(f'{tmp_path}/decoder_out_5_shard_*')
  assert [value for _, value in read] == list(range(12))


def test_no_file_is_an_error_that_names_the_pattern(tmp_path):
  with pytest.raises(FileNotFoundError, match='nothing'):
    list(reporting.read_key_values(f'{tmp_path}/nothing*'))


def test_a_key_that_is_no_text_is_refused(tmp_path):
  with pytest.raises(errors.ReportingError, match='int'):
    reporting.WriteKeyValuePairs(f'{tmp_path}/x', [(3, 'v')])


def test_unusual_line_ends_inside_of_a_value_are_no_line_ends(tmp_path):
  pairs = [('a\u2028b', 'x\x0b\x0c\x85\u2029y\r\nz')]
  path = reporting.WriteKeyValuePairs(f'{tmp_path}/x', pairs)
  assert list(reporting.read_key_values(path)) == pairs
