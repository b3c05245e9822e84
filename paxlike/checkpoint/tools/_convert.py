"""From one format to another; either side may be a step of ours."""

import contextlib
import dataclasses
import enum
import os
import re
from collections.abc import Iterator

from paxlike.checkpoint.tools import (
  _bundle,
  _places,
  _reading,
)
from paxlike.core import disks, errors, fs, suggest


class Format(enum.StrEnum):
  """What a state can be read from and written to."""

  GDA = 'GDA'
  FLAX = 'FLAX'
  MULTI_HOST_FLAX = 'MULTI_HOST_FLAX'
  SAFETENSORS = 'safetensors'
  MSGPACK = 'msgpack'
  ORBAX = 'orbax'
  ZARR3 = 'zarr3'


_OURS = (Format.GDA, Format.FLAX, Format.MULTI_HOST_FLAX)
_ENDINGS = {
  '.safetensors': Format.SAFETENSORS,
  '.msgpack': Format.MSGPACK,
  '.zarr': Format.ZARR3,
}
_ORBAX_TEMPORARY = '.orbax-checkpoint-tmp'
# Written and read by libraries that are given a local path.
_ONLY_LOCAL = (Format.ORBAX, Format.ZARR3)


@dataclasses.dataclass(frozen=True)
class Converted:
  """What was written.

  Attributes:
    source: Path of what was read.
    source_format: Its format.
    target: Path of what was written.
    target_format: Its format.
    step: The step that was read, or written; None where neither has one.
    num_arrays: Arrays written.
    num_bytes: Of these arrays.
    notes: What the user should know, such as what could not be kept.
  """

  source: str
  source_format: str
  target: str
  target_format: str
  step: int | None
  num_arrays: int
  num_bytes: int
  notes: tuple[str, ...]


def convert(
  source: str | os.PathLike[str],
  target: str | os.PathLike[str],
  *,
  to: str | None = None,
  source_format: str | None = None,
  step: int | None = None,
  only: str | None = None,
  dtype: str | None = None,
  process: int = 0,
) -> Converted:
  """Writes a state in another format.

  Between GDA, FLAX, safetensors and zarr3 nothing is lost. Flax msgpack and
  Orbax hold nested containers and arrays; the notes say what they dropped.

  Args:
    source: A job_log_dir, its checkpoints or one step; or a file or directory
      of another format.
    target: A file or directory that is not there yet; for the types of this
      package the directory that will hold `checkpoint_<step>`.
    to: A `Format`; None goes by the ending of `target`, else GDA.
    source_format: A `Format`; None looks at what is there.
    step: Which step to read; if the source has none, the one to write.
    only: Regular expression of whole leaf names; others are left out.
    dtype: Floating dtype that every floating array is cast to; None keeps
      each as it is.
    process: Whose state, where every process has its own.

  Raises:
    UsageError: A path, format or expression is wrong; nothing was written.
    CheckpointDamagedError: The source is not what was written.
    SaveError: The disk is full; nothing is left on it.
  """
  if step is not None and step < 0:
    raise errors.UsageError(f'There is no step {step}: steps begin with 0.')
  source_path = fs.expand(os.fspath(source))
  target_path = fs.expand(os.fspath(target))
  target_format = _target_format(target_path, to)
  found = _source_format(source_path, source_format)
  for path, kind in ((source_path, found), (target_path, target_format)):
    if kind in _ONLY_LOCAL and fs.is_remote(path):
      raise errors.UsageError(
        f'{kind} is read and written on a local disk only, and {path} is '
        'remote: copy it.'
      )
  target_fs = fs.for_path(target_path)
  if target_format not in _OURS and target_fs.exists(target_path):
    raise errors.UsageError(
      f'{target_path} is there already. Remove it, or choose another name.'
    )
  with _load(source_path, found, step, process) as bundle:
    if only is not None:
      bundle = _bundle.select(bundle, only)
    if dtype is not None:
      bundle = _bundle.cast(bundle, dtype)
    number = bundle.step if step is None else step
    with _nothing_left(target_fs, target_path, target_format):
      written, notes = _save(
        bundle, target_fs, target_path, target_format, number
      )
    return Converted(
      source=source_path,
      source_format=str(found),
      target=written,
      target_format=str(target_format),
      step=number,
      num_arrays=len(bundle.arrays),
      num_bytes=bundle.num_bytes,
      notes=(*bundle.notes, *notes),
    )


@contextlib.contextmanager
def _nothing_left(
  file_system: fs.FileSystem, path: str, kind: Format
) -> Iterator[None]:
  """Takes away what a failure leaves of a file or directory of others."""
  try:
    yield
  except Exception as e:
    if kind not in _OURS:
      parent, name = fs.parent_dir(path), fs.base_name(path)
      for other in file_system.list_dir(parent):
        if other.startswith((f'{name}.tmp', f'{name}{_ORBAX_TEMPORARY}')):
          file_system.remove_tree(fs.join(parent, other))
    # The libraries beneath have words of their own for it.
    if disks.is_full(e) or re.search(
      'RESOURCE_EXHAUSTED|No space left', str(e)
    ):
      raise errors.SaveError(
        f'{path} was not written: its disk is full. Make room there, or choose '
        'another.'
      ) from e
    raise


def _parse(name: str) -> Format:
  for known in Format:
    if known.lower() == name.lower():
      return known
  raise errors.UsageError(
    f'There is no format {name!r}. {suggest.hint(name, list(Format))}'
  )


def _by_ending(path: str) -> Format | None:
  for ending, kind in _ENDINGS.items():
    if path.endswith(ending):
      return kind
  return None


def _target_format(path: str, to: str | None) -> Format:
  return _parse(to) if to else _by_ending(path) or Format.GDA


def _source_format(path: str, given: str | None) -> Format:
  from paxlike.checkpoint.tools import _orbax, _zarr

  if given:
    return _parse(given)
  file_system = fs.for_path(path)
  if not file_system.is_dir(path):
    kind = _by_ending(path)
    if kind is not None and file_system.exists(path):
      return kind
    if file_system.exists(path):
      raise errors.UsageError(
        f'{path} has no known ending: tell its format with --from. '
        f'{suggest.hint("", list(Format))}'
      )
  elif _zarr.is_zarr(file_system, path):
    return Format.ZARR3
  elif _orbax.is_orbax(file_system, path):
    return Format.ORBAX
  place = _places.find(path)
  opened = _reading.OpenStep(place.file_system, place.pick())
  return Format(opened.manifest.type)


@contextlib.contextmanager
def _load(
  path: str, kind: Format, step: int | None, process: int
) -> Iterator[_bundle.Bundle]:
  if kind in _OURS:
    with _reading.open_at(path, step) as opened:
      yield _from_step(opened, process)
    return
  file_system = fs.for_path(path)
  if kind is Format.SAFETENSORS:
    from paxlike.checkpoint.tools import _safetensors

    yield _safetensors.load(file_system, path)
  elif kind is Format.MSGPACK:
    from paxlike.checkpoint.tools import _msgpack

    yield _msgpack.load(file_system, path)
  elif kind is Format.ZARR3:
    from paxlike.checkpoint.tools import _zarr

    yield _zarr.load(file_system, path)
  else:
    from paxlike.checkpoint.tools import _orbax

    yield _orbax.load(file_system, path, step)


def _from_step(opened: _reading.OpenStep, process: int) -> _bundle.Bundle:
  _reading.check_process(opened, process)
  others = [i for i in opened.processes if i != process]
  notes = (
    (f'the states of processes {others} are left out; see --process',)
    if others
    else ()
  )
  return _bundle.Bundle(
    tree=opened.manifest.tree,
    arrays=tuple(opened.arrays),
    read=lambda number: opened.read(number, process=process),
    step=opened.step,
    items={item.name: (item.encoding, data) for item, data in opened.items()},
    metrics=dict(opened.manifest.metrics),
    notes=notes,
  )


def _save(
  bundle: _bundle.Bundle,
  file_system: fs.FileSystem,
  path: str,
  kind: Format,
  step: int | None,
) -> tuple[str, tuple[str, ...]]:
  """Writes the state; gives the path of what was written, and notes."""
  if kind in _OURS:
    from paxlike.checkpoint.tools import _writing

    written = _writing.save(
      bundle, file_system, path, kind=kind.value, step=step or 0
    )
    return written, ()
  file_system.make_dirs(fs.parent_dir(path))
  if kind is Format.SAFETENSORS:
    from paxlike.checkpoint.tools import _safetensors

    return path, _safetensors.save(bundle, file_system, path)
  if kind is Format.MSGPACK:
    from paxlike.checkpoint.tools import _msgpack

    return path, _msgpack.save(bundle, file_system, path)
  if kind is Format.ZARR3:
    from paxlike.checkpoint.tools import _zarr

    return path, _zarr.save(bundle, file_system, path)
  from paxlike.checkpoint.tools import _orbax

  return path, _orbax.save(bundle, file_system, path)
