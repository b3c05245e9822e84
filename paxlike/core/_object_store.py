"""Google Cloud Storage and S3 as a `FileSystem`, through fsspec.

Promises: an object is seen whole or not at all, as these stores do by
themselves. A directory is nothing but a common beginning of names, and there
is no rename: who needs several objects to appear at once writes one last that
says so.
"""

import calendar
import errno
import functools
import io
import logging
import sys
from typing import Any

from paxlike.core import _storage, errors

_PROTOCOLS = {'gs': ('gcs', 'gcsfs'), 's3': ('s3', 's3fs')}
# What is no failure of the store but says what is there.
_ANSWERS = (
  FileNotFoundError,
  FileExistsError,
  IsADirectoryError,
  NotADirectoryError,
)


class ObjectStore(_storage.FileSystem):
  """The objects of one kind of store.

  Attributes:
    store: The fsspec file system that carries the requests.
  """

  atomic_rename = False
  part_bytes = 64 << 20
  num_threads = 8
  whole_parts = True
  chunk_bytes = 16 << 20

  def __init__(self, store: Any):
    self.store = store

  def _ask(self, request: str, path: str, *args: Any, **kwargs: Any) -> Any:
    """What the store answers.

    Raises:
      OSError: Any failure, also those of which its clients have classes of
        their own: whoever can do with a disk that fails can do with these.
    """
    try:
      return getattr(self.store, request)(path, *args, **kwargs)
    except _ANSWERS:
      raise
    except PermissionError as e:
      raise PermissionError(errno.EACCES, str(e), path) from e
    except Exception as e:
      raise errors.StorageError(
        f'{path}: {type(e).__name__}: {e}. See that the store can be reached '
        'from this machine and that credentials for it are here.'
      ) from e

  def read_bytes(self, path: str) -> bytes:
    return self._ask('cat_file', path)

  def read_range(self, path: str, start: int, end: int) -> bytes:
    """The bytes of an object from `start` up to `end`."""
    return self._ask('cat_file', path, start=start, end=end)

  def write_new(self, path: str, data: bytes) -> None:
    self._ask('pipe_file', path, data)

  def write_atomic(self, path: str, data: bytes) -> None:
    self._ask('pipe_file', path, data)

  def exists(self, path: str) -> bool:
    return self._kind(path) is not None

  def is_dir(self, path: str) -> bool:
    return self._kind(path) == 'directory'

  def _kind(self, path: str) -> str | None:
    # The store's own `exists` and `isdir` take any failure for a no.
    try:
      return self._ask('info', path)['type']
    except FileNotFoundError:
      return None

  def list_dir(self, path: str) -> list[str]:
    found = self._ask('ls', path, detail=False, refresh=True)
    own = path.split('://', 1)[-1].rstrip('/')
    names = {
      _storage.base_name(name) for name in found if name.rstrip('/') != own
    }
    return sorted(names)

  def make_dirs(self, path: str) -> None:
    del path

  def rename(self, source: str, target: str) -> None:
    raise OSError(
      f'{source} cannot become {target}: an object store has no rename.'
    )

  def remove(self, path: str) -> None:
    try:
      self._ask('rm_file', path)
    except FileNotFoundError:
      pass
    except OSError:
      # What is no object is a directory, and those vanish by themselves.
      if self.exists(path) and not self.is_dir(path):
        raise

  def remove_tree(self, path: str) -> None:
    for name in self._children(path):
      below = _storage.join(path, name)
      if self.is_dir(below):
        self.remove_tree(below)
      else:
        self.remove(below)

  def open_append(self, path: str) -> Any:
    return _Appender(self, path)

  def size(self, path: str) -> int:
    return int(self._ask('info', path)['size'])

  def mtime_s(self, path: str) -> float:
    modified = self._ask('modified', path)
    return float(calendar.timegm(modified.utctimetuple()))

  def create(self, path: str, size_bytes: int) -> _storage.Writer:
    del size_bytes
    return _ObjectWriter(self, path)

  def open_read(self, path: str) -> _storage.Reader:
    return _ObjectReader(self, path)


class _ObjectWriter:
  """Holds what is written, in order, and sends it at the end."""

  def __init__(self, owner: ObjectStore, path: str):
    self._owner = owner
    self._path = path
    self._pieces: list[memoryview] = []
    self._length = 0

  def write_at(self, offset: int, data: memoryview) -> None:
    if offset != self._length:
      raise ValueError(
        f'{self._path} is written at {offset} after {self._length} bytes; an '
        'object is written from start to end.'
      )
    self._pieces.append(data)
    self._length += len(data)

  def finish(self) -> None:
    self._owner.write_new(self._path, b''.join(self._pieces))
    self._pieces = []

  def abort(self) -> None:
    self._pieces = []


class _ObjectReader:
  """Reads ranges of one object."""

  def __init__(self, owner: ObjectStore, path: str):
    self._owner = owner
    self._path = path
    self.size = owner.size(path)

  def read_into(self, offset: int, into: memoryview) -> int:
    end = min(offset + len(into), self.size)
    if end <= offset:
      return 0
    data = self._owner.read_range(self._path, offset, end)
    into[: len(data)] = data
    return len(data)

  def close(self) -> None:
    pass


class _Appender(io.RawIOBase):
  """Sends the whole object anew whenever it is flushed or closed."""

  def __init__(self, owner: ObjectStore, path: str):
    super().__init__()
    self._owner = owner
    self._path = path
    self._data = bytearray(
      owner.read_bytes(path) if owner.exists(path) else b''
    )
    self._is_changed = False

  def writable(self) -> bool:
    return True

  def write(self, data: Any) -> int:
    self._data += data
    self._is_changed = True
    return len(data)

  def flush(self) -> None:
    if self._is_changed and not self.closed:
      self._owner.write_new(self._path, bytes(self._data))
      self._is_changed = False

  def close(self) -> None:
    if self.closed:
      return
    try:
      # When the program ends nobody carries a request any more: who has not
      # closed by then would wait for its answer for ever.
      if not sys.is_finalizing():
        self.flush()
    finally:
      self._is_changed = False
      super().close()


@functools.cache
def for_scheme(scheme: str) -> ObjectStore:
  """The store of `gs` or `s3` paths; credentials as its own tools find them."""
  protocol, package = _PROTOCOLS[scheme]
  try:
    import fsspec

    store = fsspec.filesystem(protocol, use_listings_cache=False)
  except ImportError as e:
    extra = 'gcs' if scheme == 'gs' else scheme
    raise errors.UsageError(
      f"{scheme}:// needs the package {package}: pip install 'paxlike[{extra}]'"
    ) from e
  # Its failures reach whoever asked; it would print each with a traceback.
  logging.getLogger(package).setLevel(logging.CRITICAL)
  return ObjectStore(store)
