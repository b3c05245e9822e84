"""Arrays in one stream of bytes a process: written in big aligned pieces.

The stream is all boxes of one process, large ones first, each at a multiple of
4 KiB, then small ones, each at a multiple of 64 bytes; zeros fill the gaps. It
is cut into data files of at most `part_bytes`, and each file begins with a
page that says whose it is. Host memory holds the same image, so that a file is
written straight from it.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from paxlike.checkpoint import (
  _boxes,
  _integrity,
  _layout,
  _staging,
  _state,
)
from paxlike.core import fs
from paxlike.protos import checkpoint_pb2 as pb

if TYPE_CHECKING:
  import jax

HEADER_BYTES = fs.BLOCK_BYTES
_SMALL_ALIGN = 64
# From this size on a box begins at a page: O_DIRECT then reads it in place.
_LARGE_BYTES = 256 << 10
_STRIPE_BYTES = 16 << 20
# From this size on the holders of an array take turns in writing its replicas.
_SHARED_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Entry:
  """One box of this process and its place in the stream."""

  array: int
  box_number: int
  box: _boxes.Box
  offset: int
  num_bytes: int
  extent: int  # with the zeros up to the next box


@dataclasses.dataclass(frozen=True)
class Plan:
  """Where each box of this process goes.

  Attributes:
    entries: In the order of the stream.
    total_bytes: Length of the stream, whole pages.
    part_bytes: How much of it one data file holds.
  """

  entries: tuple[Entry, ...]
  total_bytes: int
  part_bytes: int

  @property
  def num_parts(self) -> int:
    """How many data files."""
    return -(-self.total_bytes // self.part_bytes)

  @property
  def image_bytes(self) -> int:
    """Host memory for the stream with the pages that begin each file."""
    return self.total_bytes + self.num_parts * HEADER_BYTES

  def part_size(self, part: int) -> int:
    """Length of one data file."""
    left = self.total_bytes - part * self.part_bytes
    return HEADER_BYTES + min(left, self.part_bytes)

  def pieces(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Cuts a range of the stream by files: (part, place in file, length)."""
    return pieces(self.part_bytes, offset, length)

  def image_place(self, part: int, place: int) -> int:
    """Where a place of a file lies in host memory."""
    return part * (self.part_bytes + HEADER_BYTES) + place


def pieces(
  part_bytes: int, offset: int, length: int
) -> Iterator[tuple[int, int, int]]:
  """Cuts a range of a stream by files: (part, place in file, length)."""
  while length > 0:
    part, within = divmod(offset, part_bytes)
    count = min(length, part_bytes - within)
    yield part, HEADER_BYTES + within, count
    offset += count
    length -= count


def layouts_of(state: _state.State) -> list[_boxes.Layout]:
  """How each array of a state is cut, and which process writes which box."""
  import jax

  return [
    _boxes.layout_of(
      value.sharding,
      info.shape,
      # Small arrays stay together: who reads them opens one index.
      turn=number if info.num_bytes >= _SHARED_BYTES else 0,
    )
    if isinstance(value, jax.Array)
    else _boxes.single_layout(info.shape)
    for number, (info, value) in enumerate(
      zip(state.arrays, state.values, strict=True)
    )
  ]


def make_plan(
  state: _state.State,
  layouts: list[_boxes.Layout],
  *,
  process: int,
  part_bytes: int,
) -> Plan:
  """Decides where each box that `process` writes goes in its stream."""
  mine: list[tuple[int, int, _boxes.Box, int]] = []
  for number, (info, layout) in enumerate(
    zip(state.arrays, layouts, strict=True)
  ):
    for i, (box, owner) in enumerate(
      zip(layout.boxes, layout.owners, strict=True)
    ):
      if owner == process and box.size:
        mine.append((number, i, box, box.size * info.dtype.itemsize))
  mine.sort(key=lambda m: (m[3] < _LARGE_BYTES, m[0], m[1]))
  offsets: list[int] = []
  end = 0
  for _, _, _, num_bytes in mine:
    align = fs.BLOCK_BYTES if num_bytes >= _LARGE_BYTES else _SMALL_ALIGN
    offsets.append(_staging.round_up(end, align))
    end = offsets[-1] + num_bytes
  total = _staging.round_up(end, fs.BLOCK_BYTES)
  entries = tuple(
    Entry(number, i, box, offset, num_bytes, following - offset)
    for (number, i, box, num_bytes), offset, following in zip(
      mine, offsets, [*offsets, total][1:], strict=True
    )
  )
  return Plan(entries, total, part_bytes)


def shard_values(state: _state.State, plan: Plan) -> list[Any]:
  """The single-device or NumPy array that holds each entry of a plan."""
  import jax

  # Arrays of one sharding and shape have their shards in one order, and asking
  # an array for all its shards is slow.
  places: dict[Any, dict[_boxes.Box, int]] = {}
  found: list[Any] = []
  for entry in plan.entries:
    value = state.values[entry.array]
    if not isinstance(value, jax.Array):
      found.append(value)
    elif value.is_fully_replicated:
      found.append(value.addressable_data(0))
    else:
      key = (value.sharding, value.shape)
      if key not in places:
        places[key] = _places_of(value)
      found.append(value.addressable_data(places[key][entry.box]))
  return found


def _places_of(value: 'jax.Array') -> dict[_boxes.Box, int]:
  """Which of the array's local parts holds each box."""
  devices = value.sharding.addressable_devices_indices_map(value.shape)
  places: dict[_boxes.Box, int] = {}
  for i in range(len(devices)):
    (device,) = value.addressable_data(i).devices()
    box = _boxes.from_index(devices[device] or (), value.shape)
    places.setdefault(box, i)
  return places


class Staged:
  """A state being copied to host memory and written behind the copy.

  `fill` runs on the thread that owns the state, `write` on another; neither
  waits for the other longer than it must.
  """

  def __init__(
    self, plan: Plan, values: list[Any], memory: np.ndarray, *, step: int
  ):
    self._plan = plan
    self._values = values
    self._memory = memory
    self._step = step
    self._progress = _staging.Progress()

  def fill(self) -> None:
    """Copies every box; after it the state may change or vanish."""
    try:
      values, self._values = self._values, []
      told = 0
      for i, entry in enumerate(self._plan.entries):
        _staging.prefetch(values, i)
        source = _staging.flat_bytes(values[i])
        values[i] = None
        self._copy(entry, source)
        del source
        done = entry.offset + entry.extent
        if done - told >= _STRIPE_BYTES // 4:
          told = done
          self._progress.advance(done)
      self._progress.advance(self._plan.total_bytes)
    except BaseException as e:
      self._progress.fail(e)
      raise

  def _copy(self, entry: Entry, source: np.ndarray) -> None:
    done = 0
    for part, place, count in self._plan.pieces(entry.offset, entry.num_bytes):
      at = self._plan.image_place(part, place)
      # A slice of both keeps this one memory copy, without the GIL.
      self._memory[at : at + count] = source[done : done + count]
      done += count
    gap = entry.extent - entry.num_bytes
    for part, place, count in self._plan.pieces(
      entry.offset + entry.num_bytes, gap
    ):
      at = self._plan.image_place(part, place)
      self._memory[at : at + count] = 0

  def write(
    self,
    file_system: fs.FileSystem,
    directory: str,
    *,
    process: int,
    attempt: bytes,
    tag: str,
  ) -> pb.ProcessFiles:
    """Writes and syncs the data files and the index of this process."""
    names = [
      _layout.data_name(process, part, tag=tag)
      for part in range(self._plan.num_parts)
    ]
    header = _integrity.pack(
      process.to_bytes(4, 'little'),
      kind=_integrity.Kind.DATA_HEADER,
      step=self._step,
      attempt=attempt,
    ).ljust(HEADER_BYTES, b'\0')
    crcs: list[list[int]] = [[] for _ in self._plan.entries]
    self._write_parts(file_system, directory, names, header, crcs)
    index = self._index(process, attempt, crcs)
    index_name = _layout.index_name(process, tag=tag)
    file_system.write_new(fs.join(directory, index_name), index)
    return pb.ProcessFiles(
      process=process,
      index_file=index_name,
      index_size=len(index),
      index_crc32c=_integrity.crc32c(index),
      data=[
        pb.DataFile(name=name, size=self._plan.part_size(part))
        for part, name in enumerate(names)
      ],
    )

  def _write_parts(
    self,
    file_system: fs.FileSystem,
    directory: str,
    names: list[str],
    header: bytes,
    crcs: list[list[int]],
  ) -> None:
    for part in range(self._plan.num_parts):
      at = self._plan.image_place(part, 0)
      self._memory[at : at + HEADER_BYTES] = np.frombuffer(header, np.uint8)
    writers: list[fs.Writer] = []
    try:
      # All files are opened, and their room reserved, before a byte is sent.
      for part, name in enumerate(names):
        writers.append(
          file_system.create(
            fs.join(directory, name), self._plan.part_size(part)
          )
        )
      tasks = [*self._tasks(file_system, writers, crcs)]
      _staging.run_together(
        [task for _, task in sorted(tasks, key=lambda t: t[0])],
        num_threads=file_system.num_threads,
        name='checkpoint-write',
      )
      _staging.run_together(
        [writer.finish for writer in writers],
        num_threads=file_system.num_threads,
        name='checkpoint-sync',
      )
    except BaseException:
      for writer in writers:
        writer.abort()
      raise

  def _tasks(
    self,
    file_system: fs.FileSystem,
    writers: list[fs.Writer],
    crcs: list[list[int]],
  ) -> Iterator[tuple[int, Callable[[], None]]]:
    """What to do and how much of the stream must be copied before."""
    plan = self._plan
    stripe = plan.part_bytes if file_system.whole_parts else _STRIPE_BYTES
    for first in range(0, plan.total_bytes, stripe):
      last = min(first + stripe, plan.total_bytes)
      yield last, functools.partial(self._write_range, first, last, writers)
    group: list[int] = []
    for i, entry in enumerate(plan.entries):
      group.append(i)
      end = entry.offset + entry.extent
      if end - plan.entries[group[0]].offset >= _STRIPE_BYTES or i + 1 == len(
        plan.entries
      ):
        yield end, functools.partial(self._sum_group, group, end, crcs)
        group = []

  def _write_range(
    self, first: int, last: int, writers: list[fs.Writer]
  ) -> None:
    self._progress.wait_for(last)
    for part, place, count in self._plan.pieces(first, last - first):
      # The page that names the file travels with the first piece after it.
      lead = HEADER_BYTES if place == HEADER_BYTES else 0
      at = self._plan.image_place(part, place - lead)
      data = memoryview(self._memory.data)[at : at + count + lead]
      writers[part].write_at(place - lead, data)

  def _sum_group(
    self, group: list[int], end: int, crcs: list[list[int]]
  ) -> None:
    self._progress.wait_for(end)
    for i in group:
      entry = self._plan.entries[i]
      spans = [
        self._memory[at : at + count]
        for part, place, count in self._plan.pieces(entry.offset, entry.extent)
        for at in [self._plan.image_place(part, place)]
      ]
      crcs[i] = _integrity.block_crcs(
        spans[0] if len(spans) == 1 else np.concatenate(spans)
      )

  def _index(
    self, process: int, attempt: bytes, crcs: list[list[int]]
  ) -> bytes:
    entries = self._plan.entries
    index = pb.Index(
      format=_integrity.FORMAT,
      step=self._step,
      attempt=attempt,
      process=process,
      part_bytes=self._plan.part_bytes,
      total_bytes=self._plan.total_bytes,
      array=[e.array for e in entries],
      box=[e.box_number for e in entries],
      offset=[e.offset for e in entries],
      bytes=[e.num_bytes for e in entries],
      crc32c=[crc for each in crcs for crc in each],
    )
    return _integrity.pack(
      index.SerializeToString(),
      kind=_integrity.Kind.INDEX,
      step=self._step,
      attempt=attempt,
    )
