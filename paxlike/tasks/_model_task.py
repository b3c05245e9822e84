"""A task around a model of `paxlike.models`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array, Key

from paxlike import models
from paxlike.core import errors
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

  def check_below(
    self,
    knob: str,
    values: np.ndarray,
    *,
    field: str,
    input_name: str,
  ) -> None:
    """Refuses numbers that are no index into what the model has.

    Args:
      knob: The model's argument that says how many there are. A model without
        such an argument is not checked.
      values: The numbers.
      field: What they are called in the batch.
      input_name: Which input they are of.

    Raises:
      ConfigError: Some number is below 0, or not below the knob.
    """
    limit = getattr(self.model.template, 'keywords', {}).get(knob)
    if limit is None or not values.size:
      return
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= limit:
      raise errors.ConfigError(
        f'The {field} of input {input_name} go from {low} to {high} in its '
        f'first batch, but the model has {knob}={limit}: they must be 0 to '
        f'{limit - 1}. Mend the input, or set --set task_p.model.{knob}='
        f'{max(high + 1, limit)} or more.'
      )

  def logical_axes(self) -> ptyping.PyTree:
    """The logical axes of the model's variables."""
    return self.model.logical_axes()
