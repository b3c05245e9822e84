"""What a step means: a model, its loss and metrics, and how it learns."""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.tasks._base import Decoded as Decoded
  from paxlike.tasks._base import StepOutput as StepOutput
  from paxlike.tasks._base import Task as Task
  from paxlike.tasks._classification import (
    ClassificationTask as ClassificationTask,
  )
  from paxlike.tasks._decoder import DecoderParams as DecoderParams
  from paxlike.tasks._language import LanguageModelTask as LanguageModelTask
  from paxlike.tasks._language import next_token_nats as next_token_nats
  from paxlike.tasks._learner import Learner as Learner
  from paxlike.tasks._learner import adam as adam
  from paxlike.tasks._learner import sgd as sgd
  from paxlike.tasks._model_task import ModelTask as ModelTask
  from paxlike.tasks._params import TrainParams as TrainParams
  from paxlike.tasks._schedules import Constant as Constant
  from paxlike.tasks._schedules import WarmupCosine as WarmupCosine
  from paxlike.tasks._state import TrainState as TrainState

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'ClassificationTask': '_classification',
    'Constant': '_schedules',
    'Decoded': '_base',
    'DecoderParams': '_decoder',
    'LanguageModelTask': '_language',
    'Learner': '_learner',
    'ModelTask': '_model_task',
    'StepOutput': '_base',
    'Task': '_base',
    'TrainParams': '_params',
    'TrainState': '_state',
    'WarmupCosine': '_schedules',
    'adam': '_learner',
    'next_token_nats': '_language',
    'sgd': '_learner',
  },
)
