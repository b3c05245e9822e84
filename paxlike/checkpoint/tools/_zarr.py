"""Zarr 3: a group of groups, one directory an array.

Every chunk carries a crc32c and is written even where it is all zeros, since a
chunk that is missing reads as zeros and nobody would know. The outline of the
state is an attribute of the outermost group.
"""

import json
import os
from typing import Any

import numpy as np

from paxlike.checkpoint.tools import _bundle
from paxlike.core import errors, fs

_GROUP = 'zarr.json'
_OUTLINE = 'paxlike.outline'
_PATHS = 'paxlike.paths'
_CHUNK_BYTES = 64 << 20
_CODECS = [
  {'name': 'bytes', 'configuration': {'endian': 'little'}},
  {'name': 'crc32c'},
]


def is_zarr(file_system: fs.FileSystem, path: str) -> bool:
  """Whether a directory is a zarr 3 group or array."""
  return file_system.exists(fs.join(path, _GROUP))


def save(
  bundle: _bundle.Bundle, file_system: fs.FileSystem, path: str
) -> tuple[str, ...]:
  """Writes a state as a directory, an array at a time; it appears whole.

  Returns:
    What the user should know.
  """
  import tensorstore as ts

  bundle.refuse('zarr3', _unknown_to(ts, bundle))
  paths = _paths_of(bundle)
  temporary = f'{path}.tmp'
  file_system.remove_tree(temporary)
  file_system.make_dirs(temporary)
  attributes = {_OUTLINE: bundle.outline(), _PATHS: paths}
  _write_group(file_system, temporary, attributes)
  groups = {
    '/'.join(parts[:n])
    for parts in (p.split('/') for p in paths.values())
    for n in range(1, len(parts))
  }
  for group in sorted(groups):
    below = fs.join(temporary, group)
    file_system.make_dirs(below)
    _write_group(file_system, below, {})
  for i, info in enumerate(bundle.arrays):
    spec = _spec(fs.join(temporary, paths[info.name]))
    spec['metadata'] = {
      'shape': list(info.shape),
      'chunk_grid': {
        'name': 'regular',
        'configuration': {'chunk_shape': _chunk_shape(info)},
      },
      'codecs': _CODECS,
    }
    store = ts.open(
      spec,
      create=True,
      dtype=ts.dtype(info.dtype),
      open=True,
    ).result()
    store.write(bundle.read(i)).result()
  file_system.rename(temporary, path)
  file_system.sync_dir(fs.parent_dir(path))
  return ()


def _unknown_to(ts: Any, bundle: _bundle.Bundle) -> dict[str, str]:
  unknown = {}
  for info in bundle.arrays:
    try:
      ts.dtype(info.dtype)
    except (TypeError, ValueError):
      unknown[info.name] = info.dtype.name
  return unknown


def _paths_of(bundle: _bundle.Bundle) -> dict[str, str]:
  """Where each array lies: its name, but for parts that zarr reserves."""
  paths = {}
  for info in bundle.arrays:
    parts = [
      f'%{part}' if part == _GROUP or part.startswith('__') else part
      for part in (info.name or 'state').split('/')
    ]
    paths[info.name] = '/'.join(parts)
  return paths


def _write_group(
  file_system: fs.FileSystem, path: str, attributes: dict[str, Any]
) -> None:
  content = {
    'zarr_format': 3,
    'node_type': 'group',
    'attributes': attributes,
  }
  file_system.write_new(fs.join(path, _GROUP), json.dumps(content).encode())


def _spec(path: str) -> dict[str, Any]:
  return {
    'driver': 'zarr3',
    'kvstore': {'driver': 'file', 'path': path},
    'store_data_equal_to_fill_value': True,
    'fill_missing_data_reads': False,
  }


def _chunk_shape(info: Any) -> list[int]:
  """Whole rows of at most 64 MiB, cut along the outermost dimensions."""
  chunk = list(info.shape)
  size = info.num_bytes
  for axis in range(len(chunk)):
    if size <= _CHUNK_BYTES:
      break
    row = size // chunk[axis]
    chunk[axis] = max(1, _CHUNK_BYTES // row)
    size = row * chunk[axis]
  return [max(1, n) for n in chunk]


def load(file_system: fs.FileSystem, path: str) -> _bundle.Bundle:
  """Opens a group, or a single array; arrays are read when asked for.

  Raises:
    CheckpointDamagedError: It is no zarr 3 hierarchy.
  """
  attributes = _read_node(file_system, path).get('attributes') or {}
  stores: dict[str, Any] = {}

  def store(name: str) -> Any:
    if name not in stores:
      where = fs.join(path, *name.split('/')) if name else path
      stores[name] = _open(where)
    return stores[name]

  if _OUTLINE in attributes:
    paths = attributes.get(_PATHS, {})
    return _bundle.from_outline(
      attributes[_OUTLINE],
      lambda name: _read(store(paths.get(name, name)), name, path),
      path=path,
    )
  names = sorted(_walk(file_system, path, ''))
  like = {name or 'state': _Like(store(name)) for name in names}
  return _bundle.from_names(
    like,
    lambda name: _read(store('' if name not in names else name), name, path),
  )


class _Like:
  def __init__(self, store: Any):
    self.shape = tuple(store.shape)
    self.dtype = store.dtype.numpy_dtype


def _open(path: str) -> Any:
  import tensorstore as ts

  try:
    return ts.open(_spec(path), open=True, read=True).result()
  except (ValueError, OSError) as e:
    raise errors.CheckpointDamagedError(
      f'{path} is no zarr 3 array that can be read: {e}'
    ) from e


def _read(store: Any, name: str, path: str) -> np.ndarray:
  try:
    return np.asarray(store.read().result())
  except (ValueError, OSError) as e:
    raise errors.CheckpointDamagedError(
      f'{path} is damaged: array {name!r}: {e}'
    ) from e


def _read_node(file_system: fs.FileSystem, path: str) -> dict[str, Any]:
  file = fs.join(path, _GROUP)
  try:
    node = json.loads(file_system.read_bytes(file))
  except ValueError as e:
    raise errors.CheckpointDamagedError(f'{file} is damaged: {e}.') from e
  if not isinstance(node, dict) or node.get('zarr_format') != 3:
    raise errors.CheckpointDamagedError(f'{file} is not of zarr format 3.')
  return node


def _walk(file_system: fs.FileSystem, path: str, name: str) -> list[str]:
  """Names of all arrays below a node."""
  if _read_node(file_system, path).get('node_type') == 'array':
    return [name]
  found = []
  for child in file_system.list_dir(path):
    below = fs.join(path, child)
    if os.path.isfile(fs.join(below, _GROUP)):
      found.extend(
        _walk(file_system, below, f'{name}/{child}' if name else child)
      )
  return found
