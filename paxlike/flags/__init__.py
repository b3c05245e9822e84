"""The command line of a job: its flags, checked, and the help about them."""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.flags._job import MODES as MODES
  from paxlike.flags._job import Values as Values
  from paxlike.flags._job import check as check
  from paxlike.flags._job import help_text as help_text
  from paxlike.flags._job import names as names
  from paxlike.flags._job import parse as parse

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'MODES': '_job',
    'Values': '_job',
    'check': '_job',
    'help_text': '_job',
    'names': '_job',
    'parse': '_job',
  },
)
