"""Where each box of a process goes: in the stream, in files, in host memory.

The stream is all boxes of one process, large ones first, each at a multiple of
4 KiB, then small ones, each at a multiple of 64 bytes; zeros fill the gaps. It
is cut into data files of at most `part_bytes`, and each file begins with a
page that says whose it is. The image is the same with these pages.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paxlike.checkpoint import _boxes, _memory, _state
from paxlike.core import fs

if TYPE_CHECKING:
  import jax

HEADER_BYTES = fs.BLOCK_BYTES
_SMALL_ALIGN = 64
# From this size on a box begins at a page: O_DIRECT then reads it in place.
_LARGE_BYTES = 256 << 10
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

  def place_of(self, offset: int) -> tuple[int, int]:
    """Which file holds a byte of the stream, and where in it."""
    part, within = divmod(offset, self.part_bytes)
    return part, HEADER_BYTES + within

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
    offsets.append(_memory.round_up(end, align))
    end = offsets[-1] + num_bytes
  total = _memory.round_up(end, fs.BLOCK_BYTES)
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


def window_of(
  plan: Plan, *, max_bytes: int | None, whole_parts: bool
) -> tuple[Plan, int]:
  """How much memory the copy of a plan goes through.

  Args:
    plan: What is to be written.
    max_bytes: The most memory there may be; None for no limit.
    whole_parts: Whether a file must lie in memory in one piece.

  Returns:
    The plan, with smaller files if one of them would not fit twice, and the
    bytes of memory: those of the whole image where they may be taken.
  """
  if max_bytes is None or plan.image_bytes <= max_bytes:
    return plan, plan.image_bytes
  if not whole_parts:
    return plan, max_bytes - max_bytes % fs.BLOCK_BYTES
  half = max_bytes // 2 - HEADER_BYTES
  part_bytes = min(plan.part_bytes, half - half % fs.BLOCK_BYTES)
  slot = part_bytes + HEADER_BYTES
  smaller = dataclasses.replace(plan, part_bytes=part_bytes)
  return smaller, max_bytes // slot * slot
