"""Writes down what a run was started with, to read and to start it again."""

import contextlib
import glob
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paxlike import config
from paxlike.core import errors, fs
from paxlike.experiment import _resolve

CONFIG_DIR = 'config'
_SUFFIXES = ('txt', 'json')
_NUMBERED = re.compile(r'train\.([0-9]+)\.(?:txt|json)')
_MAX_CHANGES = 5
_PACKAGES = (
  'paxlike',
  'jax',
  'jaxlib',
  'flax',
  'optax',
  'fiddle',
  'numpy',
  'tensorstore',
)
_GIT_TIMEOUT_S = 5.0


@contextlib.contextmanager
def recording(
  job_log_dir: str,
  mode: str,
  resolved: _resolve.Resolved,
  *,
  command: Sequence[str] = (),
) -> Iterator[str]:
  """Records the config for the time of a run, and for good if it is one.

  Where the block ends in wrong use, what was recorded before is put back: it
  is what the checkpoints there were trained with. Of a job that was none
  before, empty directories go as well.

  Args:
    job_log_dir: The job's directory.
    mode: 'train', 'eval' or 'decode'.
    resolved: The config of the run.
    command: The command line, program first.

  Yields:
    For a training that was started before with another config: what was
    changed, in a line. Else nothing.
  """
  files = fs.for_path(job_log_dir)
  is_new = not files.is_dir(fs.join(job_log_dir, CONFIG_DIR))
  is_made = not files.is_dir(job_log_dir)
  before = {
    path: files.read_bytes(path) if files.exists(path) else None
    for path in _paths(job_log_dir, mode)
  }
  changed = _changed(resolved, before) if mode == 'train' else []
  kept = _keep(files, before) if changed else {}
  try:
    write_record(job_log_dir, mode, resolved, command=command)
    yield _told(changed, kept)
  except errors.PaxlikeError as error:
    if error.exit_status == errors.EXIT_USAGE:
      _put_back(files, {**before, **dict.fromkeys(kept)})
      if is_new:
        _remove_empty(files, job_log_dir, itself=is_made)
    raise


def _changed(
  resolved: _resolve.Resolved, before: Mapping[str, bytes | None]
) -> list[str]:
  """What is another value than in the text of before, if there is one."""
  text = next(iter(before.values()))
  if text is None:
    return []
  return config.dump.changes(
    text.decode(errors='replace'), config.dump.to_text(resolved.roots())
  )


def _keep(
  files: fs.FileSystem, before: Mapping[str, bytes | None]
) -> dict[str, bytes]:
  """Copies a record under the next number: config/train.1.txt and .json."""
  kept = {}
  directory = fs.parent_dir(next(iter(before)))
  numbers = [
    int(match[1])
    for match in map(_NUMBERED.fullmatch, files.list_dir(directory))
    if match
  ]
  for path, content in before.items():
    if content is not None:
      stem, _, suffix = path.rpartition('.')
      kept[f'{stem}.{max(numbers, default=0) + 1}.{suffix}'] = content
  for path, content in kept.items():
    files.write_atomic(path, content)
  return kept


def _told(changed: Sequence[str], kept: Mapping[str, bytes]) -> str:
  if not changed:
    return ''
  more = len(changed) - _MAX_CHANGES
  shown = [*changed[:_MAX_CHANGES], *([f'and {more} more'] if more > 0 else [])]
  return (
    f'The config is not that of the last start (kept as {next(iter(kept))}): '
    f'{"; ".join(shown)}'
  )


def _put_back(
  files: fs.FileSystem, contents: Mapping[str, bytes | None]
) -> None:
  for path, content in contents.items():
    if content is None:
      files.remove(path)
    else:
      files.write_atomic(path, content)


def _remove_empty(
  files: fs.FileSystem, job_log_dir: str, *, itself: bool
) -> None:
  """Takes away the empty directories of a job; an object store has none."""
  with contextlib.suppress(OSError):
    paths = [fs.join(job_log_dir, n) for n in files.list_dir(job_log_dir)]
    for path in filter(files.is_dir, paths):
      with contextlib.suppress(OSError):  # it is not empty
        files.remove(path)
    if itself:
      files.remove(job_log_dir)


def _paths(job_log_dir: str, mode: str) -> list[str]:
  """Of the two files of a record, the text first."""
  return [
    fs.join(job_log_dir, CONFIG_DIR, f'{mode}.{suffix}') for suffix in _SUFFIXES
  ]


def write_record(
  job_log_dir: str,
  mode: str,
  resolved: _resolve.Resolved,
  *,
  command: Sequence[str] = (),
) -> None:
  """Writes `config/<mode>.txt` and `.json` in the job's directory.

  A restart overwrites them, each atomically.

  Args:
    job_log_dir: The job's directory; made if missing.
    mode: 'train', 'eval' or 'decode'.
    resolved: The config of the run.
    command: The command line, program first.

  Raises:
    UsageError: There can be no such directory.
  """
  about = {
    'experiment': resolved.name,
    'mode': mode,
    **describe(resolved, command),
  }
  text = ''.join(
    f'# {name}: {_one_line(value)}\n' for name, value in about.items()
  )
  roots = resolved.roots()
  files = fs.for_path(job_log_dir)
  try:
    files.make_dirs(fs.join(job_log_dir, CONFIG_DIR))
  except OSError as error:
    raise errors.UsageError(
      f'--job_log_dir={job_log_dir} cannot be made: {error}'
    ) from error
  contents = (
    text + config.dump.to_text(roots),
    config.dump.to_json(roots, about=about),
  )
  for path, content in zip(_paths(job_log_dir, mode), contents, strict=True):
    files.write_atomic(path, content.encode())


def describe(
  resolved: _resolve.Resolved, command: Sequence[str] = ()
) -> dict[str, Any]:
  """What else decides how a run goes, as JSON values.

  Args:
    resolved: The config of the run.
    command: The command line, program first.

  Returns:
    `command`, `knobs`, `versions` and `git` (None outside a repository).
  """
  return {
    'command': shlex.join(command),
    'knobs': {
      name: value
      if value is None or isinstance(value, bool | int | float | str)
      else repr(value)
      for name, value in resolved.knobs.items()
    },
    'versions': _versions(),
    'git': _git_revision(resolved.name),
  }


def facts(resolved: _resolve.Resolved) -> dict[str, str]:
  """What must be the same on every process of a job, as text."""
  about = describe(resolved)
  return {
    'config': config.dump.to_text(resolved.roots()),
    'experiment': resolved.name,
    'code': '\n'.join([str(about['git']), *_sources(resolved.name)]),
    'versions': '\n'.join(
      f'{name} {version}' for name, version in about['versions'].items()
    ),
  }


def _sources(experiment: str) -> list[str]:
  """Name and checksum of each file of this package and of the experiment's.

  A revision says nothing of what is changed, or is in no repository.
  """
  own = os.path.dirname(os.path.dirname(__file__))
  paths = glob.glob('**/*.py', root_dir=own, recursive=True)
  found = {f'paxlike/{path}': os.path.join(own, path) for path in paths}
  module = sys.modules.get(experiment.rpartition('.')[0])
  file = getattr(module, '__file__', None)
  if module is not None and file:
    beside = os.path.dirname(file)
    package = module.__name__.rpartition('.')[0].replace('.', '/')
    for path in glob.glob('*.py', root_dir=beside):
      # Of a lone script its neighbours are none of our business.
      if package or path == os.path.basename(file):
        found[os.path.join(package, path)] = os.path.join(beside, path)
  return [f'{name} {_checksum(found[name])}' for name in sorted(found)]


def _checksum(path: str) -> str:
  try:
    with open(path, 'rb') as file:
      return f'{zlib.crc32(file.read()):08x}'
  except OSError:  # gone meanwhile, or in an archive
    return '?'


def _versions() -> dict[str, str]:
  versions = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  return versions


def _git_revision(experiment: str) -> str | None:
  """Revision of the repository that holds the experiment, `+` if changed."""
  module = sys.modules.get(experiment.rpartition('.')[0])
  directory = os.path.dirname(getattr(module, '__file__', None) or '') or '.'
  revision = _git(directory, 'rev-parse', 'HEAD')
  if revision is None:
    return None
  changed = _git(directory, 'status', '--porcelain', '--untracked-files=no')
  return revision + ('+' if changed else '')


def _git(directory: str, *arguments: str) -> str | None:
  try:
    done = subprocess.run(
      ['git', '--no-optional-locks', '-C', directory, *arguments],
      capture_output=True,
      text=True,
      timeout=_GIT_TIMEOUT_S,
      check=True,
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip()


def _one_line(value: Any) -> str:
  if isinstance(value, dict):
    return ', '.join(f'{name} {item}' for name, item in value.items())
  return str(value)
