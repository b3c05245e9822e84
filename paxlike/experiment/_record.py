"""Writes down what a run was started with, to read and to start it again."""

import contextlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from paxlike import config
from paxlike.core import errors, fs
from paxlike.experiment import _resolve

CONFIG_DIR = 'config'
_SUFFIXES = ('txt', 'json')
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
) -> Iterator[None]:
  """Records the config for the time of a run, and for good if it is one.

  Where the block ends in wrong use, what was recorded before is put back: it
  is what the checkpoints there were trained with.

  Args:
    job_log_dir: The job's directory.
    mode: 'train', 'eval' or 'decode'.
    resolved: The config of the run.
    command: The command line, program first.
  """
  files = fs.for_path(job_log_dir)
  before = {}
  for suffix in _SUFFIXES:
    path = fs.join(job_log_dir, CONFIG_DIR, f'{mode}.{suffix}')
    before[path] = files.read_bytes(path) if files.exists(path) else None
  write_record(job_log_dir, mode, resolved, command=command)
  try:
    yield
  except errors.PaxlikeError as error:
    if error.exit_status == errors.EXIT_USAGE:
      for path, content in before.items():
        if content is None:
          files.remove(path)
        else:
          files.write_atomic(path, content)
    raise


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
  directory = fs.join(job_log_dir, CONFIG_DIR)
  try:
    files.make_dirs(directory)
  except OSError as error:
    raise errors.UsageError(
      f'--job_log_dir={job_log_dir} cannot be made: {error}'
    ) from error
  for suffix, content in (
    ('txt', text + config.dump.to_text(roots)),
    ('json', config.dump.to_json(roots, about=about)),
  ):
    files.write_atomic(fs.join(directory, f'{mode}.{suffix}'), content.encode())


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
    'code': str(about['git']),
    'versions': '\n'.join(
      f'{name} {version}' for name, version in about['versions'].items()
    ),
  }


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
