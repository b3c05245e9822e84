"""Orbax directories; the one file that imports orbax, and only when used."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from paxlike.checkpoint import _state
from paxlike.checkpoint.tools import _bundle
from paxlike.core import errors, fs

_MARK = '_METADATA'
_ITEM_MARKS = ('_CHECKPOINT_METADATA', _MARK)
# Names under which Orbax managers and trainers keep the state of a step.
_USUAL_ITEMS = ('default', 'state', 'train_state', 'params', 'model')


def is_orbax(file_system: fs.FileSystem, path: str) -> bool:
  """Whether a directory is an Orbax item, step, or directory of steps."""
  return _is_marked(file_system, path) or bool(_steps_in(file_system, path))


def _is_marked(file_system: fs.FileSystem, path: str) -> bool:
  return any(file_system.exists(fs.join(path, m)) for m in _ITEM_MARKS)


def _steps_in(file_system: fs.FileSystem, path: str) -> list[int]:
  return sorted(
    int(name)
    for name in file_system.list_dir(path)
    if name.isdecimal() and _is_marked(file_system, fs.join(path, name))
  )


def save(
  bundle: _bundle.Bundle, file_system: fs.FileSystem, path: str
) -> tuple[str, ...]:
  """Writes a state as one Orbax item, as `PyTreeCheckpointer` does.

  Returns:
    What the user should know.
  """
  del file_system
  bundle.refuse(
    'Orbax',
    {
      info.name: 'of no elements'
      for info in bundle.arrays
      if not info.num_bytes
    },
  )
  _refuse_equal_names(bundle)
  tree = _state.rebuild(bundle.tree, bundle.read)
  try:
    with _checkpointer() as (_, checkpointer):
      checkpointer.save(path, tree)
  except (TypeError, ValueError) as e:
    raise errors.CheckpointError(
      f'{path} was not written: Orbax cannot hold this state: {e}'
    ) from e
  return _bundle.lost_in_plain(bundle)


def _refuse_equal_names(bundle: _bundle.Bundle) -> None:
  """Orbax names a leaf by its keys with dots between, and checks nothing."""
  names: dict[str, str] = {}
  for name in _state.leaves_of(bundle.tree):
    dotted = name.replace('/', '.')
    if dotted in names:
      raise errors.UsageError(
        f'Orbax would store {names[dotted]!r} and {name!r} under one name. '
        'Choose another format, such as --to zarr3.'
      )
    names[dotted] = name


def load(
  file_system: fs.FileSystem, path: str, step: int | None
) -> _bundle.Bundle:
  """Reads the state of an Orbax item, step, or directory of steps.

  Args:
    file_system: Where to look.
    path: Of any of these.
    step: Which one, in a directory of steps; None is the newest.

  Raises:
    CheckpointNotFoundError: There is no such step.
    CheckpointDamagedError: Orbax cannot read it.
  """
  found_step = None
  if not _is_marked(file_system, path):
    steps = _steps_in(file_system, path)
    if not steps:
      raise errors.UsageError(
        f'{path} holds no Orbax checkpoint: there is no {_MARK} in it, nor in '
        'directories named by steps. Without --from its format is looked for.'
      )
    found_step = steps[-1] if step is None else step
    if found_step not in steps:
      raise errors.CheckpointNotFoundError(
        f'There is no Orbax step {step} in {path}. It has {steps}.'
      )
    path = fs.join(path, str(found_step))
  elif fs.base_name(path).isdecimal():
    found_step = int(fs.base_name(path))
  item = _item_in(file_system, path)
  try:
    with _checkpointer() as (ocp, checkpointer):
      state = _restore(ocp, checkpointer, item)
  except (ValueError, TypeError, KeyError, OSError) as e:
    raise errors.CheckpointDamagedError(
      f'Orbax cannot read {item}: {type(e).__name__}: {e}'
    ) from e
  return _bundle.from_tree(state, step=found_step)


def _item_in(file_system: fs.FileSystem, path: str) -> str:
  if file_system.exists(fs.join(path, _MARK)):
    return path
  items = [
    name
    for name in file_system.list_dir(path)
    if file_system.exists(fs.join(path, name, _MARK))
  ]
  usual = [name for name in _USUAL_ITEMS if name in items]
  if usual or len(items) == 1:
    return fs.join(path, (usual or items)[0])
  raise errors.UsageError(
    f'{path} holds no single state; give one of its items: {items}.'
  )


def _restore(ocp: Any, checkpointer: Any, path: str) -> Any:
  import jax

  metadata = checkpointer.metadata(path)
  tree = getattr(metadata, 'item_metadata', metadata)
  tree = getattr(tree, 'tree', tree)

  def how(leaf: Any) -> Any:
    # As NumPy: the devices of the run that saved it are not here.
    # A number is kept as an array too, and comes back as a number.
    is_array = type(leaf) is ocp.metadata.ArrayMetadata
    return ocp.RestoreArgs(restore_type=np.ndarray if is_array else None)

  arguments = ocp.args.PyTreeRestore(restore_args=jax.tree.map(how, tree))
  return checkpointer.restore(path, args=arguments)


@contextlib.contextmanager
def _checkpointer() -> Iterator[tuple[Any, Any]]:
  try:
    import orbax.checkpoint as ocp
  except ImportError as e:
    raise errors.UsageError(
      'Orbax directories need the package orbax-checkpoint: pip install '
      'orbax-checkpoint'
    ) from e
  # Its progress is of no use to who converts one state.
  logger = logging.getLogger('absl')
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    with ocp.PyTreeCheckpointer() as checkpointer:
      yield ocp, checkpointer
  finally:
    logger.setLevel(level)
