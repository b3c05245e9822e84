"""Finds and reads the arrays of a flax msgpack file that no memory holds whole.

The file is passed through one buffer from start to end. What flax's own reader
makes of a whole file in memory, this makes of the parts: {'leaves': {name:
array}}, an array being an extension of type 1 around (shape, dtype's name,
bytes), or, where flax found it too large for that, a map of several flat ones.

Promises: takes no length on trust. Whatever the bytes are, it ends with an
error or with what they say, in memory that does not depend on them.
"""

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paxlike.checkpoint import _boxes, _integrity, _memory, _state
from paxlike.checkpoint._stores import requests
from paxlike.core import errors, fs

_NDARRAY = 1
_CHUNKED = '__msgpack_chunked_array__'
_MOST_DIMENSIONS = 64
_MOST_DTYPE_BYTES = 64
# Runs of an array are copied in pieces that stay in a processor's cache.
_PIECE_BYTES = 1 << 20


class MalformedError(Exception):
  """What lies there is no file of arrays as flax writes it."""


@dataclasses.dataclass(frozen=True)
class Extent:
  """Bytes of an array in the file.

  Attributes:
    first: Where they begin.
    num_bytes: How many.
    crc: Their CRC-32C; 0 where nothing is summed.
  """

  first: int
  num_bytes: int
  crc: int


@dataclasses.dataclass(frozen=True)
class Leaf:
  """An array in the file.

  Attributes:
    dtype: Name of its dtype.
    shape: Of the array.
    extents: Where its C-order bytes are, in order.
  """

  dtype: str
  shape: tuple[int, ...]
  extents: tuple[Extent, ...]

  @property
  def num_bytes(self) -> int:
    """Of all extents."""
    return sum(extent.num_bytes for extent in self.extents)


class Filler:
  """Puts the bytes of one array, as they come, where they are wanted."""

  def __init__(
    self, info: _state.ArrayInfo, wanted: Sequence[requests.Request]
  ):
    self.info = info
    self._wanted = wanted
    self._left_bytes = info.num_bytes
    if info.num_bytes <= _PIECE_BYTES:
      self._pieces = iter((_boxes.whole(info.shape),))
    else:
      self._pieces = _boxes.contiguous_pieces(
        info.shape, item_bytes=info.dtype.itemsize, limit_bytes=_PIECE_BYTES
      )
    self._memory = np.empty(min(_PIECE_BYTES, info.num_bytes), np.uint8)
    self._piece: _boxes.Box | None = None
    self._have_bytes = 0

  def add(self, run: np.ndarray) -> None:
    """Takes the next bytes; those past the array's end are dropped."""
    run = run[: self._left_bytes]
    self._left_bytes -= run.size
    while run.size:
      self._piece = self._piece or next(self._pieces)
      piece_bytes = self._piece.size * self.info.dtype.itemsize
      count = min(piece_bytes - self._have_bytes, run.size)
      if count == piece_bytes:
        self._scatter(self._piece, run[:count])
      else:
        end = self._have_bytes + count
        self._memory[self._have_bytes : end] = run[:count]
        self._have_bytes = end
        if end == piece_bytes:
          self._scatter(self._piece, self._memory[:end])
      run = run[count:]

  def _scatter(self, piece: _boxes.Box, data: np.ndarray) -> None:
    self._piece, self._have_bytes = None, 0
    values = data.view(self.info.dtype).reshape(piece.shape)
    for request in self._wanted:
      if request.box == piece:
        np.copyto(request.out, values)
        continue
      common = piece.intersect(request.box)
      if common is not None:
        # The ellipsis keeps a 0-d array an array.
        out = request.out[(*common.slices_in(request.box), ...)]
        np.copyto(out, values[(*common.slices_in(piece), ...)])


class Stream:
  """A file's bytes in order, through one buffer.

  Args:
    reader: The open file.
    path: Its name, for messages.
    chunk_bytes: How much one read asks for.
    on_read: Told how many bytes each read brought.
  """

  def __init__(
    self,
    reader: fs.Reader,
    path: str,
    *,
    chunk_bytes: int,
    on_read: Callable[[int], None],
  ):
    self._reader = reader
    self._path = path
    self._on_read = on_read
    self._watcher: Callable[[np.ndarray], None] | None = None
    self._shown = 0
    size_bytes = min(
      _memory.round_up(chunk_bytes, fs.BLOCK_BYTES),
      _memory.round_up(reader.size, fs.BLOCK_BYTES),
    )
    is_huge = size_bytes >= _memory.HUGE_PAGE_BYTES
    self._memory = _memory.page_aligned(size_bytes, is_huge=is_huge)
    if is_huge:
      _memory.fault_in(self._memory)
    self._loaded = self._memory[:0]
    self._first = 0
    self._at = 0

  @property
  def position(self) -> int:
    """The place in the file of the next byte."""
    return self._first + self._at

  @property
  def left_bytes(self) -> int:
    """How many bytes there are from the position on."""
    return self._reader.size - self.position

  def watch(self, watcher: Callable[[np.ndarray], None] | None) -> None:
    """Has someone see every byte from the position on, none left out.

    Whoever did before has seen all up to the position. While nobody does, bytes
    that are not asked for are not read.
    """
    self._show()
    self._watcher, self._shown = watcher, self._at

  def _show(self) -> None:
    if self._watcher is not None:
      self._watcher(self._loaded[self._shown : self._at])
    self._shown = self._at

  def seek(self, position: int) -> None:
    """Goes to any place, past whoever watches; a read begins at a page."""
    if self._first <= position <= self._first + self._loaded.size:
      self._at = position - self._first
      return
    self._load(position - position % fs.BLOCK_BYTES)
    self._at = position - self._first

  def _load(self, first: int) -> None:
    into = self._memory[: self._reader.size - first]
    self._show()
    self._loaded, self._at, self._shown = self._memory[:0], 0, 0
    with requests.telling(self._path):
      count = self._reader.read_into(first, memoryview(into.data))
    self._on_read(count)
    if count != into.size:
      raise errors.CheckpointDamagedError(
        f'{self._path} is damaged: it ends at byte {first + count}.'
      )
    self._first, self._loaded = first, into

  def _next_run(self, most_bytes: int) -> np.ndarray:
    if self._at == self._loaded.size:
      self._load(self._first + self._loaded.size)
    run = self._loaded[self._at : self._at + most_bytes]
    self._at += run.size
    return run

  def take(self, num_bytes: int) -> bytes:
    """The next few bytes."""
    end = self._at + num_bytes
    if end <= self._loaded.size:
      at, self._at = self._at, end
      return self._loaded[at:end].tobytes()
    self._check_left(num_bytes)
    data = bytearray()
    while len(data) < num_bytes:
      data += self._next_run(num_bytes - len(data)).data
    return bytes(data)

  def run(self, num_bytes: int, *sinks: Callable[[np.ndarray], Any]) -> None:
    """Passes the next bytes on as they come; a run is valid for one call."""
    self._check_left(num_bytes)
    if not sinks and self._watcher is None:
      self.seek(self.position + num_bytes)
      return
    while num_bytes:
      run = self._next_run(num_bytes)
      num_bytes -= run.size
      for sink in sinks:
        sink(run)

  def _check_left(self, num_bytes: int) -> None:
    if num_bytes > self.left_bytes:
      raise MalformedError(
        f'byte {self.position} begins {num_bytes} bytes and only '
        f'{self.left_bytes} are left'
      )


def read_extent(
  stream: Stream, num_bytes: int, *, filler: Filler | None, sums: bool
) -> Extent:
  """Passes the next bytes of an array on; where they were and their sum."""
  first, crc = stream.position, 0

  def add_to_sum(run: np.ndarray) -> None:
    nonlocal crc
    crc = _integrity.crc32c(run, crc)

  sinks: list[Callable[[np.ndarray], Any]] = []
  if sums:
    sinks.append(add_to_sum)
  if filler is not None:
    sinks.append(filler.add)
  stream.run(num_bytes, *sinks)
  return Extent(first, num_bytes, crc)


@dataclasses.dataclass(frozen=True)
class _Token:
  """The head of a msgpack value.

  Attributes:
    kind: 'int', 'text', 'bytes', 'ext', 'map', 'list' or 'other'.
    value: The number; of bytes, of pairs or of values for what has a length.
    code: The type of an extension.
  """

  kind: str
  value: int = 0
  code: int = 0


# First byte: what it is, and the struct of what follows: number or length.
_HEADS = {
  0xC4: ('bytes', '>B'),
  0xC5: ('bytes', '>H'),
  0xC6: ('bytes', '>I'),
  0xC7: ('ext', '>B'),
  0xC8: ('ext', '>H'),
  0xC9: ('ext', '>I'),
  0xCC: ('int', '>B'),
  0xCD: ('int', '>H'),
  0xCE: ('int', '>I'),
  0xCF: ('int', '>Q'),
  0xD9: ('text', '>B'),
  0xDA: ('text', '>H'),
  0xDB: ('text', '>I'),
  0xDC: ('list', '>H'),
  0xDD: ('list', '>I'),
  0xDE: ('map', '>H'),
  0xDF: ('map', '>I'),
}


_TRUE = _Token('other', 0xC3)


class Arrays:
  """Reads what flax wrote, from a stream that stands where it begins.

  Args:
    stream: Where it comes from.
    sums: Whether each array's bytes are summed up.
    filler_for: Given the name, dtype and shape of an array before its bytes
      come, what takes them, if anything does.
  """

  def __init__(
    self,
    stream: Stream,
    *,
    sums: bool,
    filler_for: Callable[[str, str, tuple[int, ...]], Filler | None],
  ):
    self._stream = stream
    self._sums = sums
    self._filler_for = filler_for

  def read(self) -> dict[str, Leaf]:
    """Goes through the file; where each array of 'leaves' lies.

    Raises:
      MalformedError: It is nothing that flax wrote of arrays by name.
    """
    found: dict[str, Leaf] | None = None
    for _ in range(self._expect('map')):
      if self._text() == 'leaves':
        found = {}
        for _ in range(self._expect('map')):
          name = self._text()
          found[name] = self._leaf(name)
      else:
        # The structure, which the manifest has as well.
        self._stream.run(self._expect('text'))
    if found is None:
      raise MalformedError("it has no 'leaves'")
    if self._stream.left_bytes:
      raise MalformedError(f'its values end at byte {self._stream.position}')
    return found

  # --- one value

  def _token(self) -> _Token:
    take = self._stream.take
    (first,) = take(1)
    if first < 0x80:
      return _Token('int', first)
    if first < 0xC0:
      for kind, low, mask in (
        ('map', 0x80, 0xF),
        ('list', 0x90, 0xF),
        ('text', 0xA0, 0x1F),
      ):
        if first & ~mask == low:
          return _Token(kind, first & mask)
    if 0xD4 <= first <= 0xD8:
      return _Token('ext', 1 << (first - 0xD4), take(1)[0])
    if first not in _HEADS:
      return _Token('other', first)
    kind, code = _HEADS[first]
    (value,) = struct.unpack(code, take(struct.calcsize(code)))
    return _Token(kind, value, take(1)[0] if kind == 'ext' else 0)

  def _expect(self, kind: str) -> int:
    position = self._stream.position
    token = self._token()
    if token.kind != kind:
      raise MalformedError(f'there is no {kind} at byte {position}')
    return token.value

  def _text(self, most_bytes: int = 1 << 20) -> str:
    position = self._stream.position
    num_bytes = self._expect('text')
    if num_bytes > most_bytes:
      raise MalformedError(f'the text at byte {position} is too long')
    try:
      return self._stream.take(num_bytes).decode()
    except UnicodeDecodeError as e:
      raise MalformedError(f'there is no text at byte {position}') from e

  # --- arrays

  def _leaf(self, name: str) -> Leaf:
    position = self._stream.position
    token = self._token()
    if token.kind == 'ext' and token.code == _NDARRAY:
      dtype, shape, num_bytes = self._array_head(token.value)
      filler = self._filler_for(name, dtype, shape)
      return Leaf(dtype, shape, (self._extent(num_bytes, filler),))
    if token.kind == 'map':
      return self._chunked(name, token.value)
    raise MalformedError(f'there is no array at byte {position}')

  def _array_head(self, ext_bytes: int) -> tuple[str, tuple[int, ...], int]:
    """Dtype, shape and length of the data, which follows."""
    position = self._stream.position
    if self._expect('list') != 3:
      raise MalformedError(f'there is no array at byte {position}')
    shape = self._shape_of(self._expect('list'), lambda _: None)
    dtype = self._text(_MOST_DTYPE_BYTES)
    num_bytes = self._expect('bytes')
    if self._stream.position + num_bytes != position + ext_bytes:
      raise MalformedError(f'the array at byte {position} has another length')
    return dtype, shape, num_bytes

  def _shape_of(
    self, count: int, before: Callable[[int], object]
  ) -> tuple[int, ...]:
    if count > _MOST_DIMENSIONS:
      raise MalformedError(f'an array has {count} dimensions')
    shape = []
    for i in range(count):
      before(i)
      shape.append(self._expect('int'))
    return tuple(shape)

  def _extent(self, num_bytes: int, filler: Filler | None) -> Extent:
    return read_extent(self._stream, num_bytes, filler=filler, sums=self._sums)

  def _chunked(self, name: str, count: int) -> Leaf:
    """An array in several: {flag: True, 'shape': {...}, 'chunks': {...}}."""
    position = self._stream.position
    if count != 3 or self._text() != _CHUNKED or self._token() != _TRUE:
      raise MalformedError(f'there is no array at byte {position}')
    self._key('shape')
    shape = self._shape_of(self._expect('map'), lambda i: self._key(str(i)))
    self._key('chunks')
    extents: list[Extent] = []
    dtype, filler = '', None
    for i in range(self._expect('map')):
      self._key(str(i))
      token = self._token()
      if token.kind != 'ext' or token.code != _NDARRAY:
        raise MalformedError(f'chunk {i} of the array is none')
      of_chunk, _, num_bytes = self._array_head(token.value)
      if not i:
        dtype, filler = of_chunk, self._filler_for(name, of_chunk, shape)
      elif of_chunk != dtype:
        raise MalformedError(f'chunk {i} of the array is {of_chunk}')
      extents.append(self._extent(num_bytes, filler))
    return Leaf(dtype, shape, tuple(extents))

  def _key(self, wanted: str) -> None:
    position = self._stream.position
    if self._text() != wanted:
      raise MalformedError(f'there is no {wanted!r} at byte {position}')
