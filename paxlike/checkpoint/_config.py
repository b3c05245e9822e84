"""When to save, what to keep and how: the settings behind `checkpoint_p`."""

import dataclasses
import datetime
import enum
import math
import re

from paxlike.core import errors

# Less is no faster than writing each block by itself.
_MIN_HOST_BYTES = 8 << 20


class CheckpointType(enum.StrEnum):
  """How the state of a step is laid out in files."""

  # Every process writes the shards that it owns; any mesh reads them.
  GDA = 'GDA'
  # One flax msgpack file, written by process 0.
  FLAX = 'FLAX'
  # One flax msgpack file a process, for state that differs by process.
  MULTI_HOST_FLAX = 'MULTI_HOST_FLAX'


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
  """How checkpoints are written and read.

  Attributes:
    type: 'GDA', 'FLAX' or 'MULTI_HOST_FLAX'.
    async_save: Return from `save` once the state is copied to host memory and
      write in the background; False waits until the step is durable.
    verify: Check every checksum on restore; False trusts the disk with the
      values of arrays, and still checks what describes them.
    fallback: Restore the newest undamaged step where the newest one is
      damaged, with a warning; False makes that an error.
    on_save_error: 'stop' raises a failed save at the next call on every
      process; 'warn' logs it and lets training go on to the next save.
    save_after_error: Save the last good state when an error ends a training
      run.
    restore_only: Regular expression of whole leaf names: a run that begins
      from another job's checkpoint takes only these from it, such as
      'mdl_vars/params/.*', and begins at step 0; None takes all.
    timeout_s: Longest wait for another process within one save or restore.
    lease_s: How long a reader keeps a step from being swept; renewed by no
      one, so it must outlast a restore.
    max_host_bytes: The most host memory for the staged copy of a state, at
      least 8 MiB; a larger state is copied and written a part at a time, which
      holds up the loop for longer (GDA), or refused before training (others).
      None takes what the state needs, which is also the most it ever takes.
  """

  type: str = CheckpointType.GDA.value
  async_save: bool = True
  verify: bool = True
  fallback: bool = False
  on_save_error: str = 'stop'
  save_after_error: bool = True
  restore_only: str | None = None
  timeout_s: float = 600.0
  lease_s: float = 600.0
  max_host_bytes: int | None = None

  def __post_init__(self) -> None:
    known = [kind.value for kind in CheckpointType]
    if self.type not in known:
      raise errors.ConfigError(
        f'checkpoint_p.type is {self.type!r}, must be one of {known}.'
      )
    check_pattern('checkpoint_p.restore_only', self.restore_only)
    if self.on_save_error not in ('stop', 'warn'):
      raise errors.ConfigError(
        f'checkpoint_p.on_save_error is {self.on_save_error!r}, must be '
        "'stop' or 'warn'."
      )
    for name in ('timeout_s', 'lease_s'):
      if not getattr(self, name) > 0:
        raise errors.ConfigError(
          f'checkpoint_p.{name} is {getattr(self, name)}, must be > 0.'
        )
    if (
      self.max_host_bytes is not None and self.max_host_bytes < _MIN_HOST_BYTES
    ):
      raise errors.ConfigError(
        f'checkpoint_p.max_host_bytes is {self.max_host_bytes}, must be >= '
        f'{_MIN_HOST_BYTES}.'
      )


def check_pattern(name: str, pattern: str | None) -> None:
  """Refuses what is no regular expression of leaf names."""
  if pattern is None:
    return
  try:
    re.compile(pattern)
  except re.error as e:
    raise errors.ConfigError(
      f'{name} is {pattern!r}, no regular expression: {e}.'
    ) from e


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavePolicy:
  """When to write a checkpoint: as soon as one of the rules is due.

  Attributes:
    every_steps: Train steps from one save to the next. Saves fall on whole
      multiples, so a run resumed off the period comes back to it.
    every_s: Seconds from one save to the next, by the clock of process 0;
      `math.inf` turns it off.
    continuous: Save again as soon as the last save is durable.
  """

  every_steps: int
  every_s: float = math.inf
  continuous: bool = False

  def __post_init__(self) -> None:
    if self.every_steps < 1:
      raise errors.ConfigError(
        f'SavePolicy.every_steps is {self.every_steps}, must be >= 1. '
        'To save only at the end, set it to num_train_steps.'
      )
    if not self.every_s > 0:
      raise errors.ConfigError(
        f'SavePolicy.every_s is {self.every_s}, must be > 0; math.inf turns '
        'it off.'
      )

  @property
  def needs_clock(self) -> bool:
    """Whether processes could decide differently if each asked by itself."""
    return self.continuous or math.isfinite(self.every_s)

  def due(self, *, steps_since: int, s_since: float) -> bool:
    """Whether to save, given steps and seconds since the last save."""
    return steps_since >= self.every_steps or s_since >= self.every_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeepPolicy:
  """Which steps stay when there are too many; pinned ones always do.

  Attributes:
    max_to_keep: How many of the newest; None keeps every step.
    keep_interval: Beyond those, keep one for good whenever this much time has
      passed since the last one kept so; seconds or a timedelta, None for none.
    best_metric: Name of a metric given to `save`, to keep the best by.
    best_mode: 'min' or 'max'.
    num_best: How many of the best; NaN and missing values are never best.
  """

  max_to_keep: int | None = None
  keep_interval: float | datetime.timedelta | None = None
  best_metric: str = ''
  best_mode: str = 'min'
  num_best: int = 0

  def __post_init__(self) -> None:
    if self.max_to_keep is not None and self.max_to_keep < 1:
      raise errors.ConfigError(
        f'KeepPolicy.max_to_keep is {self.max_to_keep}, must be >= 1; None '
        'keeps every step.'
      )
    if self.keep_interval is not None and not self.keep_interval_s >= 0:
      raise errors.ConfigError(
        f'KeepPolicy.keep_interval is {self.keep_interval}, must be >= 0.'
      )
    if self.best_mode not in ('min', 'max'):
      raise errors.ConfigError(
        f"KeepPolicy.best_mode is {self.best_mode!r}, must be 'min' or 'max'."
      )
    if self.num_best < 0 or bool(self.num_best) != bool(self.best_metric):
      raise errors.ConfigError(
        f'KeepPolicy.num_best is {self.num_best} with best_metric '
        f'{self.best_metric!r}: set both, or neither.'
      )

  @property
  def keep_interval_s(self) -> float:
    """The interval in seconds; infinite where there is none."""
    if self.keep_interval is None:
      return math.inf
    if isinstance(self.keep_interval, datetime.timedelta):
      return self.keep_interval.total_seconds()
    return float(self.keep_interval)
