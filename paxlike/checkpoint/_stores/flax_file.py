"""A whole state in one flax msgpack file, one a job or one a process.

The file holds {'structure': text, 'leaves': {name: array}} in a frame, so that
`flax.serialization.msgpack_restore` reads what comes after the frame's 48
bytes. For states that fit in one host's memory.
"""

from typing import Any

import numpy as np

from paxlike.checkpoint import (
  _boxes,
  _integrity,
  _layout,
  _memory,
  _staging,
  _state,
)
from paxlike.checkpoint._stores import requests
from paxlike.core import errors, fs
from paxlike.protos import checkpoint_pb2 as pb

_ALIGN = 64


def take(
  state: _state.State, arena: _staging.Arena, *, is_writer: bool
) -> np.ndarray:
  """Host memory for the copy of a state; none where nothing is written.

  Raises:
    ConfigError: It is more than the arena may hold, on some process.
    SaveError: The host has not so much.
  """
  size_bytes = sum(_memory.round_up(i.num_bytes, _ALIGN) for i in state.arrays)
  if arena.max_bytes is not None and size_bytes > arena.max_bytes:
    raise errors.ConfigError(
      f'A flax file is made of the whole state, which takes {size_bytes} '
      'bytes of host memory, and checkpoint_p.max_host_bytes allows '
      f"{arena.max_bytes}. Raise it, or set checkpoint_p.type='GDA', which "
      'copies a large state a part at a time.'
    )
  return arena.take(size_bytes if is_writer else 0)


class Staged:
  """A state being copied to host memory and then written as one file."""

  def __init__(
    self,
    state: _state.State,
    arena: _staging.Arena,
    *,
    step: int,
    process: int,
    is_per_process: bool,
  ):
    self._infos = state.arrays
    self._structure = describe_tree(state.tree)
    self._step = step
    self._process = process
    self._is_per_process = is_per_process
    self._progress = _staging.Progress()
    self._is_writer = is_per_process or process == 0
    self._values = [
      _whole_value(info, value)
      for info, value in zip(state.arrays, state.values, strict=True)
    ]
    self._memory = take(state, arena, is_writer=self._is_writer)

  def fill(self) -> None:
    """Copies every array; after it the state may change or vanish."""
    try:
      values, self._values = self._values, []
      if self._is_writer:
        for i, (out, _) in enumerate(self._views()):
          _staging.prefetch(values, i)
          out[:] = _staging.flat_bytes(values[i])
          values[i] = None
      self._progress.advance(1)
    except BaseException as e:
      self._progress.fail(e)
      raise

  def abandon(self) -> None:
    """`fill` waits for nobody."""

  def _views(self) -> list[tuple[np.ndarray, _state.ArrayInfo]]:
    found = []
    at = 0
    for info in self._infos:
      found.append((self._memory[at : at + info.num_bytes], info))
      at += _memory.round_up(info.num_bytes, _ALIGN)
    return found

  def write(
    self,
    file_system: fs.FileSystem,
    directory: str,
    *,
    process: int,
    attempt: bytes,
    tag: str,
  ) -> pb.ProcessFiles | None:
    """Writes and syncs the file of this process, if it has one."""
    from flax import serialization

    self._progress.wait_for(1)
    if not self._is_writer:
      return None
    payload = serialization.msgpack_serialize(
      {
        'structure': self._structure,
        'leaves': {
          info.name: view.view(info.dtype).reshape(info.shape)
          for view, info in self._views()
        },
      }
    )
    data = _integrity.pack(
      payload,
      kind=_integrity.Kind.MSGPACK,
      step=self._step,
      attempt=attempt,
    )
    del payload
    name = _layout.msgpack_name(
      process if self._is_per_process else None, tag=tag
    )
    path = fs.join(directory, name)
    if self._is_per_process:
      file_system.make_dirs(fs.parent_dir(path))
    file_system.write_new(path, data)
    if self._is_per_process:
      file_system.sync_dir(fs.parent_dir(path))
    return pb.ProcessFiles(
      process=process,
      index_file=name,
      index_size=len(data),
      index_crc32c=_integrity.crc32c(data),
    )


def describe_tree(node: pb.Node) -> str:
  """The structure of a state as text, for whoever reads the file alone."""
  if node.kind in ('array', 'none'):
    return '*' if node.kind == 'array' else 'None'
  if node.kind == 'scalar':
    return node.type_name
  inside = ', '.join(
    f'{key.text or key.number}: {describe_tree(child)}'
    for key, child in zip(node.keys, node.children, strict=True)
  )
  return f'{node.type_name}({inside})'


def _whole_value(info: _state.ArrayInfo, value: Any) -> Any:
  import jax

  if not isinstance(value, jax.Array) or value.is_fully_addressable:
    return value
  if value.is_fully_replicated:
    return value.addressable_data(0)
  raise errors.ConfigError(
    f'Array {info.name!r} ({info}) is spread over processes, which a flax '
    "file cannot hold. Set checkpoint_p.type='GDA'."
  )


class FlaxReader:
  """Reads boxes out of the flax file that is this process's.

  Attributes:
    bytes_read: Bytes read so far.
  """

  def __init__(
    self,
    file_system: fs.FileSystem,
    directory: str,
    manifest: pb.Manifest,
    *,
    process: int,
    verify: bool = True,
  ):
    self._fs = file_system
    self._directory = directory
    self._manifest = manifest
    self._process = process
    self._verify = verify
    self._leaves: dict[str, np.ndarray] | None = None
    self.bytes_read = 0

  def close(self) -> None:
    """Drops what was read."""
    self._leaves = None

  def _files(self) -> pb.ProcessFiles:
    by_process = {f.process: f for f in self._manifest.files}
    if self._manifest.type == 'FLAX':
      return by_process[0]
    if self._process not in by_process:
      raise errors.RestoreMismatchError(
        f'{self._directory} was written by {len(by_process)} processes, each '
        f'its own state; there is none for process {self._process}.'
      )
    return by_process[self._process]

  def leaves(self) -> dict[str, np.ndarray]:
    """All arrays of the file by name."""
    if self._leaves is None:
      from flax import serialization

      files = self._files()
      path = fs.join(self._directory, files.index_file)
      payload = requests.read_framed(
        self._fs,
        path,
        kind=_integrity.Kind.MSGPACK,
        manifest=self._manifest,
        size=files.index_size,
        crc=files.index_crc32c,
        verify=self._verify,
      )
      self.bytes_read += files.index_size
      try:
        content: Any = serialization.msgpack_restore(payload)
        self._leaves = content['leaves']
      except Exception as e:
        # Only unchecked bytes can be no msgpack.
        raise errors.CheckpointDamagedError(
          f'{path} is damaged: {type(e).__name__}: {e}.'
        ) from e
    return self._leaves or {}

  def read(self, wanted: list[requests.Request]) -> None:
    """Fills the memory of every request."""
    if not wanted:
      return
    leaves = self.leaves()
    for request in wanted:
      info = _state.info_from_proto(self._manifest.arrays[request.array])
      if info.name not in leaves:
        raise errors.CheckpointDamagedError(
          f'{self._directory} is damaged: array {info.name!r} is not in the '
          f'file of process {self._process}.'
        )
      value = np.asarray(leaves[info.name])
      if value.shape != info.shape or value.dtype != info.dtype:
        raise errors.RestoreMismatchError(
          f'Array {info.name!r} of process {self._process} in '
          f'{self._directory} is {value.dtype}{list(value.shape)}, and '
          f'{info} on process 0.'
        )
      slices = request.box.slices_in(_boxes.whole(info.shape))
      np.copyto(request.out, value[(*slices, ...)])
