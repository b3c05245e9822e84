"""Keeps what comes for a follower: a lease on steps that are not there yet.

A follower that is to read every step says, in a file beside the steps, after
which one it goes on, and the trainer sweeps none of the next few. The lease is
there before the step is, so no step slips through between two looks. The file
has the follower's own name: one that comes back takes over what it held. It
says until when, so the lease of one that never does ends by itself.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Collection

from paxlike.checkpoint import _layout
from paxlike.core import clock as clocks
from paxlike.core import fs


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Wish:
  """What one follower asks for.

  Attributes:
    after_step: It is done with this step and those before.
    max_steps: So many of the next ones are to be kept.
    until_s: When that ends, seconds since 1970 UTC.
  """

  after_step: int
  max_steps: int
  until_s: float


class Following:
  """Keeps the next steps from being swept until it is released or expires.

  Where nothing may be written there is no such lease: a step may then be swept
  before it is read.
  """

  def __init__(
    self,
    directory: str,
    name: str,
    *,
    max_steps: int,
    duration_s: float,
    clock: clocks.Clock = clocks.SYSTEM,
  ):
    """Holds nothing yet.

    Args:
      directory: Directory of all steps.
      name: Of the follower, the same whenever it is started.
      max_steps: How many steps it may keep from being swept at a time.
      duration_s: How long that lasts if nobody renews it.
      clock: Where the time comes from.
    """
    self._fs = fs.for_path(directory)
    self._file = fs.join(directory, f'{_layout.FOLLOWER_PREFIX}{name}')
    self._max_steps = max_steps
    self._duration_s = duration_s
    self._clock = clock
    self._after_step: int | None = None
    self._taken_s = -math.inf

  @property
  def is_granted(self) -> bool:
    """Whether it could be written down."""
    return self._after_step is not None

  def hold_after(self, step: int) -> None:
    """Keeps what comes after `step`; written if that is new or half over."""
    age_s = self._clock.monotonic_s() - self._taken_s
    if step == self._after_step and age_s < self._duration_s / 2:
      return
    wish = _Wish(
      after_step=step,
      max_steps=self._max_steps,
      until_s=self._clock.now_s() + self._duration_s,
    )
    data = json.dumps(dataclasses.asdict(wish)).encode()
    self._after_step = None
    with contextlib.suppress(OSError):
      self._fs.write_atomic(self._file, data)
      self._after_step = step
      self._taken_s = self._clock.monotonic_s()

  def release(self) -> None:
    """Lets go of all steps; more than once is fine."""
    if self._after_step is not None:
      self._after_step = None
      with contextlib.suppress(OSError):
        self._fs.remove(self._file)


def held(
  file_system: fs.FileSystem,
  directory: str,
  steps: Collection[int],
  *,
  now_s: float,
) -> set[int]:
  """Which of these steps some follower is still to read.

  Args:
    file_system: Where to look.
    directory: Directory of all steps.
    steps: The steps that are in question.
    now_s: The time.
  """
  found: set[int] = set()
  for wish in _wishes(file_system, directory):
    if wish.until_s > now_s:
      after = sorted(step for step in steps if step > wish.after_step)
      found.update(after[: wish.max_steps])
  return found


def _wishes(file_system: fs.FileSystem, directory: str) -> list[_Wish]:
  try:
    names = file_system.list_dir(directory)
  except (FileNotFoundError, NotADirectoryError):
    return []
  found = []
  for name in names:
    if name.startswith(_layout.FOLLOWER_PREFIX):
      # What cannot be read, or is no wish, keeps nothing: it would for ever.
      with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        data = json.loads(file_system.read_bytes(fs.join(directory, name)))
        found.append(
          _Wish(
            after_step=int(data['after_step']),
            max_steps=int(data['max_steps']),
            until_s=float(data['until_s']),
          )
        )
  return found
