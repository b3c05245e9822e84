"""A file system that goes wrong, or ends the process, at a chosen call.

Every method that touches the disk is a call and is counted, those that larger
ones are made of as well: `write_atomic` is also `write_new`, `rename` and
`sync_dir`, and `remove_tree` is one call for each name below. The files are
real and local.
"""

import dataclasses
import itertools
import os
import signal
import threading
from collections.abc import Callable
from typing import IO, Any

from paxlike.core import fs


@dataclasses.dataclass(frozen=True)
class Call:
  """One touch of the disk."""

  method: str
  path: str


class Fault:
  """What happens at some calls; told of each before it is made."""

  def before(self, number: int, call: Call) -> None:
    """May raise, wait or never return."""

  def part(self, number: int, call: Call, length: int) -> int | None:
    """How much of a write is done before `torn`; None for all of it."""
    return None

  def torn(self, number: int, call: Call) -> None:
    """After such a part of a write; must raise or never return."""
    raise AssertionError(f'{call} was to be torn, and nothing happened.')


@dataclasses.dataclass(frozen=True)
class DieAt(Fault):
  """Kills the process at a call, as `kill -9` does.

  Attributes:
    number: Which call, from 1.
    is_torn: Half of what the call writes is written first. The process lives
      through the call if that is no write.
  """

  number: int
  is_torn: bool = False

  def before(self, number: int, call: Call) -> None:
    if number == self.number and not self.is_torn:
      _die()

  def part(self, number: int, call: Call, length: int) -> int | None:
    return length // 2 if number == self.number and self.is_torn else None

  def torn(self, number: int, call: Call) -> None:
    _die()


class DieInWrite(Fault):
  """Kills the process in the middle of a write: half of it is done.

  Attributes:
    number: Which write, from 1; other calls are not counted.
  """

  def __init__(self, number: int):
    self.number = number
    self._writes = itertools.count(1)

  def part(self, number: int, call: Call, length: int) -> int | None:
    return length // 2 if next(self._writes) == self.number else None

  def torn(self, number: int, call: Call) -> None:
    _die()


def _die() -> None:
  os.kill(os.getpid(), signal.SIGKILL)
  signal.pause()


class Stopped(BaseException):
  """Stands for the end of the process; nothing may catch it."""


@dataclasses.dataclass
class StopAt(Fault):
  """Acts as if the process ended at a call: no later one reaches the disk.

  As good as `DieAt` for what is on the disk afterwards, and a hundred times
  faster.

  Attributes:
    number: Which call, from 1.
    is_torn: Half of what the call writes is written first.
  """

  number: int
  is_torn: bool = False

  def before(self, number: int, call: Call) -> None:
    if number > self.number or (number == self.number and not self.is_torn):
      raise Stopped

  def part(self, number: int, call: Call, length: int) -> int | None:
    return length // 2 if number == self.number and self.is_torn else None

  def torn(self, number: int, call: Call) -> None:
    raise Stopped


@dataclasses.dataclass(frozen=True)
class FailWhen(Fault):
  """Raises an error at the calls that a predicate picks.

  Attributes:
    picks: Of (number from 1, call).
    error: Makes the error.
    is_torn: Half of what the call writes is written first.
  """

  picks: Callable[[int, Call], bool]
  error: Callable[[], BaseException]
  is_torn: bool = False

  def before(self, number: int, call: Call) -> None:
    if not self.is_torn and self.picks(number, call):
      raise self.error()

  def part(self, number: int, call: Call, length: int) -> int | None:
    return length // 2 if self.is_torn and self.picks(number, call) else None

  def torn(self, number: int, call: Call) -> None:
    raise self.error()


@dataclasses.dataclass(frozen=True)
class DelayWhen(Fault):
  """Calls `wait` before the calls that a predicate picks."""

  picks: Callable[[int, Call], bool]
  wait: Callable[[], None]

  def before(self, number: int, call: Call) -> None:
    if self.picks(number, call):
      self.wait()


class FaultyFileSystem(fs.LocalFileSystem):
  """The local disk with a fault.

  Attributes:
    calls: All calls so far, in order.
    in_place: Behave as a store without rename does: steps are written under
      their final names.
  """

  def __init__(
    self, fault: Fault | None = None, *, in_place: bool = False, **options: Any
  ):
    self.calls: list[Call] = []
    self._fault = fault or Fault()
    self._lock = threading.Lock()
    self.atomic_rename = not in_place
    for name, value in options.items():
      setattr(self, name, value)

  def _count(self, method: str, path: str) -> int:
    call = Call(method, path)
    with self._lock:
      self.calls.append(call)
      number = len(self.calls)
    self._fault.before(number, call)
    return number

  def read_bytes(self, path: str) -> bytes:
    self._count('read_bytes', path)
    return super().read_bytes(path)

  def write_new(self, path: str, data: bytes) -> None:
    number = self._count('write_new', path)
    call = Call('write_new', path)
    part = self._fault.part(number, call, len(data))
    if part is None:
      super().write_new(path, data)
      return
    with open(path, 'wb') as f:
      f.write(data[:part])
    self._fault.torn(number, call)

  def exists(self, path: str) -> bool:
    self._count('exists', path)
    return super().exists(path)

  def is_dir(self, path: str) -> bool:
    self._count('is_dir', path)
    return super().is_dir(path)

  def list_dir(self, path: str) -> list[str]:
    self._count('list_dir', path)
    return super().list_dir(path)

  def make_dirs(self, path: str) -> None:
    self._count('make_dirs', path)
    super().make_dirs(path)

  def rename(self, source: str, target: str) -> None:
    self._count('rename', target)
    super().rename(source, target)

  def exchange(self, one: str, other: str) -> bool:
    self._count('exchange', other)
    return self.atomic_rename and super().exchange(one, other)

  def remove(self, path: str) -> None:
    self._count('remove', path)
    super().remove(path)

  def open_append(self, path: str) -> IO[bytes]:
    self._count('open_append', path)
    return super().open_append(path)

  def size(self, path: str) -> int:
    self._count('size', path)
    return super().size(path)

  def mtime_s(self, path: str) -> float:
    self._count('mtime_s', path)
    return super().mtime_s(path)

  def sync_dir(self, path: str) -> None:
    self._count('sync_dir', path)
    super().sync_dir(path)

  def create(self, path: str, size_bytes: int) -> fs.Writer:
    self._count('create', path)
    return _FaultyWriter(self, path, super().create(path, size_bytes))

  def open_read(self, path: str) -> fs.Reader:
    self._count('open_read', path)
    return _FaultyReader(self, path, super().open_read(path))


class _FaultyWriter:
  def __init__(self, owner: FaultyFileSystem, path: str, inner: fs.Writer):
    self._owner = owner
    self._path = path
    self._inner = inner

  def write_at(self, offset: int, data: memoryview) -> None:
    number = self._owner._count('write_at', self._path)
    call = Call('write_at', self._path)
    part = self._owner._fault.part(number, call, len(data))
    if part is None:
      self._inner.write_at(offset, data)
      return
    part -= part % fs.BLOCK_BYTES
    self._inner.write_at(offset, data[:part])
    self._owner._fault.torn(number, call)

  def finish(self) -> None:
    try:
      self._owner._count('finish', self._path)
    except BaseException:
      self._inner.abort()
      raise
    self._inner.finish()

  def abort(self) -> None:
    self._inner.abort()


class _FaultyReader:
  def __init__(self, owner: FaultyFileSystem, path: str, inner: fs.Reader):
    self._owner = owner
    self._path = path
    self._inner = inner

  @property
  def size(self) -> int:
    return self._inner.size

  def read_into(self, offset: int, into: memoryview) -> int:
    self._owner._count('read_into', self._path)
    return self._inner.read_into(offset, into)

  def close(self) -> None:
    self._inner.close()
