"""The three jobs: train, evaluate, decode; callable from a notebook too."""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.runners import decode as decode
  from paxlike.runners import evaluate as evaluate
  from paxlike.runners import place as place
  from paxlike.runners import session as session
  from paxlike.runners import train as train
  from paxlike.runners.decode import (
    decode_once_spmd_model as decode_once_spmd_model,
  )
  from paxlike.runners.evaluate import (
    evaluate_spmd_model as evaluate_spmd_model,
  )
  from paxlike.runners.train import (
    train_and_evaluate_spmd_model as train_and_evaluate_spmd_model,
  )

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'decode': 'decode',
    'decode_once_spmd_model': 'decode',
    'evaluate': 'evaluate',
    'evaluate_spmd_model': 'evaluate',
    'place': 'place',
    'session': 'session',
    'train': 'train',
    'train_and_evaluate_spmd_model': 'train',
  },
)
