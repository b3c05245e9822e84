"""Arrays in one stream of bytes a process: written in big aligned pieces.

`plans` says what goes where. Host memory holds the image of the files, or as
much of it as there is room for, so that a file is written straight from it.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from paxlike.checkpoint import _integrity, _layout, _staging
from paxlike.checkpoint._stores import plans
from paxlike.core import fs
from paxlike.protos import checkpoint_pb2 as pb

_STRIPE_BYTES = 16 << 20


def _lead(place: int) -> int:
  """What is written before a piece that begins there: the page of the file."""
  return plans.HEADER_BYTES if place == plans.HEADER_BYTES else 0


@dataclasses.dataclass(frozen=True)
class _Task:
  """Something to do with a part of the copy.

  Attributes:
    begin: First place of the image that it looks at.
    end: How much of the stream must be copied before.
    run: Does it.
  """

  begin: int
  end: int
  run: Callable[[], None]


@dataclasses.dataclass(frozen=True)
class _Output:
  """The open data files, and the page that each begins with."""

  writers: list[fs.Writer]
  header: np.ndarray


class _Sums:
  """The sums of all blocks, in the order of the entries.

  Attributes:
    values: All of them.
  """

  def __init__(self, plan: plans.Plan):
    block = _integrity.BLOCK_BYTES
    counts = [-(-entry.extent // block) for entry in plan.entries]
    self._firsts = [0, *itertools.accumulate(counts)]
    self.values = np.zeros(self._firsts[-1], np.uint32)

  def put(self, entry: int, first: int, crcs: list[int]) -> None:
    """Sets the sums of the blocks of an entry from byte `first` on."""
    at = self._firsts[entry] + first // _integrity.BLOCK_BYTES
    self.values[at : at + len(crcs)] = crcs


class Staged:
  """A state being copied to host memory and written behind the copy.

  `fill` runs on the thread that owns the state, `write` on another; neither
  waits for the other longer than it must. Where the memory is smaller than
  the image, place p of the image lies at p modulo its size, and `fill` waits
  until what was there before is written and summed.
  """

  def __init__(
    self, plan: plans.Plan, values: list[Any], memory: np.ndarray, *, step: int
  ):
    self._plan = plan
    self._values = values
    self._memory = memory
    self._step = step
    self._is_whole = memory.size >= plan.image_bytes
    # No task spans more than half of the memory, or none could begin.
    quarter = memory.size // 4
    self._stripe = (
      _STRIPE_BYTES
      if self._is_whole
      else min(_STRIPE_BYTES, quarter - quarter % _integrity.BLOCK_BYTES)
    )
    self._copied = 0
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
        for first in range(0, entry.extent, self._stripe):
          last = min(first + self._stripe, entry.extent)
          done = entry.offset + last
          if not (self._is_whole or self._has_room(done)):
            return
          self._copy(entry, source, first, last)
          self._copied = done
          if done - told >= self._stripe // 4:
            told = done
            self._progress.advance(done)
        del source
      self._progress.advance(self._plan.total_bytes)
    except BaseException as e:
      self._progress.fail(e)
      raise

  def _has_room(self, done: int) -> bool:
    # Who is to make room may be waiting for what was not told yet.
    self._progress.advance(self._copied)
    end = self._plan.image_place(*self._plan.place_of(done - 1)) + 1
    return self._progress.wait_for_room(end - self._memory.size)

  def abandon(self) -> None:
    """Lets `fill` end at once where it waits for a writer that has failed."""
    self._progress.abandon()

  def _copy(
    self, entry: plans.Entry, source: np.ndarray, first: int, last: int
  ) -> None:
    """Copies a range of an extent: bytes of the box, then zeros."""
    middle = min(last, entry.num_bytes)
    for view in self._views(entry.offset + first, middle - first):
      # A slice of both keeps this one memory copy, without the GIL.
      view[:] = source[first : first + view.size]
      first += view.size
    if last > entry.num_bytes:
      for view in self._views(entry.offset + first, last - first):
        view[:] = 0

  def _views(self, offset: int, length: int) -> Iterator[np.ndarray]:
    """The memory of a range of the stream."""
    for part, place, count in self._plan.pieces(offset, length):
      yield from self._image(self._plan.image_place(part, place), count)

  def _image(self, at: int, count: int) -> Iterator[np.ndarray]:
    """The memory of a range of the image, in two pieces where it goes round."""
    at %= self._memory.size
    left = self._memory.size - at
    yield self._memory[at : at + min(count, left)]
    if count > left:
      yield self._memory[: count - left]

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
    ).ljust(plans.HEADER_BYTES, b'\0')
    sums = _Sums(self._plan)
    self._write_parts(file_system, directory, names, header, sums)
    index = self._index(process, attempt, sums)
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
    sums: '_Sums',
  ) -> None:
    writers: list[fs.Writer] = []
    try:
      # All files are opened, and their room reserved, before a byte is sent.
      for part, name in enumerate(names):
        writers.append(
          file_system.create(
            fs.join(directory, name), self._plan.part_size(part)
          )
        )
      output = _Output(writers, np.frombuffer(header, np.uint8))
      writes = [*self._write_tasks(output, whole_parts=file_system.whole_parts)]
      summing = [*self._sum_tasks(sums)]
      self._progress.expect([task.begin for task in [*writes, *summing]])
      # The disk would stand still while one of its threads sums.
      # (staging_test.py::test_the_disk_does_not_wait_for_sums)
      _staging.run_together(
        [functools.partial(self._run, task) for task in writes],
        num_threads=file_system.num_threads,
        name='checkpoint-write',
        aside=[functools.partial(self._run, task) for task in summing],
      )
      _staging.run_together(
        [writer.finish for writer in writers],
        num_threads=file_system.num_threads,
        name='checkpoint-sync',
      )
    except BaseException:
      self.abandon()
      for writer in writers:
        writer.abort()
      raise

  def _run(self, task: '_Task') -> None:
    self._progress.wait_for(task.end)
    task.run()
    self._progress.finish(task.begin)

  def _write_tasks(
    self, output: '_Output', *, whole_parts: bool
  ) -> Iterator['_Task']:
    plan = self._plan
    stripe = plan.part_bytes if whole_parts else self._stripe
    for first in range(0, plan.total_bytes, stripe):
      last = min(first + stripe, plan.total_bytes)
      part, place = plan.place_of(first)
      begin = plan.image_place(part, place - _lead(place))
      yield _Task(
        begin, last, functools.partial(self._write_range, first, last, output)
      )

  def _write_range(self, first: int, last: int, output: '_Output') -> None:
    for part, place, count in self._plan.pieces(first, last - first):
      # The page that names the file travels with the first piece after it.
      lead = _lead(place)
      at = self._plan.image_place(part, place - lead)
      if lead:
        for view in self._image(at, lead):
          view[:] = output.header
      where = place - lead
      for view in self._image(at, count + lead):
        output.writers[part].write_at(where, view.data)
        where += view.size

  def _sum_tasks(self, sums: '_Sums') -> Iterator['_Task']:
    """Sums of ranges of extents, neighbours together up to a stripe."""
    group: list[tuple[int, int, int]] = []
    begin = end = 0
    for i, entry in enumerate(self._plan.entries):
      for first in range(0, entry.extent, self._stripe):
        last = min(first + self._stripe, entry.extent)
        if group and entry.offset + last - begin > self._stripe:
          yield self._sum_task(group, begin, end, sums)
          group = []
        if not group:
          begin = entry.offset + first
        group.append((i, first, last))
        end = entry.offset + last
    if group:
      yield self._sum_task(group, begin, end, sums)

  def _sum_task(
    self,
    group: list[tuple[int, int, int]],
    begin: int,
    end: int,
    sums: '_Sums',
  ) -> '_Task':
    # The loop stands still for the copy, so nothing shares the processor and
    # the memory's speed with it; the disk takes longer than both.
    # (staging_test.py::test_the_copy_is_done_before_its_sums_begin)
    needed = self._plan.total_bytes if self._is_whole else end
    return _Task(
      self._plan.image_place(*self._plan.place_of(begin)),
      needed,
      functools.partial(self._sum_group, group, sums),
    )

  def _sum_group(
    self, group: list[tuple[int, int, int]], sums: '_Sums'
  ) -> None:
    for i, first, last in group:
      views = [*self._views(self._plan.entries[i].offset + first, last - first)]
      data = views[0] if len(views) == 1 else np.concatenate(views)
      sums.put(i, first, _integrity.block_crcs(data))

  def _index(self, process: int, attempt: bytes, sums: '_Sums') -> bytes:
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
      crc32c=sums.values.tolist(),
    )
    return _integrity.pack(
      index.SerializeToString(),
      kind=_integrity.Kind.INDEX,
      step=self._step,
      attempt=attempt,
    )
