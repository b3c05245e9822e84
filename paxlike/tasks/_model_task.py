"""A task around a model of `paxlike.models`."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Key

from paxlike import models
from paxlike.core import typing as ptyping
from paxlike.tasks import _base, _learner, _params


class ModelTask(_base.Task):
  """A task whose variables are those of a model; a subclass says its loss.

  Attributes:
    model: The model as pure functions.
  """

  def __init__(
    self,
    *,
    model: Callable[..., Any],
    learner: _learner.Learner,
    train: _params.TrainParams,
  ):
    super().__init__(learner=learner, train=train)
    self.model = models.functional(model)

  def init_vars(self, key: Key[Array, '']) -> ptyping.PyTree:
    """Fresh variables of the model."""
    return self.model.init(key)

  def logical_axes(self) -> ptyping.PyTree:
    """The logical axes of the model's variables."""
    return self.model.logical_axes()
