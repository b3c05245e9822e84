"""A whole state in one flax msgpack file, one a job or one a process.

The file holds {'structure': text, 'leaves': {name: array}} in a frame, so that
`flax.serialization.msgpack_restore` reads what comes after the frame's 48
bytes. For states that fit in one host's memory.
"""

import contextlib
import threading
from typing import Any

import numpy as np

from paxlike.checkpoint import (
  _integrity,
  _layout,
  _memory,
  _staging,
  _state,
)
from paxlike.checkpoint._stores import msgpack_stream, requests
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

  The first call goes through the file once, from start to end, and fills what
  it is asked for on the way: nothing but one buffer is held beside that. Later
  calls read the arrays that they want, and each proves itself by a sum that the
  first one took.

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
    self._open = contextlib.ExitStack()
    self._stream: msgpack_stream.Stream | None = None
    self._leaves: dict[str, msgpack_stream.Leaf] = {}
    self._lock = threading.Lock()
    self.bytes_read = 0

  def close(self) -> None:
    """Closes the file."""
    with self._lock:
      self._stream = None
      self._open.close()

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

  def read(self, wanted: list[requests.Request]) -> None:
    """Fills the memory of every request.

    Raises:
      CheckpointDamagedError: The file is not the one that was committed. What
        the requests' memory holds then is not to be used.
    """
    if not wanted:
      return
    by_array: dict[int, list[requests.Request]] = {}
    for request in wanted:
      by_array.setdefault(request.array, []).append(request)
    by_name = {
      self._manifest.arrays[number].name: of_array
      for number, of_array in by_array.items()
    }
    with self._lock:
      if self._stream is None:
        self._read_first(by_name)
      else:
        self._read_again(self._stream, by_name)

  def _filler(self, wanted: list[requests.Request]) -> msgpack_stream.Filler:
    array = self._manifest.arrays[wanted[0].array]
    return msgpack_stream.Filler(_state.info_from_proto(array), wanted)

  def _path(self) -> str:
    return fs.join(self._directory, self._files().index_file)

  def _count(self, num_bytes: int) -> None:
    self.bytes_read += num_bytes

  def _read_first(self, by_name: dict[str, list[requests.Request]]) -> None:
    path = self._path()
    with contextlib.ExitStack() as undo:
      with requests.telling(path):
        reader = self._fs.open_read(path)
      undo.callback(reader.close)
      requests.check_size(path, reader.size, self._files().index_size)
      stream = msgpack_stream.Stream(
        reader,
        path,
        chunk_bytes=self._fs.chunk_bytes,
        on_read=self._count,
      )
      self._leaves = self._go_through(stream, path, by_name)
      for wanted in by_name.values():
        self._check(self._manifest.arrays[wanted[0].array])
      self._open = undo.pop_all()
      self._stream = stream

  def _go_through(
    self,
    stream: msgpack_stream.Stream,
    path: str,
    by_name: dict[str, list[requests.Request]],
  ) -> dict[str, msgpack_stream.Leaf]:
    """Where the arrays are, once all that the file must be has been checked."""

    def filler_for(
      name: str, dtype: str, shape: tuple[int, ...]
    ) -> msgpack_stream.Filler | None:
      wanted = by_name.get(name)
      if wanted is None:
        return None
      array = self._manifest.arrays[wanted[0].array]
      is_it = (dtype, shape) == (array.dtype, tuple(array.shape))
      return self._filler(wanted) if is_it else None

    head_bytes = min(_integrity.HEADER_BYTES, stream.left_bytes)
    head = stream.take(head_bytes)
    proof = _Proof(head, path=path, files=self._files())
    stream.watch(proof.add if self._verify else None)
    arrays = msgpack_stream.Arrays(
      stream, sums=self._verify, filler_for=filler_for
    )
    leaves: dict[str, msgpack_stream.Leaf] = {}
    wrong: msgpack_stream.MalformedError | None = None
    try:
      leaves = arrays.read()
    except msgpack_stream.MalformedError as e:
      # What the sums say comes first, and they are taken of the whole file.
      wrong = e
      stream.run(stream.left_bytes)
    stream.watch(None)
    proof.check(self._manifest, verify=self._verify)
    if wrong is not None:
      raise errors.CheckpointDamagedError(
        f'{path} is damaged: {wrong}.'
      ) from wrong
    return leaves

  def _read_again(
    self,
    stream: msgpack_stream.Stream,
    by_name: dict[str, list[requests.Request]],
  ) -> None:
    for name, wanted in by_name.items():
      leaf = self._check(self._manifest.arrays[wanted[0].array])
      filler = self._filler(wanted)
      for extent in leaf.extents:
        stream.seek(extent.first)
        found = msgpack_stream.read_extent(
          stream, extent.num_bytes, filler=filler, sums=self._verify
        )
        if found != extent:
          last = extent.first + extent.num_bytes
          raise errors.CheckpointDamagedError(
            f'{self._path()} is damaged: bytes {extent.first} to {last}, of '
            f'array {name!r}, are no longer what they were.'
          )

  def _check(self, array: pb.Array) -> msgpack_stream.Leaf:
    """What the file has of an array, if it is the manifest's."""
    leaf = self._leaves.get(array.name)
    if leaf is None:
      raise errors.CheckpointDamagedError(
        f'{self._directory} is damaged: array {array.name!r} is not in the '
        f'file of process {self._process}.'
      )
    info = _state.info_from_proto(array)
    if (leaf.dtype, leaf.shape) != (array.dtype, info.shape):
      raise errors.RestoreMismatchError(
        f'Array {info.name!r} of process {self._process} in '
        f'{self._directory} is {leaf.dtype}{list(leaf.shape)}, and '
        f'{info} on process 0.'
      )
    if leaf.num_bytes != info.num_bytes:
      raise errors.CheckpointDamagedError(
        f'{self._directory} is damaged: array {info.name!r} has '
        f'{leaf.num_bytes} bytes in the file of process {self._process}, not '
        f'{info.num_bytes}.'
      )
    return leaf


class _Proof:
  """Says whether a file that passes by is the one that was committed."""

  def __init__(self, head: bytes, *, path: str, files: pb.ProcessFiles):
    self._path = path
    self._files = files
    self._frame = _integrity.Frame(head, path=path, size_bytes=files.index_size)
    self._crc = _integrity.crc32c(head)

  def add(self, payload: Any) -> None:
    """Sums up the next bytes after the header."""
    self._frame.add(payload)
    self._crc = _integrity.crc32c(payload, self._crc)

  def check(self, manifest: pb.Manifest, *, verify: bool) -> None:
    """Raises CheckpointDamagedError unless it is, all of it having passed."""
    self._frame.check(
      kind=_integrity.Kind.MSGPACK,
      step=manifest.step,
      attempt=manifest.attempt,
      verify=verify,
    )
    if verify:
      requests.check_committed(self._path, self._crc, self._files.index_crc32c)
