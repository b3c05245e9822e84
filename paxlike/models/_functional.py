"""Pure functions over dicts of arrays, from a template of an nnx module.

Promises: `init` and `apply` are pure, trace once under the caller's own
`jax.jit`, and exchange nested dicts of plain arrays whose keys are the
attribute names of the layers. Making a `Functional` and asking for its axes
touches no device.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax
from flax import nnx

from paxlike.models import _layer

# {'params': nested dict, 'non_trainable': nested dict, empty if there is none}
MdlVars = dict[str, Any]
# Called as template(rngs=...): what building an `fdl.Partial` of a layer gives.
Template = Callable[..., nnx.Module]


@dataclasses.dataclass(frozen=True)
class Functional:
  """A model as pure functions; made by `functional`.

  Attributes:
    template: Makes the module, given `rngs`.
    graphdef: The module's structure without its arrays.
  """

  template: Template
  graphdef: nnx.GraphDef[nnx.Module]

  def init(self, key: jax.Array) -> MdlVars:
    """Fresh variables, a function of the typed PRNG `key` alone."""
    module = self.template(rngs=nnx.Rngs(params=key))
    return _variables(module)

  def apply(
    self,
    mdl_vars: MdlVars,
    method: str | Callable[..., Any],
    *args: Any,
    **kwargs: Any,
  ) -> tuple[Any, MdlVars]:
    """Calls the model with these variables.

    Args:
      mdl_vars: As `init` gave them, or as an optimizer updated them.
      method: Name of a method, or a function whose first argument is the
        module.
      *args: Passed on.
      **kwargs: Passed on; `key` and `train` by the models' convention.

    Returns:
      What the method returned, and the variables after the call: `params`
      as they came in, `non_trainable` perhaps changed.
    """
    module = nnx.merge(
      self.graphdef, mdl_vars['params'], mdl_vars['non_trainable']
    )
    if isinstance(method, str):
      out = getattr(module, method)(*args, **kwargs)
    else:
      out = method(module, *args, **kwargs)
    return out, {
      'params': mdl_vars['params'],
      'non_trainable': _variables(module)['non_trainable'],
    }

  def shapes(self) -> MdlVars:
    """`init`'s result with a `jax.ShapeDtypeStruct` for every array."""
    return cast(MdlVars, jax.eval_shape(self.init, _abstract_key()))

  def logical_axes(self) -> MdlVars:
    """A tuple of logical axis names for every array of `init`'s result.

    A tuple is a pytree, so map over it with
    `is_leaf=lambda x: isinstance(x, tuple)`.
    """
    params, rest = _split(_abstract_module(self.template))
    return {
      'params': nnx.to_pure_dict(nnx.map_state(_axes_of, params)),
      'non_trainable': nnx.to_pure_dict(nnx.map_state(_axes_of, rest)),
    }


def functional(template: Template) -> Functional:
  """Makes a template usable by a functional trainer.

  Args:
    template: Called with `rngs=nnx.Rngs(...)`; usually a built
      `fdl.Partial(models.TransformerLm, ...)`.

  Returns:
    The model as pure functions.

  Raises:
    ConfigError: The template's arguments are nonsense.
  """
  graphdef, _ = nnx.split(_abstract_module(template))
  return Functional(template=template, graphdef=graphdef)


def _abstract_key() -> jax.ShapeDtypeStruct:
  return jax.eval_shape(lambda: jax.random.key(0))


def _abstract_module(template: Template) -> nnx.Module:
  return nnx.eval_shape(
    lambda: template(rngs=nnx.Rngs(params=jax.random.key(0)))
  )


def _split(module: nnx.Module) -> tuple[nnx.State, nnx.State]:
  _, params, rest = nnx.split(module, nnx.Param, ...)
  return params, rest


def _variables(module: nnx.Module) -> MdlVars:
  params, rest = _split(module)
  return {
    'params': nnx.to_pure_dict(params),
    'non_trainable': nnx.to_pure_dict(rest),
  }


def _axes_of(path: tuple[Any, ...], variable: Any) -> _layer.LogicalAxes:
  axes = variable.get_metadata().get('logical_axes')
  if axes is None or len(axes) != len(variable.shape):
    raise TypeError(
      f'{"/".join(map(str, path))} has shape {variable.shape} and logical axes '
      f'{axes}; give nnx.Param(..., logical_axes=(...)) one name a dimension.'
    )
  return axes
