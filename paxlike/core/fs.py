"""Files by name, on this machine or in an object store, behind one interface.

Promises: a file written with `write_atomic` is seen whole or not at all and is
durable when the call returns; nothing here imports more than the standard
library until a `gs://` or `s3://` path is used. Every touch of the disk is one
method of `FileSystem`, so that a test can make the k-th one fail. Which names
exist and what they mean is the caller's.
"""

# ruff: noqa: D102 (what a method promises is told in `FileSystem`)

import abc
import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from typing import IO, Any, Protocol, runtime_checkable

_SCHEMES = ('gs://', 's3://')
# What O_DIRECT asks of addresses, offsets and lengths on any common disk.
BLOCK_BYTES = 4096
_DIRECT = getattr(os, 'O_DIRECT', 0)
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@runtime_checkable
@runtime_checkable
class Writer(Protocol):
  """A new file that is filled at known places, from several threads."""

  def write_at(self, offset: int, data: memoryview) -> None:
    """Writes all of `data` at `offset`."""
    ...

  def finish(self) -> None:
    """Makes everything written durable and closes."""
    ...

  def abort(self) -> None:
    """Closes without any promise about the contents; never raises."""
    ...


@runtime_checkable
@runtime_checkable
class Reader(Protocol):
  """An open file; it stays readable while open even if it is deleted."""

  @property
  def size(self) -> int:
    """Length of the file in bytes."""
    ...

  def read_into(self, offset: int, into: memoryview) -> int:
    """Fills `into` from `offset`; returns fewer bytes only at the end."""
    ...

  def close(self) -> None:
    """Closes; a second call does nothing."""
    ...


class FileSystem(abc.ABC):
  """One kind of storage.

  Attributes:
    atomic_rename: Whether `rename` moves a whole directory in one step.
    part_bytes: The most payload that one data file should hold.
    num_threads: How many transfers at a time use it well.
    whole_parts: Whether a file is sent in one piece, from start to end.
  """

  atomic_rename: bool = True
  part_bytes: int = (1 << 30) - (1 << 20)
  num_threads: int = 2
  whole_parts: bool = False

  @abc.abstractmethod
  def read_bytes(self, path: str) -> bytes:
    """All of a file."""

  @abc.abstractmethod
  def write_new(self, path: str, data: bytes) -> None:
    """Writes a file whole and makes its bytes (not its name) durable."""

  @abc.abstractmethod
  def write_atomic(self, path: str, data: bytes) -> None:
    """Replaces a file so that readers see the old or the new one, durably."""

  @abc.abstractmethod
  def exists(self, path: str) -> bool:
    """Whether there is a file or directory of that name."""

  @abc.abstractmethod
  def is_dir(self, path: str) -> bool:
    """Whether it is a directory (object store: a prefix of some object)."""

  @abc.abstractmethod
  def list_dir(self, path: str) -> list[str]:
    """Names in a directory, sorted; raises FileNotFoundError if absent."""

  @abc.abstractmethod
  def make_dirs(self, path: str) -> None:
    """Makes a directory and its parents; existing ones are fine."""

  @abc.abstractmethod
  def rename(self, source: str, target: str) -> None:
    """Moves a file or directory; the target is replaced if it is a file."""

  @abc.abstractmethod
  def remove(self, path: str) -> None:
    """Removes a file or an empty directory; an absent one is fine."""

  @abc.abstractmethod
  def open_append(self, path: str) -> IO[bytes]:
    """Opens for adding at the end; an object store rewrites it on flush."""

  @abc.abstractmethod
  def size(self, path: str) -> int:
    """Length of a file in bytes."""

  @abc.abstractmethod
  def mtime_s(self, path: str) -> float:
    """When it was last written, in seconds since 1970 UTC."""

  @abc.abstractmethod
  def create(self, path: str, size_bytes: int) -> Writer:
    """Opens a new file of a known size; fails early if it cannot fit."""

  @abc.abstractmethod
  def open_read(self, path: str) -> Reader:
    """Opens a file for reading at any place, from several threads."""

  def sync_dir(self, path: str) -> None:  # noqa: B027 (nothing to do by default)
    """Makes the names in a directory durable."""

  def exchange(self, one: str, other: str) -> bool:
    """Swaps two directories in one step; False where that cannot be done."""
    del one, other
    return False

  def free_bytes(self, path: str) -> int | None:
    """Room left where `path` lies; None where that is not known."""
    del path
    return None

  def remove_tree(self, path: str) -> None:
    """Removes a directory and all in it; what is absent already is fine."""
    for name in self._children(path):
      below = join(path, name)
      if self.is_dir(below):
        self.remove_tree(below)
      else:
        self.remove(below)
    self.remove(path)

  def tree_bytes(self, path: str) -> int:
    """Bytes of all files below a directory; vanishing ones count nothing."""
    total = 0
    for name in self._children(path):
      below = join(path, name)
      with contextlib.suppress(FileNotFoundError):
        total += (
          self.tree_bytes(below) if self.is_dir(below) else self.size(below)
        )
    return total

  def _children(self, path: str) -> list[str]:
    try:
      return self.list_dir(path)
    except (FileNotFoundError, NotADirectoryError):
      return []


def _is_not_direct(error: OSError) -> bool:
  return error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)


class _LocalWriter:
  """Writes past the page cache where the disk allows it."""

  def __init__(self, path: str, size_bytes: int):
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    self._is_direct = bool(_DIRECT)
    try:
      self._fd = os.open(path, flags | _DIRECT, 0o666)
    except OSError as e:
      if not _is_not_direct(e):
        raise
      # The file may have been made before the flag was refused.
      with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
      self._is_direct = False
      self._fd = os.open(path, flags, 0o666)
    try:
      self._reserve(size_bytes)
    except BaseException:
      self.abort()
      raise

  def _reserve(self, size_bytes: int) -> None:
    # Without O_DIRECT it may be a network disk, where the C library imitates
    # fallocate by writing to every block.
    if not self._is_direct or not size_bytes:
      return
    try:
      os.posix_fallocate(self._fd, 0, size_bytes)
    except OSError as e:
      if not _is_not_direct(e):
        raise

  def write_at(self, offset: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
      try:
        done += os.pwrite(self._fd, data[done:], offset + done)
      except OSError as e:
        if not (self._is_direct and _is_not_direct(e)):
          raise
        self._stop_direct()

  def _stop_direct(self) -> None:
    import fcntl

    self._is_direct = False
    flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
    fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~_DIRECT)

  def finish(self) -> None:
    try:
      os.fsync(self._fd)
    finally:
      self.abort()

  def abort(self) -> None:
    if self._fd >= 0:
      fd, self._fd = self._fd, -1
      with contextlib.suppress(OSError):
        os.close(fd)


class _LocalReader:
  """Reads from the page cache what is there, and past it what is not."""

  def __init__(self, path: str):
    self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    self._direct_fd = -1
    self.size = os.fstat(self._fd).st_size
    if self.size >= 1 << 20 and not self._is_resident():
      with contextlib.suppress(OSError):
        self._direct_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | _DIRECT)

  def _is_resident(self) -> bool:
    """Whether at least half of a few sampled pages are in memory."""
    samples = 8
    byte = bytearray(1)
    found = 0
    for i in range(samples):
      with contextlib.suppress(OSError):
        offset = (self.size - 1) * i // (samples - 1)
        found += os.preadv(self._fd, [byte], offset, os.RWF_NOWAIT)
    return found * 2 >= samples

  def read_into(self, offset: int, into: memoryview) -> int:
    done = self._read_direct(offset, into)
    while done < len(into):
      count = os.preadv(self._fd, [into[done:]], offset + done)
      if not count:
        break
      done += count
    return done

  def _read_direct(self, offset: int, into: memoryview) -> int:
    whole = len(into) - len(into) % BLOCK_BYTES
    if self._direct_fd < 0 or offset % BLOCK_BYTES or whole < 1 << 16:
      return 0
    if ctypes.addressof(ctypes.c_char.from_buffer(into)) % BLOCK_BYTES:
      return 0
    done = 0
    while done < whole:
      try:
        count = os.preadv(self._direct_fd, [into[done:whole]], offset + done)
      except OSError as e:
        if not _is_not_direct(e):
          raise
        break
      done += count
      if not count or done % BLOCK_BYTES:
        break
    return done

  def close(self) -> None:
    for name in ('_fd', '_direct_fd'):
      fd = getattr(self, name)
      setattr(self, name, -1)
      if fd >= 0:
        os.close(fd)


class LocalFileSystem(FileSystem):
  """The disks of this machine, network mounts included."""

  def read_bytes(self, path: str) -> bytes:
    with open(path, 'rb') as f:
      return f.read()

  def write_new(self, path: str, data: bytes) -> None:
    with open(path, 'wb') as f:
      f.write(data)
      f.flush()
      os.fsync(f.fileno())

  def write_atomic(self, path: str, data: bytes) -> None:
    # One fixed name, so that a crash leaves at most one and the next write
    # takes it over.
    parent, name = os.path.split(path)
    temporary = os.path.join(parent, f'.{name}.tmp')
    try:
      self.write_new(temporary, data)
      self.rename(temporary, path)
    except OSError:
      with contextlib.suppress(OSError):
        os.unlink(temporary)
      raise
    self.sync_dir(parent or '.')

  def exists(self, path: str) -> bool:
    return os.path.lexists(path)

  def is_dir(self, path: str) -> bool:
    return os.path.isdir(path)

  def list_dir(self, path: str) -> list[str]:
    return sorted(os.listdir(path))

  def make_dirs(self, path: str) -> None:
    os.makedirs(path, exist_ok=True)

  def rename(self, source: str, target: str) -> None:
    os.rename(source, target)

  def remove(self, path: str) -> None:
    try:
      if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)
      else:
        os.unlink(path)
    except FileNotFoundError:
      pass

  def open_append(self, path: str) -> IO[bytes]:
    return open(path, 'ab')

  def size(self, path: str) -> int:
    return os.stat(path).st_size

  def mtime_s(self, path: str) -> float:
    return os.stat(path).st_mtime

  def create(self, path: str, size_bytes: int) -> Writer:
    return _LocalWriter(path, size_bytes)

  def open_read(self, path: str) -> Reader:
    return _LocalReader(path)

  def sync_dir(self, path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
      os.fsync(fd)
    except OSError as e:
      # Some network disks refuse to sync a directory, and need not.
      if not _is_not_direct(e):
        raise
    finally:
      os.close(fd)

  def exchange(self, one: str, other: str) -> bool:
    function = getattr(ctypes.CDLL(None, use_errno=True), 'renameat2', None)
    if function is None:
      return False
    status = function(
      _AT_FDCWD,
      os.fsencode(one),
      _AT_FDCWD,
      os.fsencode(other),
      _RENAME_EXCHANGE,
    )
    return status == 0

  def free_bytes(self, path: str) -> int | None:
    return shutil.disk_usage(path).free


LOCAL = LocalFileSystem()


def is_remote(path: str) -> bool:
  """Whether a path names an object in a store rather than a local file."""
  return path.startswith(_SCHEMES)


def for_path(path: str) -> FileSystem:
  """The file system that serves a local, `gs://` or `s3://` path."""
  if not is_remote(path):
    return LOCAL
  from paxlike.core import _object_store

  return _object_store.for_scheme(path.split('://', maxsplit=1)[0])


def join(path: str, *names: str) -> str:
  """Appends names to a path, local or remote."""
  return '/'.join([path.rstrip('/'), *names])


def base_name(path: str) -> str:
  """The last name of a path."""
  return path.rstrip('/').rsplit('/', 1)[-1]


def parent_dir(path: str) -> str:
  """All but the last name of a path; '.' where there is only one."""
  head, _, _ = path.rstrip('/').rpartition('/')
  return head or ('/' if path.startswith('/') else '.')


def expand(path: str) -> str:
  """Makes a local path absolute, '~' included; leaves a remote one alone."""
  if is_remote(path):
    return path.rstrip('/')
  return os.path.abspath(os.path.expanduser(path))


@contextlib.contextmanager
def reading(file_system: FileSystem, path: str) -> Iterator[Reader]:
  """Opens a file for reading and closes it at the end of the block."""
  reader: Any = file_system.open_read(path)
  try:
    yield reader
  finally:
    reader.close()
