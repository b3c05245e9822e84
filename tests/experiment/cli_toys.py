"""An experiment that does as its knobs say, to see how the program takes it."""

import dataclasses

import fiddle as fdl

from paxlike import experiment
from paxlike.core import errors
from tests.experiment import toys


@dataclasses.dataclass(frozen=True)
class Train:
  learning_rate: float = 0.1
  follow_timeout_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Task:
  depth: int
  train: Train = Train()


@experiment.register
class CliToy(experiment.BaseExperiment):
  """A toy for the command line."""

  DEPTH = 2
  RAISE = ''
  TRAIN = True

  def validate(self) -> None:
    text = f'{self.RAISE}, as it was told'
    match self.RAISE:
      case 'config':
        raise errors.ConfigError(text)
      case 'failed':
        raise errors.PaxlikeError(text)
      case 'preempted':
        raise errors.PreemptedError(text)
      case 'interrupt':
        raise KeyboardInterrupt
      case 'other':
        raise ZeroDivisionError(text)

  def task_p(self):
    return fdl.Config(Task, depth=self.DEPTH)

  def input_p(self):
    train = fdl.Config(toys.Input, name='train', is_training=True)
    return [train] * self.TRAIN + [fdl.Config(toys.Input, name='test')]
