"""Reads boxes of arrays from the data files of one step, checking each block.

Promises: reads no more than the blocks that hold what is asked, each once;
never gives out a byte that does not match its checksum; what it fills belongs
to the caller alone, never to a file or a cache. All files are open before the
first byte is read, so that a step deleted meanwhile still reads whole.
"""

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from paxlike.checkpoint import _boxes, _integrity, _memory, _staging, _state
from paxlike.checkpoint._stores import plans, requests
from paxlike.core import errors, fs
from paxlike.protos import checkpoint_pb2 as pb

# Smaller boxes are read together with their neighbours.
_SMALL_BYTES = 256 << 10
# For another mesh a box is cut between its rows, and the blocks at the cuts are
# read twice: so into few pieces.
_PIECE_BYTES = 16 << 20
# The buffers of all threads together are no more of what is read.
_BUFFER_SHARE = 1 / 16
# More than the least processors: some wait for the disk, some sum up and copy.
_NUM_THREADS = max(6, min(16, os.cpu_count() or 1))
_BLOCK = _integrity.BLOCK_BYTES


@dataclasses.dataclass(frozen=True)
class _SavedBox:
  """Where one box lies in the stream of one process."""

  file: '_ProcessStream'
  array: int
  box: _boxes.Box
  offset: int
  num_bytes: int
  extent: int
  crcs: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Target:
  """What one request wants of one saved box."""

  request: requests.Request
  common: _boxes.Box


class _ProcessStream:
  """The open data files of one process and their index."""

  def __init__(
    self,
    file_system: fs.FileSystem,
    directory: str,
    files: pb.ProcessFiles,
    manifest: pb.Manifest,
    on_open: Callable[[fs.Reader], object],
  ):
    self.path = fs.join(directory, files.index_file)
    self.index = read_index(file_system, directory, files, manifest)
    self.readers: list[fs.Reader] = []
    self.names: list[str] = []
    for part in files.data:
      path = fs.join(directory, part.name)
      reader = requests.open_file(file_system, path)
      on_open(reader)
      self.readers.append(reader)
      self.names.append(path)
      if reader.size != part.size:
        raise errors.CheckpointDamagedError(
          f'{path} is damaged: it has {reader.size} bytes, not {part.size}.'
        )
      check_header(reader, path, manifest)
    self._where = self._locate()

  def _locate(self) -> dict[tuple[int, int], tuple[int, int, int, int, int]]:
    offset = list(self.index.offset)
    ends = [*offset, self.index.total_bytes][1:]
    first_crc = 0
    found = {}
    for array, box, begin, end, num_bytes in zip(
      self.index.array,
      self.index.box,
      offset,
      ends,
      self.index.bytes,
      strict=True,
    ):
      count = -(-(end - begin) // _BLOCK)
      found[array, box] = (begin, num_bytes, end - begin, first_crc, count)
      first_crc += count
    self.crcs = np.array(self.index.crc32c, np.uint32)
    if first_crc != len(self.crcs):
      raise errors.CheckpointDamagedError(
        f'{self.path} is damaged: it lists {len(self.crcs)} checksums for '
        f'{first_crc} blocks.'
      )
    return found

  def find(self, array: int, number: int, box: _boxes.Box) -> _SavedBox:
    where = self._where.get((array, number))
    if where is None:
      raise errors.CheckpointDamagedError(
        f'{self.path} is damaged: box {number} of array {array} is missing.'
      )
    begin, num_bytes, extent, first, count = where
    crcs = self.crcs[first : first + count]
    return _SavedBox(self, array, box, begin, num_bytes, extent, crcs)

  def read(self, offset: int, into: np.ndarray) -> None:
    """Fills a flat uint8 array from the stream."""
    done = 0
    for part, place, count in plans.pieces(
      self.index.part_bytes, offset, into.size
    ):
      if part >= len(self.readers):
        raise errors.CheckpointDamagedError(
          f'{self.path} is damaged: it points past the last data file.'
        )
      view = memoryview(into.data)[done : done + count]
      try:
        got = self.readers[part].read_into(place, view)
      except OSError as e:
        raise errors.CheckpointDamagedError(
          f'{self.names[part]} cannot be read at byte {place}: {e}.'
        ) from e
      if got != count:
        raise errors.CheckpointDamagedError(
          f'{self.names[part]} is damaged: it ends at byte {place + got}.'
        )
      done += count

  def name_at(self, offset: int) -> tuple[str, int]:
    """The data file that holds a place of the stream, and the place in it."""
    part, place, _ = next(plans.pieces(self.index.part_bytes, offset, 1))
    return self.names[part], place


def read_index(
  file_system: fs.FileSystem,
  directory: str,
  files: pb.ProcessFiles,
  manifest: pb.Manifest,
) -> pb.Index:
  """Reads and checks the index of one process."""
  path = fs.join(directory, files.index_file)
  payload = requests.read_framed(
    file_system,
    path,
    kind=_integrity.Kind.INDEX,
    manifest=manifest,
    size=files.index_size,
    crc=files.index_crc32c,
  )
  index = pb.Index()
  index.ParseFromString(payload)
  return index


def check_header(reader: fs.Reader, path: str, manifest: pb.Manifest) -> None:
  """Checks the page that begins a data file, its zeros included."""
  page = bytearray(plans.HEADER_BYTES)
  reader.read_into(0, memoryview(page))
  size = _integrity.HEADER_BYTES + 4
  _integrity.unpack(
    bytes(page[:size]),
    kind=_integrity.Kind.DATA_HEADER,
    path=path,
    step=manifest.step,
    attempt=manifest.attempt,
  )
  if any(page[size:]):
    raise errors.CheckpointDamagedError(
      f'{path} is damaged: bytes {size} to {len(page)} are not zero.'
    )


class ShardedReader:
  """Reads boxes of one committed step.

  Attributes:
    bytes_read: Bytes asked of the data files so far.
  """

  def __init__(
    self,
    file_system: fs.FileSystem,
    directory: str,
    manifest: pb.Manifest,
    *,
    verify: bool = True,
  ):
    self._fs = file_system
    self._directory = directory
    self._manifest = manifest
    self._verify = verify
    self._infos = _state.infos_of(manifest)
    self._files = {f.process: f for f in manifest.files}
    self._streams: dict[int, _ProcessStream] = {}
    self._open = contextlib.ExitStack()
    self._lock = threading.Lock()
    self._scratch = threading.local()
    self._chunk_bytes = file_system.chunk_bytes
    self._piece_bytes = _PIECE_BYTES
    self.bytes_read = 0

  def close(self) -> None:
    """Closes all files."""
    self._open.close()
    self._streams.clear()

  def open_for(self, wanted: Iterable[requests.Request]) -> None:
    """Opens every file that some requests need."""
    for request in wanted:
      layout = self._layout(request.array)
      shape = self._infos[request.array].shape
      for number, _ in _boxes.overlapping(layout, shape, request.box):
        self._stream(layout.owners[number])

  def open_all(self) -> None:
    """Opens every file of the step."""
    for process in self._files:
      self._stream(process)

  def _layout(self, array: int) -> pb.Layout:
    return self._manifest.layouts[self._manifest.arrays[array].layout]

  def _stream(self, process: int) -> _ProcessStream:
    if process not in self._streams:
      if process not in self._files:
        raise errors.CheckpointDamagedError(
          f'{self._directory} is damaged: its manifest names no files of '
          f'process {process}.'
        )
      self._streams[process] = _ProcessStream(
        self._fs,
        self._directory,
        self._files[process],
        self._manifest,
        lambda reader: self._open.callback(reader.close),
      )
    return self._streams[process]

  def read(self, wanted: Sequence[requests.Request]) -> None:
    """Fills the memory of every request.

    Raises:
      CheckpointDamagedError: Some block does not match its checksum; the
        message names file, array and range.
    """
    self.open_for(wanted)
    large: list[Callable[[], None]] = []
    small: list[tuple[_SavedBox, list[_Target]]] = []
    found = self._by_saved_box(wanted)
    self._size_buffers(sum(saved.extent for saved, _ in found))
    for saved, targets in found:
      if saved.num_bytes >= _SMALL_BYTES:
        large.extend(self._tasks_of_large(saved, targets))
      else:
        small.append((saved, targets))
    _staging.run_together(
      [*large, *self._tasks_of_small(small)],
      num_threads=_NUM_THREADS,
      name='checkpoint-read',
    )

  def _size_buffers(self, total_bytes: int) -> None:
    fair_bytes = int(total_bytes * _BUFFER_SHARE) // _NUM_THREADS
    blocks = max(1, fair_bytes // _BLOCK)
    self._chunk_bytes = min(self._fs.chunk_bytes, blocks * _BLOCK)
    self._piece_bytes = min(_PIECE_BYTES, blocks * _BLOCK)

  def _by_saved_box(
    self, wanted: Sequence[requests.Request]
  ) -> list[tuple[_SavedBox, list[_Target]]]:
    found: dict[tuple[int, int], tuple[_SavedBox, list[_Target]]] = {}
    for request in wanted:
      layout = self._layout(request.array)
      shape = self._infos[request.array].shape
      for number, box in _boxes.overlapping(layout, shape, request.box):
        key = (request.array, number)
        if key not in found:
          stream = self._stream(layout.owners[number])
          found[key] = (stream.find(*key, box), [])
        common = box.intersect(request.box)
        assert common is not None
        found[key][1].append(_Target(request, common))
    return sorted(found.values(), key=lambda f: (f[0].file.path, f[0].offset))

  # --- large boxes: one task a piece.

  def _tasks_of_large(
    self, saved: _SavedBox, targets: list[_Target]
  ) -> list[Callable[[], None]]:
    if len(targets) == 1 and targets[0].request.box == saved.box:
      request = targets[0].request
      return [
        functools.partial(
          self._read_run,
          saved,
          request.out,
          at,
          min(at + self._chunk_bytes, saved.extent),
        )
        for at in range(0, saved.extent, self._chunk_bytes)
      ]
    itemsize = self._infos[saved.array].dtype.itemsize
    tasks = []
    for piece in _boxes.contiguous_pieces(
      saved.box.shape, item_bytes=itemsize, limit_bytes=self._piece_bytes
    ):
      box = _boxes.Box(
        tuple(a + s for a, s in zip(piece.start, saved.box.start, strict=True)),
        tuple(a + s for a, s in zip(piece.stop, saved.box.start, strict=True)),
      )
      wanting = [t for t in targets if t.common.intersect(box)]
      if wanting:
        first = _boxes.offset_in(piece, saved.box.shape) * itemsize
        tasks.append(
          functools.partial(self._read_piece, saved, wanting, box, first)
        )
    return tasks

  def _read_run(
    self, saved: _SavedBox, out: np.ndarray, first: int, last: int
  ) -> None:
    memory = self._bounce(last - first)
    self._read_checked(saved, first, memory)
    into = out.reshape(-1).view(np.uint8)[first:last]
    np.copyto(into, memory[: into.size])

  def _read_piece(
    self, saved: _SavedBox, targets: list[_Target], box: _boxes.Box, first: int
  ) -> None:
    info = self._infos[saved.array]
    num_bytes = box.size * info.dtype.itemsize
    begin = first - first % _BLOCK
    end = min(_memory.round_up(first + num_bytes, _BLOCK), saved.extent)
    memory = self._bounce(end - begin)
    self._read_checked(saved, begin, memory)
    values = memory[first - begin : first - begin + num_bytes]
    _scatter(values.view(info.dtype).reshape(box.shape), box, targets)

  # --- small boxes: neighbours are read together.

  def _tasks_of_small(
    self, small: list[tuple[_SavedBox, list[_Target]]]
  ) -> list[Callable[[], None]]:
    tasks: list[Callable[[], None]] = []
    group: list[tuple[_SavedBox, list[_Target]]] = []
    for saved, targets in small:
      if group:
        before = group[-1][0]
        apart = saved.offset - (before.offset + before.extent)
        length = saved.offset + saved.extent - group[0][0].offset
        if saved.file is not before.file or apart or length > self._chunk_bytes:
          tasks.append(functools.partial(self._read_group, group))
          group = []
      group.append((saved, targets))
    if group:
      tasks.append(functools.partial(self._read_group, group))
    return tasks

  def _read_group(self, group: list[tuple[_SavedBox, list[_Target]]]) -> None:
    first = group[0][0].offset
    last = group[-1][0]
    memory = self._bounce(last.offset + last.extent - first)
    group[0][0].file.read(first, memory)
    with self._lock:
      self.bytes_read += memory.size
    for saved, targets in group:
      at = saved.offset - first
      if self._verify:
        self._check(saved, 0, memory[at : at + saved.extent])
      values = memory[at : at + saved.num_bytes]
      dtype = self._infos[saved.array].dtype
      _scatter(values.view(dtype).reshape(saved.box.shape), saved.box, targets)

  # --- both.

  def _bounce(self, size_bytes: int) -> np.ndarray:
    """Memory of this thread that all it reads goes through.

    What is read into it is still in the processor's cache when it is summed up
    and copied, and a disk fills huge pages up to three times as fast as small
    ones, in which the target's memory is.
    """
    kept = getattr(self._scratch, 'memory', None)
    if kept is None or kept.size < size_bytes:
      kept = _memory.page_aligned(max(size_bytes, self._chunk_bytes))
      _memory.fault_in(kept)
      self._scratch.memory = kept
    return kept[:size_bytes]

  def _read_checked(
    self, saved: _SavedBox, first: int, into: np.ndarray
  ) -> None:
    saved.file.read(saved.offset + first, into)
    with self._lock:
      self.bytes_read += into.size
    if self._verify:
      self._check(saved, first, into)

  def _check(self, saved: _SavedBox, first: int, data: np.ndarray) -> None:
    for i, crc in enumerate(_integrity.block_crcs(data), first // _BLOCK):
      if crc != saved.crcs[i]:
        begin = i * _BLOCK
        end = min(begin + _BLOCK, saved.extent)
        name, place = saved.file.name_at(saved.offset + begin)
        info = self._infos[saved.array]
        raise errors.CheckpointDamagedError(
          f'{name} is damaged: bytes {place} to {place + end - begin}, which '
          f'are bytes {begin} to {end} of box {list(saved.box.start)} to '
          f'{list(saved.box.stop)} of array {info.name!r} ({info}), do not '
          'match their checksum.'
        )


def _scatter(
  values: np.ndarray, box: _boxes.Box, targets: list[_Target]
) -> None:
  for target in targets:
    common = target.common.intersect(box)
    if common is None:
      continue
    # The ellipsis keeps a 0-d array an array.
    out = target.request.out[(*common.slices_in(target.request.box), ...)]
    np.copyto(out, values[(*common.slices_in(box), ...)])
