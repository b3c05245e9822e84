"""The safetensors format: a JSON header, then every array's bytes.

Written and read here, since the format is small and its own NumPy reader
knows no bfloat16. The outline of the state goes into the metadata, so that the
way back is exact; other readers see plain arrays under the leaves' names.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401 (names like 'bfloat16' become NumPy dtypes)
import numpy as np

from paxlike.checkpoint import _staging
from paxlike.checkpoint.tools import _bundle
from paxlike.core import errors, fs

_LENGTH = struct.Struct('<Q')
_MAX_HEADER_BYTES = 100_000_000
_METADATA = '__metadata__'
_OUTLINE = 'paxlike.outline'
_CODES = {
  'bool': 'BOOL',
  'uint8': 'U8',
  'int8': 'I8',
  'uint16': 'U16',
  'int16': 'I16',
  'uint32': 'U32',
  'int32': 'I32',
  'uint64': 'U64',
  'int64': 'I64',
  'float16': 'F16',
  'bfloat16': 'BF16',
  'float32': 'F32',
  'float64': 'F64',
  'float8_e4m3fn': 'F8_E4M3',
  'float8_e5m2': 'F8_E5M2',
  'float8_e8m0fnu': 'F8_E8M0',
  'complex64': 'C64',
}
_DTYPES = {code: name for name, code in _CODES.items()}


def save(
  bundle: _bundle.Bundle, file_system: fs.FileSystem, path: str
) -> tuple[str, ...]:
  """Writes a state as one file, an array at a time; the file appears whole.

  Returns:
    What the user should know.
  """
  bundle.refuse(
    'safetensors',
    {
      info.name: info.dtype.name
      for info in bundle.arrays
      if info.dtype.name not in _CODES
    },
  )
  header: dict[str, Any] = {_METADATA: {_OUTLINE: bundle.outline()}}
  end = 0
  for info in bundle.arrays:
    header[info.name] = {
      'dtype': _CODES[info.dtype.name],
      'shape': list(info.shape),
      'data_offsets': [end, end + info.num_bytes],
    }
    end += info.num_bytes
  text = json.dumps(header).encode()
  text += b' ' * (-len(text) % 8)
  begin = _LENGTH.size + len(text)
  temporary = path if not file_system.atomic_rename else f'{path}.tmp'
  file_system.remove(temporary)
  writer = file_system.create(temporary, begin + end)
  try:
    writer.write_at(0, memoryview(_LENGTH.pack(len(text)) + text))
    for i, info in enumerate(bundle.arrays):
      if info.num_bytes:
        flat = _staging.flat_bytes(bundle.read(i))
        writer.write_at(begin, memoryview(flat.data))
      begin += info.num_bytes
    writer.finish()
  except BaseException:
    writer.abort()
    file_system.remove(temporary)
    raise
  if temporary != path:
    file_system.rename(temporary, path)
    file_system.sync_dir(fs.parent_dir(path))
  return ()


def load(file_system: fs.FileSystem, path: str) -> _bundle.Bundle:
  """Opens a file; its arrays are read when they are asked for.

  Raises:
    CheckpointDamagedError: It is not a whole safetensors file.
  """
  with fs.reading(file_system, path) as reader:
    header, begin = _read_header(reader, path)
  metadata = header.pop(_METADATA, {})
  entries = {name: _Entry(entry, path) for name, entry in header.items()}

  def read(name: str) -> np.ndarray:
    if name not in entries:
      raise errors.CheckpointDamagedError(f'{path} holds no array {name!r}.')
    entry = entries[name]
    values = np.empty(entry.shape, entry.dtype)
    if values.size:
      with fs.reading(file_system, path) as reader:
        into = memoryview(values.reshape(-1).view(np.uint8).data)
        if reader.read_into(begin + entry.first, into) != len(into):
          raise errors.CheckpointDamagedError(
            f'{path} is damaged: it ends within array {name!r}.'
          )
    return values

  if _OUTLINE in metadata:
    return _bundle.from_outline(metadata[_OUTLINE], read, path=path)
  return _bundle.from_names(entries, read)


def _read_header(reader: fs.Reader, path: str) -> tuple[dict[str, Any], int]:
  raw = bytearray(_LENGTH.size)
  reader.read_into(0, memoryview(raw))
  (length,) = _LENGTH.unpack(raw)
  end = _LENGTH.size + length
  if length > _MAX_HEADER_BYTES or end > reader.size:
    raise errors.CheckpointDamagedError(
      f'{path} is no safetensors file: its header would have {length} bytes.'
    )
  text = bytearray(length)
  reader.read_into(_LENGTH.size, memoryview(text))
  try:
    header = json.loads(bytes(text))
    if not isinstance(header, dict):
      raise TypeError(f'a {type(header).__name__} instead of an object')
  except (ValueError, TypeError) as e:
    raise errors.CheckpointDamagedError(
      f'{path} is no safetensors file: its header does not read: {e}.'
    ) from e
  return header, end


class _Entry:
  """One array of a header."""

  def __init__(self, entry: Mapping[str, Any], path: str):
    try:
      self.dtype = np.dtype(_DTYPES[entry['dtype']])
      self.shape = tuple(int(n) for n in entry['shape'])
      self.first, last = entry['data_offsets']
      size = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
      if last - self.first != size:
        raise ValueError(f'{last - self.first} bytes instead of {size}')
    except (KeyError, TypeError, ValueError) as e:
      raise errors.CheckpointDamagedError(
        f'{path} has an array that cannot be read: {entry}: {e!r}.'
      ) from e
