"""What one step or one pass does, on whatever devices it is given."""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.programs import steps as steps
  from paxlike.programs._decode import DecodeProgram as DecodeProgram
  from paxlike.programs._eval import EvalProgram as EvalProgram
  from paxlike.programs._eval import EvalResult as EvalResult
  from paxlike.programs._eval import batches as batches
  from paxlike.programs._train import TrainProgram as TrainProgram
  from paxlike.programs._train import abstract_state as abstract_state

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'DecodeProgram': '_decode',
    'EvalProgram': '_eval',
    'EvalResult': '_eval',
    'batches': '_eval',
    'TrainProgram': '_train',
    'abstract_state': '_train',
    'steps': 'steps',
  },
)
