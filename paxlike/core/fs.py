"""Files by name, on this machine or in an object store, behind one interface.

Promises: a file written with `write_atomic` is seen whole or not at all and is
durable when the call returns; nothing here imports more than the standard
library until a `gs://` or `s3://` path is used. Every touch of the disk is one
method of `FileSystem`, so that a test can make the k-th one fail. Which names
exist and what they mean is the caller's.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from paxlike.core import _local, _storage, errors

_SCHEMES = ('gs://', 's3://')
_SCHEME = re.compile(r'[A-Za-z][A-Za-z0-9+.\-]*:/')

BLOCK_BYTES = _local.BLOCK_BYTES
FileSystem = _storage.FileSystem
LocalFileSystem = _local.LocalFileSystem
Reader = _storage.Reader
Writer = _storage.Writer
base_name = _storage.base_name
join = _storage.join
parent_dir = _storage.parent_dir

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


def expand(path: str) -> str:
  """Makes a local path absolute, '~' included; leaves a remote one alone.

  Raises:
    UsageError: It is of a kind of store that is not served; taken as a local
      path, it would be lost in a directory called 's3:' or 'https:'.
  """
  if is_remote(path):
    return path.rstrip('/')
  if _SCHEME.match(path):
    raise errors.UsageError(
      f'{path} is neither gs://... nor s3://... nor a path on this machine. A '
      f'directory of that name here is ./{path}'
    )
  return os.path.abspath(os.path.expanduser(path))


@contextlib.contextmanager
def reading(file_system: FileSystem, path: str) -> Iterator[Reader]:
  """Opens a file for reading and closes it at the end of the block."""
  reader: Any = file_system.open_read(path)
  try:
    yield reader
  finally:
    reader.close()
