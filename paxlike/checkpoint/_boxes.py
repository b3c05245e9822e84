"""How arrays are cut into boxes, and which boxes overlap.

A box is a range of indices in each dimension. Saving and restoring on any
mesh, in any number of processes, are one thing here: intersecting boxes.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paxlike.protos import checkpoint_pb2 as pb

# jax is loaded where it is used: the tools look at steps without it.
if TYPE_CHECKING:
  import jax


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
  """A range of indices in each dimension; `stop` is not in it."""

  start: tuple[int, ...]
  stop: tuple[int, ...]

  @property
  def shape(self) -> tuple[int, ...]:
    """Length in each dimension."""
    return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

  @property
  def size(self) -> int:
    """How many elements."""
    return math.prod(self.shape)

  def intersect(self, other: 'Box') -> 'Box | None':
    """What both have in common; None where that is nothing."""
    start = tuple(map(max, self.start, other.start))
    stop = tuple(map(min, self.stop, other.stop))
    if any(a >= b for a, b in zip(start, stop, strict=True)):
      return None
    return Box(start, stop)

  def slices_in(self, outer: 'Box') -> tuple[slice, ...]:
    """Where this box lies in an array that holds `outer`."""
    return tuple(
      slice(a - o, b - o)
      for a, b, o in zip(self.start, self.stop, outer.start, strict=True)
    )


def whole(shape: Sequence[int]) -> Box:
  """The box that is all of an array."""
  return Box((0,) * len(shape), tuple(shape))


def from_index(index: Sequence[slice], shape: Sequence[int]) -> Box:
  """The box of a tuple of slices, as JAX gives for a shard."""
  ranges = [s.indices(n)[:2] for s, n in zip(index, shape, strict=True)]
  return Box(tuple(r[0] for r in ranges), tuple(r[1] for r in ranges))


@dataclasses.dataclass(frozen=True)
class Layout:
  """The boxes of an array and the process that holds each.

  Attributes:
    grid: Parts in each dimension, or None where the cut is irregular.
    boxes: The boxes, in row-major order of the grid where there is one.
    owners: The process that writes each box.
    text: The sharding, for people.
  """

  grid: tuple[int, ...] | None
  boxes: tuple[Box, ...]
  owners: tuple[int, ...]
  text: str = ''

  def to_proto(self) -> pb.Layout:
    """The record of this layout in a manifest."""
    if self.grid is not None:
      return pb.Layout(grid=self.grid, owners=self.owners, text=self.text)
    boxes = [pb.Box(start=b.start, stop=b.stop) for b in self.boxes]
    return pb.Layout(boxes=boxes, owners=self.owners, text=self.text)


def _cuts(size: int, parts: int) -> list[tuple[int, int]]:
  step = -(-size // parts)
  return [
    (min(i * step, size), min(i * step + step, size)) for i in range(parts)
  ]


@functools.lru_cache(maxsize=4096)
def grid_boxes(
  grid: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[Box, ...]:
  """All boxes of a regular grid, in row-major order."""
  cuts = [_cuts(n, parts) for n, parts in zip(shape, grid, strict=True)]
  return tuple(
    Box(tuple(c[0] for c in cell), tuple(c[1] for c in cell))
    for cell in itertools.product(*cuts)
  )


def boxes_of(layout: pb.Layout, shape: tuple[int, ...]) -> tuple[Box, ...]:
  """The boxes that a manifest's layout gives for an array of `shape`."""
  if layout.boxes:
    return tuple(Box(tuple(b.start), tuple(b.stop)) for b in layout.boxes)
  return grid_boxes(tuple(layout.grid), shape)


def overlapping(
  layout: pb.Layout, shape: tuple[int, ...], want: Box
) -> Iterator[tuple[int, Box]]:
  """The numbers and boxes of a layout that have something of `want`."""
  if len(layout.owners) == 1:
    yield 0, whole(shape)
    return
  if layout.boxes:
    for number, box in enumerate(boxes_of(layout, shape)):
      if box.intersect(want):
        yield number, box
    return
  yield from _overlapping_cells(tuple(layout.grid), shape, want)


# The layers of a model ask the same question over and over.
@functools.lru_cache(maxsize=4096)
def _overlapping_cells(
  grid: tuple[int, ...], shape: tuple[int, ...], want: Box
) -> tuple[tuple[int, Box], ...]:
  # Only the cells that matter: a grid may have a box for each of 4,096 hosts.
  ranges = []
  for size, parts, a, b in zip(shape, grid, want.start, want.stop, strict=True):
    step = max(1, -(-size // parts))
    ranges.append(range(a // step, min(parts, -(-b // step))))
  strides = [math.prod(grid[d + 1 :]) for d in range(len(shape))]
  found = []
  for cell in itertools.product(*ranges):
    number = sum(c * s for c, s in zip(cell, strides, strict=True))
    cut = [
      _cuts_at(n, parts, c)
      for n, parts, c in zip(shape, grid, cell, strict=True)
    ]
    box = Box(tuple(c[0] for c in cut), tuple(c[1] for c in cut))
    if box.intersect(want):
      found.append((number, box))
  return tuple(found)


def _cuts_at(size: int, parts: int, i: int) -> tuple[int, int]:
  step = -(-size // parts)
  return min(i * step, size), min(i * step + step, size)


def process_of(device: Any) -> int:
  """The process that a device belongs to."""
  return device.process_index


def layout_of(
  sharding: 'jax.sharding.Sharding', shape: tuple[int, ...], *, turn: int = 0
) -> Layout:
  """How a sharding cuts an array, with one owner for each distinct box.

  Every process computes the same answer without talking. Of the processes
  that hold a box, that of the first device writes it on turn 0, the next one
  on turn 1: with turns, replicas share the work.
  """
  import jax

  if isinstance(sharding, jax.sharding.SingleDeviceSharding):
    # A process-local array: the same on every process, so the first writes it.
    return single_layout(shape)
  held = _holders(sharding, shape)
  return _layout_at(sharding, shape, turn % max(map(len, held.values())))


@functools.lru_cache(maxsize=4096)
def _layout_at(
  sharding: 'jax.sharding.Sharding', shape: tuple[int, ...], turn: int
) -> Layout:
  held = _holders(sharding, shape)
  ordered = sorted(held, key=lambda box: box.start)
  return Layout(
    grid=_grid_of(ordered, shape),
    boxes=tuple(ordered),
    owners=tuple(held[box][turn % len(held[box])] for box in ordered),
    text=str(getattr(sharding, 'spec', type(sharding).__name__)),
  )


@functools.lru_cache(maxsize=4096)
def _holders(
  sharding: 'jax.sharding.Sharding', shape: tuple[int, ...]
) -> dict[Box, tuple[int, ...]]:
  """The processes that hold each distinct box, in the order of the devices."""
  held: dict[Box, dict[int, None]] = {}
  for device, index in sharding.devices_indices_map(shape).items():
    box = from_index(index or (), shape)
    held.setdefault(box, {})[process_of(device)] = None
  return {box: tuple(processes) for box, processes in held.items()}


def clear_caches() -> None:
  """Forgets what was worked out, for tests that change who owns a device."""
  _layout_at.cache_clear()
  _holders.cache_clear()


@functools.lru_cache(maxsize=4096)
def local_boxes(
  sharding: 'jax.sharding.Sharding', shape: tuple[int, ...]
) -> tuple[Box, ...]:
  """The distinct boxes that devices of this process hold."""
  places = sharding.addressable_devices_indices_map(shape)
  return tuple(
    dict.fromkeys(from_index(i or (), shape) for i in places.values())
  )


@functools.lru_cache(maxsize=4096)
def uneven(
  sharding: 'jax.sharding.Sharding | None', shape: tuple[int, ...]
) -> str:
  """Why a sharding cannot hold an array of a shape; '' where it can."""
  if sharding is None:
    return ''
  try:
    sharding.shard_shape(shape)
  except ValueError as e:
    return str(e)
  return ''


def single_layout(shape: tuple[int, ...]) -> Layout:
  """The layout of an array that process 0 holds whole."""
  return Layout(grid=(1,) * len(shape), boxes=(whole(shape),), owners=(0,))


def _grid_of(
  ordered: list[Box], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
  grid = tuple(
    len({box.start[d] for box in ordered}) for d in range(len(shape))
  )
  if math.prod(grid) != len(ordered):
    return None
  return grid if list(grid_boxes(grid, shape)) == ordered else None


def contiguous_pieces(
  shape: tuple[int, ...], *, item_bytes: int, limit_bytes: int
) -> Iterator[Box]:
  """Cuts an array in C order into runs of memory of at most `limit_bytes`.

  Args:
    shape: Of the array.
    item_bytes: Size of one element.
    limit_bytes: The most for one piece; a single element may exceed it.

  Yields:
    Boxes, each one run of memory, in the order of memory.
  """
  inner = item_bytes
  axis = len(shape)
  while axis and inner * shape[axis - 1] <= limit_bytes:
    axis -= 1
    inner *= shape[axis]
  if axis == 0:
    yield whole(shape)
    return
  # Dimensions before `axis - 1` one index at a time, that one in runs.
  rows = max(1, limit_bytes // inner)
  outer = shape[: axis - 1]
  tail = tuple(shape[axis:])
  zeros = (0,) * len(tail)
  for cell in itertools.product(*(range(n) for n in outer)):
    after = tuple(c + 1 for c in cell)
    for first in range(0, shape[axis - 1], rows):
      last = min(first + rows, shape[axis - 1])
      yield Box((*cell, first, *zeros), (*after, last, *tail))


def offset_in(piece: Box, shape: tuple[int, ...]) -> int:
  """How many elements of a C-order array come before a contiguous piece."""
  if not shape or not all(shape):
    return 0
  return int(np.ravel_multi_index(piece.start, shape))
