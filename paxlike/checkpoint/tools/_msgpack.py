"""Flax's msgpack: what `flax.serialization.to_bytes` writes."""

from typing import Any

from paxlike.checkpoint import _integrity
from paxlike.checkpoint.tools import _bundle
from paxlike.core import errors, fs


def save(
  bundle: _bundle.Bundle, file_system: fs.FileSystem, path: str
) -> tuple[str, ...]:
  """Writes a state as one file; needs memory for all of it, twice.

  Returns:
    What the user should know.
  """
  from flax import serialization

  try:
    data = serialization.msgpack_serialize(_bundle.as_state_dict(bundle))
  except (OverflowError, TypeError, ValueError) as e:
    raise errors.CheckpointError(
      f'{path} was not written: msgpack cannot hold this state: {e}.'
    ) from e
  file_system.write_atomic(path, data)
  return _bundle.lost_in_plain(bundle)


def load(file_system: fs.FileSystem, path: str) -> _bundle.Bundle:
  """Reads a file of nested dicts.

  Raises:
    CheckpointDamagedError: It is no whole msgpack file.
  """
  from flax import serialization

  data = file_system.read_bytes(path)
  if data.startswith(_integrity.MAGIC):
    raise errors.UsageError(
      f'{path} is a file of a paxlike step: give the directory of the step.'
    )
  try:
    state: Any = serialization.msgpack_restore(data)
  except Exception as e:
    # Whatever the decoder raises for bytes that are none of its own.
    raise errors.CheckpointDamagedError(
      f'{path} is no flax msgpack file: {type(e).__name__}: {e}'
    ) from e
  return _bundle.from_tree(state)
