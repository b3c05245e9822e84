"""What a file system is, and how its paths are put together."""

import abc
import contextlib
from typing import IO, Protocol, runtime_checkable


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
    chunk_bytes: How much one read should ask for.
  """

  atomic_rename: bool = True
  part_bytes: int = (1 << 30) - (1 << 20)
  num_threads: int = 2
  whole_parts: bool = False
  # Few enough that several threads' chunks stay in a processor's cache.
  chunk_bytes: int = 4 << 20

  @abc.abstractmethod
  def read_bytes(self, path: str) -> bytes:
    """All of a file."""

  @abc.abstractmethod
  def write_new(self, path: str, data: bytes) -> None:
    """Writes a file whole and makes its bytes (not its name) durable."""

  @abc.abstractmethod
  def write_atomic(self, path: str, data: bytes) -> None:
    """Replaces a file so that readers see the old or the new one, durably."""

  def write_over(self, path: str, data: bytes) -> None:
    """Replaces a small text where there is no room for a second file.

    Spaces follow where it is shorter than what was there. Whoever reads in
    just that moment may see some of both.
    """
    self.write_atomic(path, data)

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
