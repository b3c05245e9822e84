"""One committed step, opened by itself: no mesh, no manager, no program.

What the tools, the converters and any other reader look through.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from paxlike.checkpoint import (
  _boxes,
  _history,
  _integrity,
  _layout,
  _manifest,
  _restoring,
  _state,
  _stores,
)
from paxlike.checkpoint._stores import flax_file, requests, sharded_reader
from paxlike.core import errors, fs
from paxlike.protos import checkpoint_pb2 as pb


@dataclasses.dataclass(frozen=True)
class SavedArray:
  """What a step holds of one array.

  Attributes:
    name: Its name in the state.
    dtype: NumPy's name of its elements' type.
    shape: Global shape.
    num_bytes: Of the whole array.
    sharding: The partition that it was saved under, '' if whole.
    num_boxes: In how many pieces it lies in the files.
    prng_impl: Of a typed PRNG key, whose key data this is; else ''.
  """

  name: str
  dtype: str
  shape: tuple[int, ...]
  num_bytes: int
  sharding: str
  num_boxes: int
  prng_impl: str


class StepReader:
  """An open step. Use it in a `with` block.

  Attributes:
    path: The step's directory.
    step: Its number.
    type: 'GDA', 'FLAX' or 'MULTI_HOST_FLAX'.
    timestamp_s: When it was saved, seconds since 1970 UTC.
    process_count: How many processes wrote it.
    versions: Of the software that wrote it.
    metrics: What it was saved with.
  """

  def __init__(
    self,
    path: str,
    *,
    file_system: fs.FileSystem | None = None,
    process: int = 0,
    verify: bool = True,
  ):
    """Opens a step.

    Args:
      path: The directory of one step.
      file_system: What serves the path.
      process: Whose state to read of a MULTI_HOST_FLAX step.
      verify: Check what is read.

    Raises:
      CheckpointNotFoundError: There is no complete step.
      CheckpointDamagedError: Its manifest is damaged.
    """
    self.path = fs.expand(path)
    self._fs = file_system or fs.for_path(self.path)
    self._manifest = _manifest.read(self._fs, self.path)
    self._reader = _stores.open_step(
      self._fs, self.path, self._manifest, process=process, verify=verify
    )
    self._infos = _state.infos_of(self._manifest)
    self.step: int = self._manifest.step
    self.type: str = self._manifest.type
    self.timestamp_s: float = self._manifest.timestamp_sec
    self.process_count: int = self._manifest.process_count
    self.versions = dict(self._manifest.versions)
    self.metrics = dict(self._manifest.metrics)

  def __enter__(self) -> 'StepReader':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()

  def close(self) -> None:
    """Closes all files."""
    self._reader.close()

  @functools.cached_property
  def arrays(self) -> dict[str, SavedArray]:
    """Every array by name, in the order of the state; nothing is read."""
    found = {}
    for info, record in zip(self._infos, self._manifest.arrays, strict=True):
      layout = self._manifest.layouts[record.layout]
      found[info.name] = SavedArray(
        name=info.name,
        dtype=info.dtype.name,
        shape=info.shape,
        num_bytes=info.num_bytes,
        sharding=layout.text,
        num_boxes=len(layout.owners),
        prng_impl=info.prng_impl,
      )
    return found

  @functools.cached_property
  def scalars(self) -> dict[str, Any]:
    """Every Python number, text and bytes of the state by name."""
    leaves = _state.leaves_of(self._manifest.tree)
    return {
      name: leaf.value
      for name, leaf in leaves.items()
      if isinstance(leaf, _state.SavedScalar)
    }

  @functools.cached_property
  def empties(self) -> dict[str, str]:
    """Names and types of None and of empty containers."""
    leaves = _state.leaves_of(self._manifest.tree)
    return {
      name: leaf.type_name
      for name, leaf in leaves.items()
      if not isinstance(leaf, (_state.SavedScalar, _state.SavedArray))
    }

  @property
  def structure(self) -> str:
    """The structure of the state as text."""
    return flax_file.describe_tree(self._manifest.tree)

  @property
  def num_bytes(self) -> int:
    """Bytes of all files of the step."""
    return self._fs.tree_bytes(self.path)

  def read(self, name: str) -> np.ndarray:
    """One array, whole; key data for PRNG keys.

    Raises:
      KeyError: There is no such array.
      CheckpointDamagedError: Its bytes are not those that were written.
    """
    numbers = {info.name: i for i, info in enumerate(self._infos)}
    number = numbers[name]
    info = self._infos[number]
    request = requests.make(number, _boxes.whole(info.shape), info)
    if request.box.size:
      self._reader.read([request])
    return request.out

  def read_state(self) -> Any:
    """All of it, in plain dicts, lists and tuples of NumPy arrays."""
    return _restoring.read_all(self._manifest, self._reader)[0]

  @property
  def item_names(self) -> list[str]:
    """Names of the further items."""
    return [item.name for item in self._manifest.items]

  def read_item(self, name: str) -> Any:
    """One further item; KeyError if there is none."""
    for item in self._manifest.items:
      if item.name == name:
        return _restoring.read_item(self._fs, self.path, self._manifest, item)
    raise KeyError(name)

  def check(self) -> list[str]:
    """Reads every byte of the step and tells each damage; [] if there is none."""
    found: list[str] = []
    for item in self._manifest.items:
      try:
        _restoring.read_item(self._fs, self.path, self._manifest, item)
      except errors.CheckpointDamagedError as e:
        found.append(str(e))
    if isinstance(self._reader, sharded_reader.ShardedReader):
      return found + self._reader.check()
    return found + self._check_flax_files()

  def _check_flax_files(self) -> list[str]:
    found = []
    for files in self._manifest.files:
      try:
        _read_flax(self._fs, self.path, self._manifest, files)
      except errors.CheckpointDamagedError as e:
        found.append(str(e))
    return found


def _read_flax(
  file_system: fs.FileSystem,
  path: str,
  manifest: pb.Manifest,
  files: pb.ProcessFiles,
) -> bytes:
  return requests.read_framed(
    file_system,
    fs.join(path, files.index_file),
    kind=_integrity.Kind.MSGPACK,
    manifest=manifest,
    size=files.index_size,
    crc=files.index_crc32c,
  )


def find_step(
  path: str,
  step: int | None = None,
  *,
  file_system: fs.FileSystem | None = None,
) -> str:
  """The directory of a step, from whatever directory was named.

  Args:
    path: A step's directory, the directory of all steps, or the job's.
    step: Which one, where `path` holds several; None is the newest.
    file_system: What serves the path.

  Raises:
    CheckpointNotFoundError: There is none.
  """
  path = fs.expand(path)
  file_system = file_system or fs.for_path(path)
  if file_system.exists(fs.join(path, _layout.MANIFEST)):
    return path
  directory = find_directory(path, file_system=file_system)
  names = _history.committed_names(file_system, directory)
  if not names:
    raise errors.CheckpointNotFoundError(
      f'There is no complete checkpoint in {directory}.'
    )
  chosen = max(names) if step is None else step
  if chosen not in names:
    raise errors.CheckpointNotFoundError(
      f'There is no step {chosen} in {directory}. It has {list(names)}.'
    )
  return fs.join(directory, names[chosen])


def find_directory(
  path: str, *, file_system: fs.FileSystem | None = None
) -> str:
  """The directory of all steps, from itself or from the job's directory.

  Raises:
    CheckpointNotFoundError: There is no such directory.
  """
  path = fs.expand(path)
  file_system = file_system or fs.for_path(path)
  below = fs.join(path, 'checkpoints')
  if file_system.is_dir(below):
    return below
  if not file_system.is_dir(path):
    raise errors.CheckpointNotFoundError(
      _layout.explain_bad_directory(file_system, path)
    )
  return path
