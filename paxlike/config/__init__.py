"""Configs as trees: change one value by its path, write a tree down.

Nothing here reaches jax or flax: a config names what it will build, and the
rooms that it names are loaded by whoever wrote the config.
"""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.config import checks as checks
  from paxlike.config import dump as dump
  from paxlike.config import fields as fields
  from paxlike.config import overrides as overrides
  from paxlike.config import references as references
  from paxlike.config import values as values

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    name: name
    for name in (
      'checks',
      'dump',
      'fields',
      'overrides',
      'references',
      'values',
    )
  },
)
