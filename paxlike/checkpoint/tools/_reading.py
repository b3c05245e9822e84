"""The arrays and items of one committed step, one at a time."""

import dataclasses
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from paxlike.checkpoint import _boxes, _integrity, _manifest, _state, _stores
from paxlike.checkpoint._stores import requests
from paxlike.checkpoint.tools import _places
from paxlike.core import errors, fs
from paxlike.protos import checkpoint_pb2 as pb


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A place in the state and what is there.

  Attributes:
    name: Of the leaf.
    value: `_state.SavedArray`, `_state.SavedScalar` or `trees.Empty`.
  """

  name: str
  value: Any


class OpenStep:
  """A committed step, open for reading; every byte read is checked."""

  def __init__(self, file_system: fs.FileSystem, path: str):
    self.path = path
    self.file_system = file_system
    self.manifest = _manifest.read(file_system, path)
    self.arrays = [_state.info_from_proto(a) for a in self.manifest.arrays]
    self._readers: dict[int, _stores.Reader] = {}
    self._lock = threading.Lock()

  def __enter__(self) -> 'OpenStep':
    return self

  def __exit__(self, *error: object) -> None:
    for reader in self._readers.values():
      reader.close()
    self._readers.clear()

  @property
  def step(self) -> int:
    """Its number."""
    return self.manifest.step

  @property
  def processes(self) -> list[int]:
    """The processes whose states differ; [0] where all have the same."""
    if self.manifest.type == 'MULTI_HOST_FLAX':
      return sorted(files.process for files in self.manifest.files)
    return [0]

  def leaves(self) -> dict[str, Any]:
    """Every leaf by name: `SavedArray`, `SavedScalar` or `Empty`."""
    return _state.leaves_of(self.manifest.tree)

  def layout_of(self, number: int) -> pb.Layout:
    """How an array is cut."""
    return self.manifest.layouts[self.manifest.arrays[number].layout]

  def read(self, number: int, *, process: int = 0) -> np.ndarray:
    """The whole of one array, in memory of its own.

    Raises:
      CheckpointDamagedError: Its bytes are not those that were written.
    """
    info = self.arrays[number]
    request = requests.make(number, _boxes.whole(info.shape), info)
    if request.box.size:
      self._reader(process).read([request])
    return request.out

  def _reader(self, process: int) -> _stores.Reader:
    with self._lock:
      if process not in self._readers:
        self._readers[process] = _stores.open_step(
          self.file_system, self.path, self.manifest, process=process
        )
      return self._readers[process]

  def items(self) -> Iterator[tuple[pb.Item, bytes]]:
    """The further items with their checked bytes."""
    for item in self.manifest.items:
      yield item, self.read_item(item)

  def read_item(self, item: pb.Item) -> bytes:
    """The checked bytes of one item."""
    return requests.read_framed(
      self.file_system,
      fs.join(self.path, item.file),
      kind=_integrity.Kind.ITEM,
      manifest=self.manifest,
      size=item.size,
      crc=item.crc32c,
    )


def open_at(path: str | os.PathLike[str], step: int | None = None) -> OpenStep:
  """Opens a step: the path's own, the given one, or the newest.

  Raises:
    UsageError: The path leads to no checkpoints.
    CheckpointNotFoundError: There is no such complete step.
    CheckpointDamagedError: Its manifest is not what was written.
  """
  place = _places.find(path)
  return OpenStep(place.file_system, place.pick(step))


def check_process(opened: OpenStep, process: int) -> None:
  """Refuses a process that wrote no state of its own.

  Raises:
    UsageError: It did not; the message says which did.
  """
  if process not in opened.processes:
    raise errors.UsageError(
      f'{opened.path} holds no state of process {process}, only of '
      f'{opened.processes}.'
    )
