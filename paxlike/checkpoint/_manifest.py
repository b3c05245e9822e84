"""MANIFEST: the one file that makes a step exist and says what is in it."""

import functools
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from absl import logging
from google.protobuf import message

from paxlike.checkpoint import _boxes, _integrity, _layout, _state
from paxlike.core import disks, errors, fs
from paxlike.protos import checkpoint_pb2 as pb

_PACKAGES = ('paxlike', 'jax', 'jaxlib', 'numpy', 'flax', 'optax', 'ml_dtypes')


@functools.cache
def versions() -> dict[str, str]:
  """Versions of the software that writes, for the record."""
  found = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      found[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
      continue
  return found


def build(
  *,
  step: int,
  attempt: bytes,
  kind: str,
  timestamp_s: float,
  state: _state.State,
  layouts: Sequence[_boxes.Layout],
  files: Sequence[pb.ProcessFiles],
  items: Sequence[pb.Item],
  metrics: Mapping[str, float],
) -> pb.Manifest:
  """Puts together what process 0 writes once all files are durable.

  Layouts that are equal are written once: a model has hundreds of arrays and
  a handful of shardings, and a layout names a process for each box.
  """
  numbers: dict[Any, int] = {}
  unique: list[_boxes.Layout] = []
  arrays = []
  for info, layout in zip(state.arrays, layouts, strict=True):
    key = (
      layout.grid,
      layout.owners,
      layout.text,
      None if layout.grid is not None else layout.boxes,
    )
    if key not in numbers:
      numbers[key] = len(unique)
      unique.append(layout)
    arrays.append(info.to_proto(layout=numbers[key]))
  return pb.Manifest(
    format=_integrity.FORMAT,
    step=step,
    attempt=attempt,
    type=kind,
    timestamp_sec=timestamp_s,
    process_count=len(files),
    items=items,
    layouts=[layout.to_proto() for layout in unique],
    arrays=arrays,
    tree=state.tree,
    files=files,
    versions=versions(),
    metrics=dict(metrics),
  )


def pack(manifest: pb.Manifest) -> bytes:
  """The bytes of the file."""
  return _integrity.pack(
    manifest.SerializeToString(deterministic=True),
    kind=_integrity.Kind.MANIFEST,
    step=manifest.step,
    attempt=manifest.attempt,
  )


def parse(data: bytes, *, path: str) -> pb.Manifest:
  """Reads the bytes of the file.

  Raises:
    CheckpointDamagedError: They are not what was written.
  """
  payload = _integrity.unpack(data, kind=_integrity.Kind.MANIFEST, path=path)
  manifest = pb.Manifest()
  try:
    manifest.ParseFromString(payload)
  except message.DecodeError as e:
    raise errors.CheckpointDamagedError(f'{path} is damaged: {e}.') from e
  if manifest.format != _integrity.FORMAT:
    raise errors.CheckpointDamagedError(
      f'{path} has format {manifest.format}; this version of paxlike reads '
      f'{_integrity.FORMAT}.'
    )
  return manifest


def read(file_system: fs.FileSystem, directory: str) -> pb.Manifest:
  """Reads the manifest of one step.

  Raises:
    CheckpointNotFoundError: There is none, so there is no step.
    CheckpointDamagedError: It is not what was written, or belongs to a step
      of another number than the directory says.
  """
  return parse_in(read_raw(file_system, directory), directory)


def read_raw(file_system: fs.FileSystem, directory: str) -> bytes:
  """The unchecked bytes of the manifest of one step."""
  path = fs.join(directory, _layout.MANIFEST)
  try:
    return file_system.read_bytes(path)
  except FileNotFoundError as e:
    raise errors.CheckpointNotFoundError(
      f'{directory} holds no complete checkpoint: there is no {path}.'
    ) from e
  except PermissionError as e:
    raise disks.unreadable(path, e) from e
  except IsADirectoryError:
    # As good as empty: whoever looks into it finds damage, as in any other.
    logging.warning('%s is a directory.', path)
    return b''


def parse_in(data: bytes, directory: str) -> pb.Manifest:
  """Checks the bytes of a manifest that came from `directory`."""
  path = fs.join(directory, _layout.MANIFEST)
  manifest = parse(data, path=path)
  step = _layout.parse_step(fs.base_name(directory))
  if step is not None and manifest.step != step:
    raise errors.CheckpointDamagedError(
      f'{path} is damaged: it belongs to step {manifest.step}, not {step}.'
    )
  return manifest
