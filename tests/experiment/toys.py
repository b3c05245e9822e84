"""An experiment of nothing but data, to resolve without any array."""

import dataclasses
from collections.abc import Callable

import fiddle as fdl

from paxlike import experiment
from paxlike.core import errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
  num_train_steps: int = 10
  every: int = 1

  def __post_init__(self) -> None:
    if self.every < 1:
      raise errors.ConfigError(f'every is {self.every}, must be >= 1.')


class Model:
  def __init__(self, *, num_layers: int, width: int = 4):
    self.num_layers, self.width = num_layers, width


class Task:
  def __init__(self, *, model: Callable[..., Model], train: Train):
    self.model, self.train = model, train


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
  name: str
  batch_size: int = 4
  is_training: bool = False


@dataclasses.dataclass(frozen=True)
class Mesh:
  data: int = -1


class Toy(experiment.BaseExperiment):
  """A toy."""

  NUM_LAYERS = 2
  RATE: float = 1
  NOTE: str | None = None
  SIZES = (1, 2)

  def task_p(self):
    return fdl.Config(
      Task,
      model=fdl.Partial(Model, num_layers=self.NUM_LAYERS),
      train=fdl.Config(Train),
    )

  def input_p(self):
    return [
      fdl.Config(Input, name='train', is_training=True),
      fdl.Config(Input, name='test'),
      fdl.Config(Input, name='other'),
    ]

  def decode_input_p(self):
    return [fdl.Config(Input, name='prompts')]

  def mesh_p(self):
    return fdl.Config(Mesh)

  def checkpoint_p(self):
    return fdl.Config(Train)
