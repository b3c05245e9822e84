"""Every checksum of a step, in parallel; all damage, not only the first."""

import concurrent.futures
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from paxlike.checkpoint import (
  _boxes,
  _history,
  _integrity,
  _layout,
  _state,
  _stores,
  _sweep,
)
from paxlike.checkpoint._stores import plans, requests, sharded_reader
from paxlike.checkpoint.tools import _places, _reading
from paxlike.core import errors, fs
from paxlike.protos import checkpoint_pb2 as pb

_NUM_THREADS = 4
_CHUNK_BYTES = 16 << 20
_BLOCK = _integrity.BLOCK_BYTES


@dataclasses.dataclass(frozen=True, order=True)
class Damage:
  """Something that is not what was written.

  Attributes:
    file: Path of the file.
    first: First damaged byte of the file; 0 where all of it is.
    last: The byte after the last one; 0 where all of the file is.
    array: Name of the array that lies there, or ''.
    reason: What is wrong.
    is_unreadable: Whether this user may not read the file, so that nothing is
      known of its bytes.
  """

  file: str
  first: int = 0
  last: int = 0
  array: str = ''
  reason: str = ''
  is_unreadable: bool = False

  def __str__(self) -> str:
    where = f' bytes {self.first} to {self.last}' if self.last else ''
    array = f', in array {self.array!r}' if self.array else ''
    return f'{self.file}{where}{array}: {self.reason}'


@dataclasses.dataclass(frozen=True)
class Verified:
  """What was looked at and what was found.

  Attributes:
    directory: Of all steps.
    steps: The steps that were checked.
    bytes_checked: Of their files.
    damage: In the order of the files; nothing if all is well.
    incomplete: Directories being written, or left by a crash; no damage.
  """

  directory: str
  steps: tuple[int, ...]
  bytes_checked: int
  damage: tuple[Damage, ...]
  incomplete: tuple[str, ...]


def verify(
  path: str | os.PathLike[str], *, step: int | None = None
) -> Verified:
  """Reads every byte of one step, or of all, and compares the checksums.

  Args:
    path: A job_log_dir, its directory of checkpoints, or one step.
    step: Which one; None is all of a directory.

  Raises:
    UsageError: The path leads to no checkpoints.
    CheckpointNotFoundError: The step that was asked for is not there.
  """
  place = _places.find(path)
  file_system = place.file_system
  damage: list[Damage] = []
  incomplete: list[str] = []
  if step is not None:
    paths = [place.pick(step)]
  else:
    paths, incomplete, damage = _look(place)
  steps, bytes_checked = [], 0
  for step_path in paths:
    checker = _Checker(file_system, step_path)
    try:
      checker.run()
    except FileNotFoundError:
      if _is_there(place, step_path):
        raise
    if step is None and not _is_there(place, step_path):
      continue  # a trainer has swept it meanwhile
    steps.append(_step_of(step_path))
    damage.extend(checker.damage)
    bytes_checked += checker.bytes_checked
  return Verified(
    directory=place.directory,
    steps=tuple(steps),
    bytes_checked=bytes_checked,
    damage=tuple(sorted(damage)),
    incomplete=tuple(incomplete),
  )


def _is_there(place: _places.Place, path: str) -> bool:
  """Whether a step is still to be there, whole or not."""
  file_system = place.file_system
  if file_system.atomic_rename:
    return file_system.is_dir(path)
  if file_system.exists(fs.join(path, _layout.MANIFEST)):
    return True
  listed = _history.listed(file_system, place.directory)
  return listed is not None and _step_of(path) in listed


def _look(place: _places.Place) -> tuple[list[str], list[str], list[Damage]]:
  """Paths of steps to check, names of incomplete ones, and the history's."""
  file_system = place.file_system
  paths, incomplete, damage = [], [], []
  lost = _history.without_manifest(file_system, place.directory, {})
  for name in file_system.list_dir(place.directory):
    if place.only not in ('', name):
      continue
    path = fs.join(place.directory, name)
    if _layout.is_temporary(name) or _layout.is_deleting(name):
      incomplete.append(name)
    elif _layout.parse_step(name) is None or not file_system.is_dir(path):
      continue
    elif file_system.exists(fs.join(path, _layout.MANIFEST)):
      paths.append(path)
    elif file_system.atomic_rename or path in lost:
      # A step gets its name, or is listed, only with its manifest in it.
      manifest = fs.join(path, _layout.MANIFEST)
      damage.append(Damage(manifest, reason='it is missing'))
    elif not _sweep.hides_damage(file_system, path):
      incomplete.append(name)
  if not place.only:
    damage.extend(_check_history(place, paths))
  return sorted(paths, key=_step_of), incomplete, damage


def _step_of(path: str) -> int:
  step = _layout.parse_step(fs.base_name(path))
  assert step is not None
  return step


def _check_history(place: _places.Place, paths: list[str]) -> Iterator[Damage]:
  path = fs.join(place.directory, _layout.HISTORY)
  on_disk = {_step_of(p) for p in paths}
  try:
    data = place.file_system.read_bytes(path)
    records = _history.decode(data, path=path)
  except FileNotFoundError:
    if on_disk:
      yield Damage(path, reason='it is missing')
    return
  except (errors.CheckpointDamagedError, OSError) as e:
    yield _damage_of(path, e)
    return
  gone = sorted({r.step for r in records} - on_disk)
  # An older one may have been taken away by hand.
  if gone and max(gone) > max(on_disk, default=-1):
    yield Damage(path, reason=f'it lists steps {gone}, which are not on disk')


def _damage_of(path: str, error: BaseException) -> Damage:
  return Damage(
    path,
    reason=_without_path(str(error), path),
    is_unreadable=isinstance(
      error, errors.CheckpointAccessError | PermissionError
    ),
  )


def _without_path(message: str, path: str) -> str:
  return message.removeprefix(f'{path} is damaged: ').removeprefix(f'{path} ')


class _Checker:
  """Checks all files of one step."""

  def __init__(self, file_system: fs.FileSystem, path: str):
    self._fs = file_system
    self._path = path
    self.damage: list[Damage] = []
    self.bytes_checked = 0

  def run(self) -> None:
    """Fills `damage` and `bytes_checked`."""
    path = fs.join(self._path, _layout.MANIFEST)
    try:
      opened = _reading.OpenStep(self._fs, self._path)
    except (errors.CheckpointError, OSError) as e:
      self._add(path, e)
      return
    with opened, contextlib.ExitStack() as stack:
      manifest = opened.manifest
      self.bytes_checked += self._fs.size(path)
      tasks: list[Callable[[], list[Damage]]] = []
      for item in manifest.items:
        self._try(fs.join(self._path, item.file), opened.read_item, item)
        self.bytes_checked += item.size
      for files in manifest.files:
        self.bytes_checked += files.index_size
        self.bytes_checked += sum(part.size for part in files.data)
        if manifest.type == 'GDA':
          stream = _Stream(self._fs, self._path, files, opened, stack)
          self.damage.extend(stream.damage)
          tasks.extend(stream.tasks())
        else:
          self._check_flax(opened, files)
      self._check_owners(manifest)
      with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        for found in pool.map(lambda task: task(), tasks):
          self.damage.extend(found)
    self.damage = _merge(self.damage)

  def _add(self, path: str, error: BaseException) -> None:
    self.damage.append(_damage_of(path, error))

  def _try(self, path: str, check: Callable[..., Any], *args: Any) -> None:
    try:
      check(*args)
    except (errors.CheckpointError, OSError) as e:
      self._add(path, e)

  def _check_flax(
    self, opened: _reading.OpenStep, files: pb.ProcessFiles
  ) -> None:
    reader = _stores.open_step(
      self._fs, self._path, opened.manifest, process=files.process
    )
    wanted = [
      requests.make(i, _boxes.whole(info.shape), info)
      for i, info in enumerate(opened.arrays)
    ]
    path = fs.join(self._path, files.index_file)
    self._try(path, reader.read, [r for r in wanted if r.box.size])
    reader.close()

  def _check_owners(self, manifest: pb.Manifest) -> None:
    """Every box must have been written by a process that has files."""
    if manifest.type != 'GDA':
      return
    have = {files.process for files in manifest.files}
    owners = {owner for layout in manifest.layouts for owner in layout.owners}
    for owner in sorted(owners - have):
      path = fs.join(self._path, _layout.MANIFEST)
      reason = f'it names no files of process {owner}'
      self.damage.append(Damage(path, reason=reason))


@dataclasses.dataclass(frozen=True)
class _Block:
  """A run of bytes of a stream that has one checksum."""

  offset: int
  length: int
  crc: int
  array: str


class _Stream:
  """The data files of one process, checked block by block."""

  def __init__(
    self,
    file_system: fs.FileSystem,
    directory: str,
    files: pb.ProcessFiles,
    opened: _reading.OpenStep,
    stack: contextlib.ExitStack,
  ):
    self._fs = file_system
    self.damage: list[Damage] = []
    self._readers: list[fs.Reader | None] = []
    self._names = [fs.join(directory, part.name) for part in files.data]
    for part, path in zip(files.data, self._names, strict=True):
      reader = self._open(path, part.size, opened.manifest)
      if reader is not None:
        stack.callback(reader.close)
      self._readers.append(reader)
    self._blocks: list[_Block] = []
    self._part_bytes = 1
    path = fs.join(directory, files.index_file)
    try:
      index = sharded_reader.read_index(
        file_system, directory, files, opened.manifest
      )
      self._part_bytes = index.part_bytes
      self._blocks = list(_blocks_of(index, opened.arrays))
    except (errors.CheckpointError, OSError) as e:
      self._add(path, e)

  def _add(self, path: str, error: BaseException) -> None:
    self.damage.append(_damage_of(path, error))

  def _open(
    self, path: str, size: int, manifest: pb.Manifest
  ) -> fs.Reader | None:
    try:
      reader = requests.open_file(self._fs, path)
    except (errors.CheckpointError, OSError) as e:
      self._add(path, e)
      return None
    if reader.size != size:
      reason = f'it has {reader.size} bytes, not {size}'
      self.damage.append(Damage(path, reason=reason))
    try:
      sharded_reader.check_header(reader, path, manifest)
    except (errors.CheckpointError, OSError) as e:
      self._add(path, e)
    return reader

  def tasks(self) -> Iterator[Callable[[], list[Damage]]]:
    """Pieces of work that may run on any thread."""
    group: list[_Block] = []
    length = 0
    for block in self._blocks:
      if group and length + block.length > _CHUNK_BYTES:
        yield self._task(group)
        group, length = [], 0
      group.append(block)
      length += block.length
    if group:
      yield self._task(group)

  def _task(self, group: list[_Block]) -> Callable[[], list[Damage]]:
    return lambda: self._check(group)

  def _check(self, group: list[_Block]) -> list[Damage]:
    first = group[0].offset
    memory = np.zeros(group[-1].offset + group[-1].length - first, np.uint8)
    self._read(first, memory)
    found = []
    for block in group:
      at = block.offset - first
      if _integrity.crc32c(memory[at : at + block.length]) != block.crc:
        found.extend(self._damage_in(block))
    return found

  def _read(self, offset: int, into: np.ndarray) -> None:
    """Reads what is there; what is not stays zero, and fails its checksum."""
    done = 0
    for part, place, count in plans.pieces(self._part_bytes, offset, into.size):
      view = memoryview(into.data)[done : done + count]
      done += count
      reader = self._readers[part] if part < len(self._readers) else None
      if reader is not None:
        with contextlib.suppress(OSError):
          reader.read_into(place, view)

  def _damage_in(self, block: _Block) -> Iterator[Damage]:
    for part, place, count in plans.pieces(
      self._part_bytes, block.offset, block.length
    ):
      # A part that is missing altogether is told once.
      if part < len(self._readers) and self._readers[part] is not None:
        yield Damage(
          self._names[part],
          place,
          place + count,
          block.array,
          'it does not match its checksum',
        )


def _blocks_of(
  index: pb.Index, arrays: list[_state.ArrayInfo]
) -> Iterator[_Block]:
  """The blocks of a stream in order; they cover every byte of it."""
  crcs = iter(index.crc32c)
  offsets = list(index.offset)
  ends = [*offsets, index.total_bytes][1:]
  for array, begin, end in zip(index.array, offsets, ends, strict=True):
    for at in range(begin, end, _BLOCK):
      crc = next(crcs, None)
      if crc is None:
        raise errors.CheckpointDamagedError('it lists too few checksums')
      yield _Block(at, min(_BLOCK, end - at), crc, arrays[array].name)


def _merge(damage: list[Damage]) -> list[Damage]:
  """Puts neighbouring damage of one array together."""
  merged: list[Damage] = []
  for each in sorted(damage):
    before = merged[-1] if merged else None
    if (
      before is not None
      and each.last
      and (before.file, before.array, before.reason, before.last)
      == (each.file, each.array, each.reason, each.first)
    ):
      merged[-1] = dataclasses.replace(before, last=each.last)
    else:
      merged.append(each)
  return merged
