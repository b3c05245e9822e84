"""Whether a saved data position may be gone on from."""

import json
from collections.abc import Mapping
from typing import Any

from absl import logging

from paxlike.core import errors
from paxlike.inputs import _base


def check_state(source: _base.Input, state: Mapping[str, Any]) -> int:
  """The position to go on from, if it means the same batches as when saved.

  The number of processes is no part of it: a position counts global batches.

  Args:
    source: The input of this run.
    state: What `Stream.state()` gave when it was saved.

  Returns:
    Number of the next batch.

  Raises:
    InputMismatchError: Data, order or batch size are not those of `state`,
      and `source.allow_mismatch` is not set; the message names each value.
  """
  position = int(state['position'])
  saved, here = state['fingerprint'], source.fingerprint
  if saved == here:
    return position
  message = (
    f'Input {source.name} is not the one that was trained on up to batch '
    f'{position}:\n' + '\n'.join(_differences(saved, here))
  )
  if source.allow_mismatch:
    logging.warning('%s\nGoing on: allow_mismatch is set.', message)
    return position
  raise errors.InputMismatchError(
    f'{message}\nRestore those values, start in a new job_log_dir, or go on '
    f'at batch {position} of the new data with '
    '--set train_input_p.allow_mismatch=True.'
  )


def _differences(saved: str, here: str) -> list[str]:
  old, new = json.loads(saved), json.loads(here)
  return [
    f'  {name}: {old.get(name)!r} when saved, {new.get(name)!r} now'
    for name in sorted(old.keys() | new.keys())
    if old.get(name) != new.get(name)
  ]
