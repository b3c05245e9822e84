"""A state in pieces, one a process, in the checkpoint's own format.

What elastic snapshots are made of: each process stages its unique shards into
memory that it brings itself (a file in shared memory, say), without meeting
the others; any mesh later reads them all together, wherever they lie by then.
A piece is a data file, its index, MANIFEST and the items; what tells a set of
pieces apart from another is the attempt id that its processes agree on.
"""

import base64
import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paxlike.checkpoint import (
  _boxes,
  _integrity,
  _layout,
  _manifest,
  _restore,
  _state,
)
from paxlike.checkpoint._stores import plans, sharded, sharded_reader
from paxlike.core import fs
from paxlike.protos import checkpoint_pb2 as pb

ITEMS = 'items'
# So that a piece is one data file, and its host memory that file's image.
_PART_BYTES = 1 << 44


class Cutter:
  """Copies pieces of states that all look alike; the plan is made once."""

  def __init__(self, state: Any, *, process: int):
    self._process = process
    apart = _state.take_apart(state)
    self._layouts = plans.layouts_of(apart)
    self._plan = plans.make_plan(
      apart, self._layouts, process=process, part_bytes=_PART_BYTES
    )
    self._data_name = _layout.data_name(process, 0)

  @property
  def data_bytes(self) -> int:
    """Length of the data file; 0 if other processes hold everything."""
    return self._plan.image_bytes

  @property
  def data_name(self) -> str:
    """Name of the data file."""
    return self._data_name

  def copy(self, state: Any, memory: np.ndarray, *, step: int) -> 'Copy':
    """Copies this process's part of a state; then it may change or vanish.

    Args:
      state: Like the one that the cutter was made for.
      memory: `data_bytes` of shared memory, which are the data file.
      step: Completed updates.

    Returns:
      What is to be made whole, on any thread, before it is a piece.
    """
    apart = _state.take_apart(state)
    staged = sharded.Staged(
      self._plan, plans.shard_values(apart, self._plan), memory, step=step
    )
    staged.fill()
    # What is kept is what the state is, and none of its arrays.
    kind = dataclasses.replace(apart, values=())
    return Copy(
      process=self._process,
      step=step,
      state=kind,
      layouts=self._layouts,
      staged=staged,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copy:
  """A part of a state in shared memory that says not yet what it is.

  Attributes:
    process: Whose.
    step: Completed updates.
    state: What the state is, without its values.
    layouts: How its arrays are cut.
    staged: The bytes.
  """

  process: int
  step: int
  state: _state.State
  layouts: Sequence[_boxes.Layout]
  staged: sharded.Staged

  def write(
    self, directory: str, *, attempt: bytes, items: Mapping[str, Any]
  ) -> str:
    """Makes the sums and says what the bytes are; it is whole on return.

    Args:
      directory: Where index, manifest and items go. The data file is there
        already: the memory that was copied to.
      attempt: 16 bytes, the same on all processes and for no other piece.
      items: Further values as JSON has them.

    Returns:
      Names and sums of the files, for `read`.
    """
    files = self.staged.write(
      _InPlace(), directory, process=self.process, attempt=attempt, tag=''
    )
    manifest = _manifest.build(
      step=self.step,
      attempt=attempt,
      kind='GDA',
      timestamp_s=0.0,
      state=self.state,
      layouts=self.layouts,
      files=[files],
      items=(),
      metrics={},
    )
    place = _InPlace()
    place.write_new(
      fs.join(directory, _layout.MANIFEST), _manifest.pack(manifest)
    )
    packed = _integrity.pack(
      json.dumps(dict(items)).encode(),
      kind=_integrity.Kind.ITEM,
      step=self.step,
      attempt=attempt,
    )
    place.write_new(fs.join(directory, ITEMS), packed)
    return base64.b64encode(files.SerializeToString()).decode()


def read(
  target: Any,
  files: Sequence[str],
  *,
  file_system: fs.FileSystem,
  directory: str,
) -> _restore.Restored:
  """Reads what one process needs of a state in pieces.

  Args:
    target: Nested `jax.ShapeDtypeStruct` with `.sharding`.
    files: What `Copy.write` returned on each process, in any order.
    file_system: Serves the files of all pieces, and MANIFEST and the items of
      any one, under `directory`.
    directory: Any name.

  Raises:
    CheckpointDamagedError: Bytes are not those that were written, or pieces
      are missing.
    RestoreMismatchError: The state does not fit.
  """
  manifest = _manifest.parse(
    file_system.read_bytes(fs.join(directory, _layout.MANIFEST)),
    path=_layout.MANIFEST,
  )
  del manifest.files[:]
  for text in files:
    manifest.files.append(pb.ProcessFiles.FromString(base64.b64decode(text)))
  items = _integrity.unpack(
    file_system.read_bytes(fs.join(directory, ITEMS)),
    kind=_integrity.Kind.ITEM,
    path=ITEMS,
    step=manifest.step,
    attempt=manifest.attempt,
  )
  found = _restore.match(
    target, manifest, _restore.Selection(), where='the snapshot'
  )
  with contextlib.closing(
    sharded_reader.ShardedReader(file_system, directory, manifest)
  ) as reader:
    state = _restore.fill(target, found, manifest, reader)
    return _restore.Restored(
      manifest.step, state, json.loads(items), found.report
    )


class _Kept:
  """A writer of a file whose memory is filled by somebody else."""

  def write_at(self, offset: int, data: memoryview) -> None:
    """The bytes are there already."""

  def finish(self) -> None:
    """Shared memory needs no sync."""

  def abort(self) -> None:
    """Nothing to undo."""


class _InPlace(fs.LocalFileSystem):
  """Shared memory: data files are memory, other files need no sync."""

  num_threads = 1

  def create(self, path: str, size_bytes: int) -> fs.Writer:
    del path, size_bytes
    return _Kept()

  def write_new(self, path: str, data: bytes) -> None:
    with open(path, 'wb') as file:
      file.write(data)
