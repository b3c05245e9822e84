"""The three jobs: train, evaluate, decode; callable from a notebook too."""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.runners import decode as decode
  from paxlike.runners import evaluate as evaluate
  from paxlike.runners import session as session
  from paxlike.runners import train as train

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'decode': 'decode',
    'evaluate': 'evaluate',
    'session': 'session',
    'train': 'train',
  },
)
