"""The settings behind the root `decode` of a config."""

import dataclasses

from paxlike.core import errors
from paxlike.reporting import _pairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeParams:
  """How decode outputs are written.

  Attributes:
    format: 'jsonl', 'tfrecord', 'array_record' or 'parquet'.
    batches_per_commit: Batches that a killed decode may have to do again.
  """

  format: str = 'jsonl'
  batches_per_commit: int = 8

  def __post_init__(self) -> None:
    _pairs.check_format(self.format)
    if self.batches_per_commit < 1:
      raise errors.ConfigError(
        f'decode.batches_per_commit is {self.batches_per_commit}, must be >= 1.'
      )
