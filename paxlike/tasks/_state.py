"""All that a training run is, between two steps."""

import dataclasses

import jax

from paxlike.core import typing as ptyping


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """The state that one update turns into the next, of pure dicts of arrays.

  Attributes:
    step: Updates done, int32.
    mdl_vars: `{'params': ..., 'non_trainable': ...}` of the model.
    opt_states: Whatever the optimizer keeps.
    extra: `rng`, the root key that every step's key derives from; `halted`,
      whether a non-finite loss stopped the updates; `ema`, averaged
      parameters, if the learner keeps them; `num_skipped`, updates left out.
  """

  step: ptyping.Leaf
  mdl_vars: ptyping.PyTree
  opt_states: ptyping.PyTree
  extra: dict[str, ptyping.PyTree]

  @property
  def eval_vars(self) -> ptyping.PyTree:
    """The variables to evaluate: with averaged parameters where kept."""
    if 'ema' not in self.extra:
      return self.mdl_vars
    return {**self.mdl_vars, 'params': self.extra['ema']}
