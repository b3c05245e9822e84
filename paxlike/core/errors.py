"""The failures that a caller may want to tell apart, one class each.

A message says what failed with its values, what was expected, and what to type
next. `exit_status` is what the program ends with when nobody catches one.
"""

from collections.abc import Sequence

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PREEMPTED = 75


class PaxlikeError(Exception):
  """Anything that paxlike raises on purpose."""

  exit_status: int = EXIT_FAILED


class UsageError(PaxlikeError):
  """The user asked for something that cannot be; one line, no traceback."""

  exit_status = EXIT_USAGE


class ConfigError(UsageError):
  """A config value is nonsense by itself or beside another one."""


class OverrideError(UsageError):
  """A `--set PATH=VALUE` names nothing, or its value has the wrong type."""


class UnknownExperimentError(UsageError):
  """No registered experiment has that name, or more than one has."""


class DuplicateExperimentError(UsageError):
  """Two classes registered under one name."""


class InputError(PaxlikeError):
  """An input could not give the batch that it was asked for."""


class InputMismatchError(UsageError):
  """The data of this run are not those that the checkpoint was trained on."""


class CheckpointError(PaxlikeError):
  """Something about a checkpoint; the subclasses say what."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
  """There is no complete checkpoint where one was asked for."""

  exit_status = EXIT_USAGE


class CheckpointDamagedError(CheckpointError):
  """Bytes on disk are not those that were written."""


class CheckpointAccessError(CheckpointError):
  """This user may not read a checkpoint; nothing is wrong with it."""

  exit_status = EXIT_USAGE


class RestoreMismatchError(CheckpointError):
  """A checkpoint does not fit the state that it is restored into."""

  exit_status = EXIT_USAGE


class CheckpointBusyError(CheckpointError):
  """Somebody else writes in this directory of checkpoints, and says who."""

  exit_status = EXIT_USAGE


class SaveError(CheckpointError):
  """A checkpoint could not be written; the ones before it are untouched."""


class ReportingError(PaxlikeError):
  """Summaries, status or decode outputs could not be written or read."""


class StorageError(PaxlikeError, OSError):
  """An object store gave no answer, or refused."""


class NonFiniteLossError(PaxlikeError):
  """The loss became NaN or infinite."""


class PreemptedError(PaxlikeError):
  """The run was asked to stop and did, after a safe checkpoint."""

  exit_status = EXIT_PREEMPTED


class FollowedJobError(PaxlikeError):
  """The training job that was followed failed, or vanished without a word."""


class SyncError(PaxlikeError):
  """Processes of one job could not agree or meet."""


class BarrierTimeoutError(SyncError):
  """Some process did not come to a barrier in time.

  Attributes:
    name: Which barrier.
    missing: Indices of the processes that had not arrived.
  """

  def __init__(
    self, message: str, *, name: str = '', missing: Sequence[int] = ()
  ):
    super().__init__(message)
    self.name = name
    self.missing = tuple(missing)


class BarrierMismatchError(SyncError):
  """Processes wait for each other in different barriers.

  Attributes:
    names: The barriers.
  """

  def __init__(self, message: str, *, names: Sequence[str] = ()):
    super().__init__(message)
    self.names = tuple(names)


class DivergenceError(SyncError):
  """Processes of one job were started with different configs or code.

  Wrong use: started again in the same way, they differ again.
  """

  exit_status = EXIT_USAGE


class PeerFailedError(SyncError):
  """Another process of the job failed; the message names it and its error.

  Attributes:
    process_index: Which process, -1 where it is not known.
  """

  def __init__(self, message: str, *, process_index: int = -1):
    super().__init__(message)
    self.process_index = process_index


class StuckError(SyncError):
  """No step was done for too long; the watchdog ended the run."""
