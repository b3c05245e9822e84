"""Checkpoints: a step that was saved is there whole, or is not there.

Promises: a crash at any moment loses no committed step and shows no half one;
damage is found and named before training goes on; any mesh reads what any
other wrote. The format is told in docs/design/checkpoint.md.
"""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.checkpoint import pieces as pieces
  from paxlike.checkpoint import tools as tools
  from paxlike.checkpoint._claims import Generation as Generation
  from paxlike.checkpoint._config import CheckpointConfig as CheckpointConfig
  from paxlike.checkpoint._config import CheckpointType as CheckpointType
  from paxlike.checkpoint._config import KeepPolicy as KeepPolicy
  from paxlike.checkpoint._config import SavePolicy as SavePolicy
  from paxlike.checkpoint._following import Following as Following
  from paxlike.checkpoint._history import Record as Record
  from paxlike.checkpoint._leases import Lease as Lease
  from paxlike.checkpoint._leases import lease as lease
  from paxlike.checkpoint._manager import CheckpointManager as CheckpointManager
  from paxlike.checkpoint._restore import Report as Report
  from paxlike.checkpoint._restore import Restored as Restored

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'CheckpointConfig': '_config',
    'CheckpointManager': '_manager',
    'CheckpointType': '_config',
    'Following': '_following',
    'Generation': '_claims',
    'KeepPolicy': '_config',
    'Lease': '_leases',
    'Record': '_history',
    'Report': '_restore',
    'Restored': '_restore',
    'SavePolicy': '_config',
    'lease': '_leases',
    'pieces': 'pieces',
    'tools': 'tools',
  },
)
