"""The disks of this machine: atomic, durable, past the page cache."""

import contextlib
import ctypes
import errno
import io
import os
import random
import shutil
import stat
from collections.abc import Iterator
from typing import IO, Any

from paxlike.core import _storage

# What O_DIRECT asks of addresses, offsets and lengths on any common disk.
BLOCK_BYTES = 4096
_DIRECT = getattr(os, 'O_DIRECT', 0)
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_NUM_SAMPLES = 8


def _is_not_direct(error: OSError) -> bool:
  return error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
  """Names the file in errors, which a full disk does not by itself."""
  try:
    yield
  except OSError as error:
    error.filename = path
    raise


def _mode(path: str) -> int | None:
  """What is there; None for nothing. Raises where that may not be known."""
  try:
    return os.stat(path).st_mode
  except (FileNotFoundError, NotADirectoryError):
    return None


class _LocalWriter:
  """Writes past the page cache where the disk allows it."""

  def __init__(self, path: str, size_bytes: int):
    self._path = path
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
      with _named(path):
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
          e.filename = self._path
          raise
        self._stop_direct()

  def _stop_direct(self) -> None:
    import fcntl

    self._is_direct = False
    flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
    fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~_DIRECT)

  def finish(self) -> None:
    try:
      with _named(self._path):
        os.fsync(self._fd)
    finally:
      self.abort()

  def abort(self) -> None:
    if self._fd >= 0:
      fd, self._fd = self._fd, -1
      with contextlib.suppress(OSError):
        os.close(fd)


class _Appender(io.BufferedWriter):
  """Adds to a file, and names it where that fails."""

  def __init__(self, path: str):
    super().__init__(io.FileIO(path, 'ab'))
    self._path = path

  def write(self, data: Any, /) -> int:
    with _named(self._path):
      return super().write(data)

  def flush(self) -> None:
    with _named(self._path):
      super().flush()

  def close(self) -> None:
    with _named(self._path):
      super().close()


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
    # Elsewhere each time: to ask for a page makes the system fetch it.
    random_source = random.Random()
    byte = bytearray(1)
    found = 0
    for _ in range(_NUM_SAMPLES):
      with contextlib.suppress(OSError):
        offset = random_source.randrange(self.size)
        found += os.preadv(self._fd, [byte], offset, os.RWF_NOWAIT)
    return found * 2 >= _NUM_SAMPLES

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


class LocalFileSystem(_storage.FileSystem):
  """The disks of this machine, network mounts included."""

  def read_bytes(self, path: str) -> bytes:
    with open(path, 'rb') as f:
      return f.read()

  def write_new(self, path: str, data: bytes) -> None:
    with _named(path), open(path, 'wb') as f:
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
    except OSError as error:
      with contextlib.suppress(OSError):
        os.unlink(temporary)
      error.filename = path
      raise
    self.sync_dir(parent or '.')

  def write_over(self, path: str, data: bytes) -> None:
    with _named(path), open(path, 'r+b', buffering=0) as f:
      f.write(data.ljust(os.fstat(f.fileno()).st_size))
      os.fsync(f.fileno())

  def exists(self, path: str) -> bool:
    return _mode(path) is not None

  def is_dir(self, path: str) -> bool:
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)

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
    except (FileNotFoundError, NotADirectoryError):
      pass

  def open_append(self, path: str) -> IO[bytes]:
    return _Appender(path)

  def size(self, path: str) -> int:
    return os.stat(path).st_size

  def mtime_s(self, path: str) -> float:
    return os.stat(path).st_mtime

  def create(self, path: str, size_bytes: int) -> _storage.Writer:
    return _LocalWriter(path, size_bytes)

  def open_read(self, path: str) -> _storage.Reader:
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
