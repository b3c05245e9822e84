"""What is to be saved, where, and as which attempt: made whole, then handed on.

How a job becomes a step that exists is `_commit`'s.
"""

import dataclasses
import functools
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from paxlike import sync
from paxlike.checkpoint import (
  _boxes,
  _claims,
  _config,
  _history,
  _layout,
  _staging,
  _state,
  _stores,
)
from paxlike.core import clock as clocks
from paxlike.core import errors, fs
from paxlike.protos import checkpoint_pb2 as pb


@dataclasses.dataclass(frozen=True)
class Place:
  """Where steps are written and by whom.

  Attributes:
    directory: Of all steps.
    file_system: That serves it.
    world: The processes that write together.
    clock: Of this process; only that of process 0 is ever looked at.
    config: How to write.
    keep_policy: What to keep.
    claim: On the directory; held by process 0 as long as it may write.
  """

  directory: str
  file_system: fs.FileSystem
  world: sync.World
  clock: clocks.Clock
  config: _config.CheckpointConfig
  keep_policy: _config.KeepPolicy
  claim: _claims.Claim


@dataclasses.dataclass(frozen=True)
class Job:
  """One step to be committed.

  Attributes:
    step: Its number.
    name: What its meetings are called; serves once.
    staged: The state being copied.
    state: Its structure.
    layouts: How each array is cut.
    items: Further items, encoded: name to (encoding, bytes).
    metrics: For the best.
    records: The history so far.
    overwrite: Replace a step of this number.
  """

  step: int
  name: str
  staged: _stores.Staged
  state: _state.State
  layouts: Sequence[_boxes.Layout]
  items: Mapping[str, tuple[str, bytes]]
  metrics: Mapping[str, float]
  records: Sequence[_history.Record]
  overwrite: bool


@dataclasses.dataclass(frozen=True)
class Committed:
  """A step that exists.

  Attributes:
    records: The history after it, on every process the same.
    hidden: On process 0, what is to be removed from the disk.
  """

  records: tuple[_history.Record, ...]
  hidden: tuple[str, ...]


def encode_item(name: str, value: Any) -> tuple[str, bytes]:
  """The encoding and the bytes of an item.

  Raises:
    ConfigError: The name is not allowed, or the value is not JSON.
  """
  _layout.check_item_name(name)
  if isinstance(value, (bytes, bytearray, memoryview)):
    return 'bytes', bytes(value)
  try:
    return 'json', json.dumps(value, sort_keys=True).encode()
  except (TypeError, ValueError) as e:
    raise errors.ConfigError(
      f'Item {name!r} of a checkpoint must be bytes or JSON: {e}.'
    ) from e


def decode_item(encoding: str, payload: bytes) -> Any:
  """What `encode_item` was given."""
  return json.loads(payload) if encoding == 'json' else payload


@dataclasses.dataclass(frozen=True)
class Attempt:
  """One try at a step, the same on every process.

  Attributes:
    directory: Where its files are written.
    id: In each of them, so that no other try can be taken for this one.
    tag: In the names of files that are written in place, else empty.
    timestamp_s: When it began, seconds since 1970 UTC.
  """

  directory: str
  id: bytes
  tag: str
  timestamp_s: float


def make(
  place: Place,
  arena: _staging.Arena,
  state: Any,
  *,
  step: int,
  name: str,
  items: Mapping[str, Any],
  metrics: Mapping[str, Any],
  records: Sequence[_history.Record],
  overwrite: bool,
) -> Job:
  """What is to be committed, or a job that tells all why it cannot be.

  Others may be able to save where this process is not, and must not wait for
  it until their deadline: so it takes part, and fails within.

  Args:
    place: Where.
    arena: What the state is copied into.
    state: As the caller has it.
    step: Its number.
    name: Of the meetings.
    items: Further values, not encoded yet.
    metrics: As the caller has them.
    records: The history so far.
    overwrite: Replace a step of this number.

  Raises:
    UsageError: The caller's mistake, if this process is alone.
  """
  job = functools.partial(
    Job, step=step, name=name, records=tuple(records), overwrite=overwrite
  )
  process = place.world.process_index
  try:
    encoded = {k: encode_item(k, v) for k, v in items.items()}
    numbers = {k: _number(step, k, v) for k, v in metrics.items()}
    apart = _state.take_apart(state)
    staged, layouts = _stores.stage(
      _config.CheckpointType(place.config.type),
      apart,
      arena,
      step=step,
      process=process,
      file_system=place.file_system,
    )
  except Exception as e:
    if isinstance(e, errors.UsageError) and place.world.process_count == 1:
      raise
    return job(
      staged=_stores.Unstaged(e),
      state=_state.State(pb.Node(), (), ()),
      layouts=(),
      items={},
      metrics={},
    )
  return job(
    staged=staged,
    state=_state.State(apart.tree, apart.arrays, ()),
    layouts=layouts,
    items=encoded,
    metrics=numbers,
  )


def check_step(step: Any) -> int:
  """The step as an int; refuses what is no count of updates."""
  try:
    number = -1 if isinstance(step, bool) else operator.index(step)
  except TypeError:
    number = -1
  if number < 0:
    raise errors.UsageError(
      f'Step {step!r} cannot be saved: a step is a whole number of updates, 0 '
      f'or more, and this is a {type(step).__name__}.'
    )
  return number


def _number(step: int, name: str, value: Any) -> float:
  """A metric as a number, NaN included; refuses what is none."""
  try:
    if not isinstance(value, (str, bytes)):
      return float(value)
  except (TypeError, ValueError):
    pass
  raise errors.UsageError(
    f'Step {step} cannot be saved with metric {name!r}: {value!r} is a '
    f'{type(value).__name__} and no number. Text belongs into items.'
  )
