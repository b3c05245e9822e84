"""Finds files by name, wildcard, package or standard library, and reads them.

A name is one of:
  a path, local or gs:// or s3://, whose names may hold wildcards (`**` only
  in local ones);
  `package:bible/data/kjv.jsonl`, a file inside an installed package;
  `stdlib:json/*.py`, files of Python's own standard library.
"""

import fnmatch
import glob
import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Sequence

from paxlike.core import errors, fs

_PACKAGE = 'package:'
_STDLIB = 'stdlib:'


def read_all(patterns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
  """Names and contents of all files that match, in a fixed order.

  Args:
    patterns: Files are in the order of the patterns, then of their names.

  Yields:
    Name without what differs from machine to machine (path within the
    package or library, else the last part of the path), and the bytes.

  Raises:
    InputError: A pattern matches no file, or a package is not installed.
  """
  for pattern in patterns:
    root, relative = _resolve(pattern)
    names = _match(root, relative)
    if not names:
      raise errors.InputError(f'No file matches {pattern!r} ({root}).')
    for name in names:
      path = fs.join(root, name)
      yield name, fs.for_path(path).read_bytes(path)


def _resolve(pattern: str) -> tuple[str, str]:
  """The directory to look in and the pattern to look for there."""
  if pattern.startswith(_PACKAGE):
    package, _, inside = pattern.removeprefix(_PACKAGE).partition('/')
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
      raise errors.InputError(
        f'{pattern!r} needs the Python package {package!r}, which is not '
        "installed. For the examples: pip install 'paxlike[examples]'."
      )
    return next(iter(spec.submodule_search_locations)), inside
  if pattern.startswith(_STDLIB):
    return sysconfig.get_path('stdlib'), pattern.removeprefix(_STDLIB)
  path = fs.expand(pattern)
  head, _, tail = path.partition('**')
  fixed = fs.parent_dir(head + 'x')
  # Wildcards in directory names above: search from the last fixed one.
  while glob.has_magic(fixed):
    fixed = fs.parent_dir(fixed)
  del tail
  return fixed, path[len(fixed) :].lstrip('/')


def _match(root: str, pattern: str) -> list[str]:
  if not glob.has_magic(pattern):
    return [pattern] if fs.for_path(root).exists(fs.join(root, pattern)) else []
  if not fs.is_remote(root):
    found = glob.glob(pattern, root_dir=root, recursive=True)
    return sorted(
      name
      for name in found
      if os.path.isfile(os.path.join(root, name))
      and 'site-packages' not in name.split(os.sep)
    )
  names = ['']
  for part in pattern.split('/'):
    names = [
      fs.join(above, name) if above else name
      for above in names
      for name in _names_in(fs.join(root, above) if above else root)
      if fnmatch.fnmatchcase(name, part)
    ]
  return sorted(names)


def _names_in(directory: str) -> list[str]:
  try:
    return fs.for_path(directory).list_dir(directory)
  except (FileNotFoundError, NotADirectoryError):
    return []
