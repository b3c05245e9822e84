"""What a reader is asked for, and files that prove themselves."""

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np

from paxlike.checkpoint import _boxes, _integrity, _memory, _state
from paxlike.core import disks, errors, fs
from paxlike.protos import checkpoint_pb2 as pb

# Less than this is left to NumPy.
_LEAST_OWN_BYTES = 256 << 10


class VanishedError(errors.CheckpointDamagedError):
  """A file that the manifest names is gone: lost, or just being deleted."""


@dataclasses.dataclass(frozen=True)
class Request:
  """A box of an array and the memory that it goes to.

  Attributes:
    array: Number of the array in the manifest.
    box: Which part of it.
    out: C-order array of the box's shape and the saved dtype.
  """

  array: int
  box: _boxes.Box
  out: np.ndarray


def make(
  array: int,
  box: _boxes.Box,
  info: _state.ArrayInfo,
  slabs: _memory.Slabs | None = None,
) -> Request:
  """A request with fresh memory that nothing else will ever use.

  Args:
    array: Number of the array in the manifest.
    box: Which part of it.
    info: What the array is.
    slabs: Where many requests of one restore take their memory from.
  """
  num_bytes = box.size * info.dtype.itemsize
  if num_bytes < _LEAST_OWN_BYTES:
    memory = np.empty(num_bytes, np.uint8)
  elif slabs is None:
    # NumPy would ask for huge pages.
    memory = _memory.page_aligned(num_bytes, is_huge=False)
  else:
    memory = slabs.take(num_bytes)
  out = memory[:num_bytes].view(info.dtype).reshape(box.shape)
  return Request(array, box, out)


def open_file(file_system: fs.FileSystem, path: str) -> fs.Reader:
  """Opens a file that the manifest names; says so where it is gone."""
  try:
    return file_system.open_read(path)
  except FileNotFoundError as e:
    raise VanishedError(f'{path} is missing.') from e
  except PermissionError as e:
    raise disks.unreadable(path, e) from e


def read_framed(
  file_system: fs.FileSystem,
  path: str,
  *,
  kind: _integrity.Kind,
  manifest: pb.Manifest,
  size: int,
  crc: int,
  verify: bool = True,
) -> bytes:
  """Reads a framed file that a manifest names and checks all of it.

  Without `verify` only its length and whose it is are checked, not its bytes.

  Raises:
    CheckpointDamagedError: It is not the file that was committed.
    CheckpointAccessError: This user may not read it.
  """
  with telling(path):
    data = file_system.read_bytes(path)
  check_size(path, len(data), size)
  payload = _integrity.unpack(
    data,
    kind=kind,
    path=path,
    step=manifest.step,
    attempt=manifest.attempt,
    verify=verify,
  )
  if verify:
    check_committed(path, _integrity.crc32c(data), crc)
  return payload


@contextlib.contextmanager
def telling(path: str) -> Iterator[None]:
  """Says what it means that a file which the manifest names is not read."""
  try:
    yield
  except FileNotFoundError as e:
    raise VanishedError(f'{path} is missing.') from e
  except PermissionError as e:
    raise disks.unreadable(path, e) from e
  except OSError as e:
    raise errors.CheckpointDamagedError(f'{path} cannot be read: {e}.') from e


def check_size(path: str, found: int, wanted: int) -> None:
  """Raises CheckpointDamagedError unless a file is as long as it was."""
  if found != wanted:
    raise errors.CheckpointDamagedError(
      f'{path} is damaged: it has {found} bytes, not {wanted}.'
    )


def check_committed(path: str, found_crc: int, wanted_crc: int) -> None:
  """Raises CheckpointDamagedError unless the manifest means this file."""
  if found_crc != wanted_crc:
    raise errors.CheckpointDamagedError(
      f'{path} is damaged: it is whole but not the file that was committed.'
    )
