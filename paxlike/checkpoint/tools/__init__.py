"""Looking at, checking, comparing and moving checkpoints, without a model.

Promises: needs neither a mesh nor the experiment that wrote a step; looking
loads no more than a manifest; nothing is deleted unless asked for by name, and
the newest step, a pinned or a leased one not without force. A path may be a
job_log_dir, its directory of checkpoints, or one step; local, gs:// or s3://.
"""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.checkpoint.tools._compare import ArrayDiff as ArrayDiff
  from paxlike.checkpoint.tools._compare import Diff as Diff
  from paxlike.checkpoint.tools._compare import diff as diff
  from paxlike.checkpoint.tools._contents import ArraySummary as ArraySummary
  from paxlike.checkpoint.tools._contents import Contents as Contents
  from paxlike.checkpoint.tools._contents import show as show
  from paxlike.checkpoint.tools._convert import Converted as Converted
  from paxlike.checkpoint.tools._convert import Format as Format
  from paxlike.checkpoint.tools._convert import convert as convert
  from paxlike.checkpoint.tools._listing import StepSummary as StepSummary
  from paxlike.checkpoint.tools._listing import list_steps as list_steps
  from paxlike.checkpoint.tools._removing import pin as pin
  from paxlike.checkpoint.tools._removing import remove as remove
  from paxlike.checkpoint.tools._removing import unpin as unpin
  from paxlike.checkpoint.tools._verify import Damage as Damage
  from paxlike.checkpoint.tools._verify import Verified as Verified
  from paxlike.checkpoint.tools._verify import verify as verify

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'ArrayDiff': '_compare',
    'ArraySummary': '_contents',
    'Contents': '_contents',
    'Converted': '_convert',
    'Damage': '_verify',
    'Diff': '_compare',
    'Format': '_convert',
    'StepSummary': '_listing',
    'Verified': '_verify',
    'convert': '_convert',
    'diff': '_compare',
    'list_steps': '_listing',
    'pin': '_removing',
    'remove': '_removing',
    'show': '_contents',
    'unpin': '_removing',
    'verify': '_verify',
  },
)
