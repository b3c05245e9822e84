"""What an experiment says about itself."""

import abc
from typing import TYPE_CHECKING, Any

from paxlike import checkpoint, parallel, reporting

if TYPE_CHECKING:
  import fiddle as fdl


class BaseExperiment(abc.ABC):
  """A task, its inputs, and how they are split over devices and saved.

  Upper-case class attributes are the knobs: a subclass or `--set NAME=VALUE`
  changes them, and the methods read them from `self`. An annotation gives a
  knob its type, else its default does.

      @experiment.register
      class KjvTiny(experiment.BaseExperiment):
        NUM_LAYERS = 4
        LEARNING_RATE: float = 1e-3

        def task_p(self): ...
        def input_p(self): ...

  Methods return fresh Fiddle configs and open nothing.
  """

  @abc.abstractmethod
  def task_p(self) -> 'fdl.Config[Any]':
    """Config of the task: the model, how it learns, the run's numbers."""

  @abc.abstractmethod
  def input_p(self) -> 'list[fdl.Config[Any]]':
    """Configs of the inputs: one with `is_training`, the others to test on."""

  def decode_input_p(self) -> 'list[fdl.Config[Any]]':
    """Configs of the inputs to decode; none by default."""
    return []

  def mesh_p(self) -> 'fdl.Config[Any]':
    """Config of the mesh; by default all devices share the batch."""
    import fiddle as fdl

    return fdl.Config(parallel.MeshConfig)

  def checkpoint_p(self) -> 'fdl.Config[Any]':
    """Config of how checkpoints are stored."""
    import fiddle as fdl

    return fdl.Config(checkpoint.CheckpointConfig)

  def decode_p(self) -> 'fdl.Config[Any]':
    """Config of how decode outputs are written."""
    import fiddle as fdl

    return fdl.Config(reporting.DecodeParams)

  def validate(self) -> None:  # noqa: B027 - optional to override
    """Raises `errors.ConfigError` if the knobs do not fit together.

    Called once the knobs have their final values, before any config is made.
    What a config can refuse by itself is better refused there.
    """
