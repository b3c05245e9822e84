"""The Task interface: pure functions from variables and a batch to numbers.

A task holds no arrays. The model behind it may be one of ours, a linen module
or plain functions: a subclass needs `init_vars`, `logical_axes` and `loss`.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from paxlike.core import metrics
from paxlike.core import typing as ptyping
from paxlike.tasks import _learner, _params, _state

if TYPE_CHECKING:
  from paxlike import inputs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepOutput:
  """What a forward pass says about a batch.

  Attributes:
    loss: What is minimised, as a mean with its weight.
    metrics: Further means with their weights.
    mdl_vars: The variables, with the non-trainable ones brought up to date.
    per_example: One number an example, `[batch]`, for histograms.
    statistics: Arrays that add up over batches, such as counts, from which
      `derive` computes what no weighted mean can express.
    collected: Arrays `[batch, ...]` of evaluation whose rows `derive` needs
      from every example, where nothing that adds up will do.
  """

  loss: metrics.WeightedScalar
  metrics: dict[str, metrics.WeightedScalar]
  mdl_vars: ptyping.PyTree
  per_example: dict[str, ptyping.Leaf] = dataclasses.field(default_factory=dict)
  statistics: dict[str, ptyping.Leaf] = dataclasses.field(default_factory=dict)
  collected: dict[str, ptyping.Leaf] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Decoded:
  """What a decode pass says about some rows.

  Attributes:
    metrics: Means with their weights, over the rows that are examples.
    pairs: Key and JSON-able value of every example, in the order of the rows.
    statistics: Arrays that add up over rows, for `derive_decoded`.
  """

  metrics: dict[str, metrics.WeightedScalar]
  pairs: list[tuple[str, Any]]
  statistics: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Task(abc.ABC):
  """A model, its loss and metrics, and how it learns.

  Attributes:
    learner: How gradients become updates.
    train: The numbers of the run.
  """

  def __init__(self, *, learner: _learner.Learner, train: _params.TrainParams):
    self.learner = learner
    self.train = train

  @abc.abstractmethod
  def init_vars(self, key: Key[Array, '']) -> ptyping.PyTree:
    """Fresh `{'params': ..., 'non_trainable': ...}`; runs under jit."""

  @abc.abstractmethod
  def logical_axes(self) -> ptyping.PyTree:
    """A tuple of logical axis names (or None) for each variable."""

  @abc.abstractmethod
  def loss(
    self,
    mdl_vars: ptyping.PyTree,
    batch: ptyping.Batch,
    *,
    key: Key[Array, ''] | None,
    is_training: bool,
  ) -> StepOutput:
    """The loss and metrics of one batch.

    Args:
      mdl_vars: The variables.
      batch: Global arrays; rows of weight 0 must not count.
      key: For dropout and the like; None outside training.
      is_training: Whether dropout is on and statistics are updated.
    """

  def check_batch(self, batch: ptyping.HostBatch, *, input_name: str) -> None:
    """Refuses data that the model has no place for; does nothing by default.

    Called on the host, with the first batch of every pass alone, for it must
    not cost each step. What comes later is `loss`'s to find.

    Args:
      batch: This process's rows of a batch.
      input_name: Which input it is of.

    Raises:
      ConfigError: Data and model do not fit.
    """
    del batch, input_name

  def derive(
    self,
    totals: Mapping[str, metrics.WeightedScalar],
    statistics: Mapping[str, np.ndarray],
  ) -> dict[str, metrics.WeightedScalar]:
    """Metrics computed from totals, such as perplexity from the mean loss.

    Args:
      totals: Metrics over everything counted, `loss` among them.
      statistics: Sums of `StepOutput.statistics`, and the rows of all counted
        examples of `StepOutput.collected`, in the order of the input.

    Returns:
      Further metrics; none by default.
    """
    del totals, statistics
    return {}

  @property
  def decode_settings(self) -> str:
    """What outputs of `decode` depend on besides variables and input.

    A decode that was killed is gone on with only if this is as it was.
    """
    return ''

  def prepare_decode(
    self, mdl_vars: ptyping.PyTree
  ) -> dict[str, ptyping.PyTree]:
    """What `decode` needs made of the variables; runs under jit.

    Called once for all batches of an input, so that `decode` need not make it
    for each; `decode` finds it in `mdl_vars`.

    Args:
      mdl_vars: The variables.

    Returns:
      Entries that join those of `mdl_vars`; none by default.
    """
    del mdl_vars
    return {}

  def decode(
    self,
    mdl_vars: ptyping.PyTree,
    batch: ptyping.Batch,
    *,
    key: Key[Array, ''],
  ) -> dict[str, Array]:
    """The outputs of one batch, every one `[batch, ...]`; runs under jit.

    Args:
      mdl_vars: The variables, and what `prepare_decode` made of them.
      batch: Global arrays of a decode input.
      key: For sampling.
    """
    del mdl_vars, batch, key
    raise NotImplementedError(
      f'{type(self).__name__} does not say how to decode: override decode() '
      'and process_decode_out().'
    )

  def process_decode_out(
    self, source: 'inputs.Input', outputs: Mapping[str, np.ndarray]
  ) -> Decoded:
    """Turns rows of `decode` outputs into key/value pairs and metrics.

    Args:
      source: The input that the rows came from; it knows their keys.
      outputs: Host rows of what `decode` returned, with `example_id` and
        `example_weights` of the batch beside them; padding rows removed.
    """
    pairs = []
    for row, example_id in enumerate(outputs['example_id']):
      value = {
        name: np.asarray(values[row]).tolist()
        for name, values in outputs.items()
        if name not in ('example_id', 'example_weights')
      }
      pairs.append((source.key(int(example_id)), value))
    return Decoded(metrics={}, pairs=pairs)

  def derive_decoded(
    self,
    totals: Mapping[str, metrics.WeightedScalar],
    statistics: Mapping[str, np.ndarray],
  ) -> dict[str, metrics.WeightedScalar]:
    """Decode metrics computed from totals, such as BLEU from counts.

    Args:
      totals: Metrics over everything decoded.
      statistics: Sums of `Decoded.statistics`.

    Returns:
      Further metrics; none by default.
    """
    del totals, statistics
    return {}

  def init_state(self, key: Key[Array, '']) -> _state.TrainState:
    """A fresh training state; runs under jit.

    Args:
      key: The root key of the run.
    """
    init_key, root_key = jax.random.split(key)
    mdl_vars = self.init_vars(init_key)
    extra: dict[str, ptyping.PyTree] = {
      'rng': root_key,
      'halted': jnp.zeros((), jnp.bool_),
      'num_skipped': jnp.zeros((), jnp.int32),
    }
    if self.learner.ema_decay is not None:
      # A copy, or the donated step would see one buffer twice.
      extra['ema'] = jax.tree.map(jnp.copy, mdl_vars['params'])
    return _state.TrainState(
      step=jnp.zeros((), jnp.int32),
      mdl_vars=mdl_vars,
      opt_states=self.learner.init(mdl_vars['params']),
      extra=extra,
    )

  def state_axes(self, abstract: _state.TrainState) -> _state.TrainState:
    """The logical axes of every array of a state.

    Args:
      abstract: The shapes of the state.

    Returns:
      A state with a tuple of names, or None, in place of every array.
    """
    axes = self.logical_axes()
    extra: dict[str, Any] = dict.fromkeys(abstract.extra)
    if 'ema' in extra:
      extra['ema'] = axes['params']
    return _state.TrainState(
      step=None,
      mdl_vars=axes,
      opt_states=self.learner.map_like_params(
        axes['params'], abstract.opt_states, otherwise=None
      ),
      extra=extra,
    )
