"""Experiments: what to train, found by name and resolved into one config.

Nothing here reaches jax or flax. An experiment module names its models, tasks
and inputs through rooms that load on first use, so listing experiments loads
none of them; resolving one does.
"""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.experiment._base import BaseExperiment as BaseExperiment
  from paxlike.experiment._mistakes import mistakes_told as mistakes_told
  from paxlike.experiment._record import describe as describe
  from paxlike.experiment._record import facts as facts
  from paxlike.experiment._record import recording as recording
  from paxlike.experiment._record import write_record as write_record
  from paxlike.experiment._registry import Listing as Listing
  from paxlike.experiment._registry import Registry as Registry
  from paxlike.experiment._registry import get as get
  from paxlike.experiment._registry import list_all as list_all
  from paxlike.experiment._registry import register as register
  from paxlike.experiment._resolve import Resolved as Resolved
  from paxlike.experiment._resolve import resolve as resolve

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'BaseExperiment': '_base',
    'Listing': '_registry',
    'Registry': '_registry',
    'Resolved': '_resolve',
    'describe': '_record',
    'get': '_registry',
    'list_all': '_registry',
    'mistakes_told': '_mistakes',
    'register': '_registry',
    'resolve': '_resolve',
    'facts': '_record',
    'recording': '_record',
    'write_record': '_record',
  },
)
