"""Where batches come from: index-addressed, pure reads, prefetched.

Promises: the batch at a position depends on the data, the seed and the
position alone, never on how many processes read it or on what was read
before. Putting rows onto devices is the partitioner's.
"""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.inputs._arrays import ArraysInput as ArraysInput
  from paxlike.inputs._base import IndexedInput as IndexedInput
  from paxlike.inputs._base import Input as Input
  from paxlike.inputs._digits import DigitsInput as DigitsInput
  from paxlike.inputs._grain import GrainInput as GrainInput
  from paxlike.inputs._iterator import IteratorInput as IteratorInput
  from paxlike.inputs._state import check_state as check_state
  from paxlike.inputs._stream import Stream as Stream
  from paxlike.inputs._synthetic import (
    SyntheticClassificationInput as SyntheticClassificationInput,
  )
  from paxlike.inputs._synthetic import SyntheticLmInput as SyntheticLmInput
  from paxlike.inputs._text import TextInput as TextInput
  from paxlike.inputs._text import TextPromptInput as TextPromptInput
  from paxlike.inputs._tf_data import TfDataInput as TfDataInput

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'ArraysInput': '_arrays',
    'DigitsInput': '_digits',
    'GrainInput': '_grain',
    'IndexedInput': '_base',
    'Input': '_base',
    'IteratorInput': '_iterator',
    'Stream': '_stream',
    'SyntheticClassificationInput': '_synthetic',
    'SyntheticLmInput': '_synthetic',
    'TextInput': '_text',
    'TextPromptInput': '_text',
    'TfDataInput': '_tf_data',
    'check_state': '_state',
  },
)
