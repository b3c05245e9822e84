"""Files of key/value pairs: four formats, one meaning.

A pair is {"key": text, "value": anything JSON can say}. jsonl: an object a
line. tfrecord and array_record: the same object a record. parquet: columns
`key` and `value`, the value as JSON text. No format can run code when read.
"""

import glob as globs
import importlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from paxlike.core import errors, fs
from paxlike.reporting import _jsonable, _records

Pair = tuple[str, Any]
# File name extensions, which are also the names of the formats.
FORMATS = ('jsonl', 'tfrecord', 'array_record', 'parquet')
_SHARD = re.compile(r'^(.*)_shard_(\d+)-of-(\d+)\.')


def WriteKeyValuePairs(  # noqa: N802 (the name that Pax users know)
  filename: str | os.PathLike[str], key_value_pairs: Iterable[tuple[Any, Any]]
) -> str:
  """Writes pairs to one file, whole or not at all; never a pickle.

  Args:
    filename: The extension chooses the format; without one of the four,
      '.jsonl' is added.
    key_value_pairs: Keys are text; values may hold arrays.

  Returns:
    The name of the file written.
  """
  path = fs.expand(os.fspath(filename))
  if _extension(path) not in FORMATS:
    path = f'{path}.jsonl'
  pairs = [(check_key(key), value) for key, value in key_value_pairs]
  fs.for_path(path).make_dirs(fs.parent_dir(path))
  fs.for_path(path).write_atomic(path, encode(pairs, _extension(path)))
  return path


def read_key_values(glob: str | os.PathLike[str]) -> Iterator[Pair]:
  """Yields the pairs of all files that match, shard by shard.

  Args:
    glob: A path whose last part may hold wildcards.

  Raises:
    FileNotFoundError: No file matches.
    ReportingError: A file is no file of pairs.
  """
  paths = _matching(fs.expand(os.fspath(glob)))
  if not paths:
    raise FileNotFoundError(f'No key/value file matches {os.fspath(glob)!r}.')
  for path in paths:
    yield from decode(fs.for_path(path).read_bytes(path), path)


def check_key(key: Any) -> str:
  """The key, if it is text."""
  if not isinstance(key, str):
    raise errors.ReportingError(
      f'A key must be text, {key!r} is of type {type(key).__name__}. '
      'process_decode_out must return (key, value) pairs.'
    )
  return key


def check_format(name: str) -> None:
  """Refuses an unknown format, and one whose package is missing, early."""
  if name not in FORMATS:
    raise errors.ConfigError(
      f'decode.format is {name!r}, must be one of {", ".join(FORMATS)}.'
    )
  if name == 'array_record':
    _array_record_module()
  if name == 'parquet':
    _pyarrow()


def encode(pairs: Iterable[Pair], file_format: str) -> bytes:
  """The contents of a file of `pairs`."""
  if file_format == 'jsonl':
    return b''.join(_to_json(key, value) + b'\n' for key, value in pairs)
  if file_format == 'tfrecord':
    return b''.join(
      _records.frame(_to_json(key, value)) for key, value in pairs
    )
  if file_format == 'array_record':
    return _write_array_record(_to_json(key, value) for key, value in pairs)
  return _write_parquet(list(pairs))


def decode(content: bytes, path: str) -> Iterator[Pair]:
  """The pairs of a file's contents; its extension tells the format."""
  split: dict[str, Callable[[bytes], Iterable[Pair]]] = {
    'jsonl': lambda data: map(_from_json, data.splitlines()),
    'tfrecord': lambda data: map(_from_json, _records.split(data, source=path)),
    'array_record': lambda data: map(_from_json, _read_array_record(data)),
    'parquet': _read_parquet,
  }
  if _extension(path) not in split:
    raise errors.ReportingError(
      f'{path} must end in one of {FORMATS} to be read as pairs.'
    )
  try:
    yield from split[_extension(path)](content)
  except (ValueError, KeyError, TypeError) as error:
    raise errors.ReportingError(f'{path} holds no pairs: {error}') from error


def _to_json(key: str, value: Any) -> bytes:
  return _jsonable.dumps({'key': key, 'value': value}).encode()


def _from_json(record: bytes) -> Pair:
  fields = json.loads(record)
  return fields['key'], fields['value']


def _extension(path: str) -> str:
  return fs.base_name(path).rpartition('.')[2]


def _matching(pattern: str) -> list[str]:
  if not fs.is_remote(pattern):
    paths = globs.glob(pattern)
  else:
    import fnmatch

    directory, name = fs.parent_dir(pattern), fs.base_name(pattern)
    paths = [
      fs.join(directory, found)
      for found in fs.for_path(directory).list_dir(directory)
      if fnmatch.fnmatchcase(found, name)
    ]
  return sorted(paths, key=_shard_order)


def _shard_order(path: str) -> tuple[str, int, str]:
  """Shard 10 comes after shard 9."""
  match = _SHARD.match(path)
  return (match[1], int(match[2]), path) if match else (path, 0, path)


def _pyarrow() -> Any:
  try:
    importlib.import_module('pyarrow.parquet')
    return importlib.import_module('pyarrow')
  except ModuleNotFoundError as error:
    raise errors.ConfigError(
      "Decode outputs as parquet need pyarrow: pip install 'paxlike[parquet]'."
      ' Or use --set decode.format=jsonl.'
    ) from error


def _write_parquet(pairs: list[Pair]) -> bytes:
  pyarrow = _pyarrow()
  columns = {
    'key': pyarrow.array([key for key, _ in pairs], pyarrow.string()),
    'value': pyarrow.array(
      [_jsonable.dumps(value) for _, value in pairs], pyarrow.string()
    ),
  }
  sink = pyarrow.BufferOutputStream()
  pyarrow.parquet.write_table(pyarrow.table(columns), sink)
  return sink.getvalue().to_pybytes()


def _read_parquet(content: bytes) -> Iterator[Pair]:
  pyarrow = _pyarrow()
  table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
  for row in table.to_pylist():
    yield row['key'], json.loads(row['value'])


def _array_record_module() -> Any:
  try:
    return importlib.import_module('array_record.python.array_record_module')
  except ModuleNotFoundError as error:
    raise errors.ConfigError(
      'Decode outputs as array_record need array-record: pip install '
      "'paxlike[array-record]'. Or use --set decode.format=jsonl."
    ) from error


def _write_array_record(records: Iterable[bytes]) -> bytes:
  module = _array_record_module()
  # Its writer takes the name of a local file alone.
  with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, 'pairs')
    writer = module.ArrayRecordWriter(path, 'group_size:1')
    for record in records:
      writer.write(record)
    writer.close()
    return fs.LOCAL.read_bytes(path)


def _read_array_record(content: bytes) -> list[bytes]:
  module = _array_record_module()
  with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, 'pairs')
    fs.LOCAL.write_new(path, content)
    reader = module.ArrayRecordReader(path)
    records = reader.read_all() if reader.num_records() else []
    reader.close()
    return records
