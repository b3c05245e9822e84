"""Tiny models whose choices are far from ties."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paxlike import models

VOCAB_SIZE = 19


def draw(model: models.Functional) -> Any:
  """Variables drawn by NumPy, which compiles nothing.

  Matrices are larger than at the start of training, so that attention is sharp
  and the best token is well ahead of the second; nothing is 0 or 1 exactly.
  """
  rng = np.random.default_rng(0)

  def leaf(path: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
    noise = rng.normal(size=shape.shape)
    name = path[-1].key
    if name in ('scale', 'variance'):
      return jnp.asarray(1.0 + 0.1 * np.abs(noise), shape.dtype)
    if name in ('bias', 'mean'):
      return jnp.asarray(0.1 * noise, shape.dtype)
    return jnp.asarray(0.75 * noise, shape.dtype)

  return jax.tree.map_with_path(leaf, model.shapes())


class TinyLm:
  """A language model with its variables, every method jitted once."""

  def __init__(self, **knobs: Any):
    defaults = {
      'vocab_size': VOCAB_SIZE,
      'model_dim': 16,
      'num_layers': 2,
      'num_heads': 4,
      'num_kv_heads': 2,
      'mlp_dim': 32,
    }
    self.functional = models.functional(
      functools.partial(models.TransformerLm, **{**defaults, **knobs})
    )
    self.mdl_vars = draw(self.functional)
    self._apply = functools.lru_cache(self._jitted)

  def _jitted(self, method, static: tuple[tuple[str, Any], ...]):
    return jax.jit(
      lambda mdl_vars, args, kwargs: self.functional.apply(
        mdl_vars, method, *args, **kwargs, **dict(static)
      )[0]
    )

  def __call__(self, method, *args, config=None, padding=None, **kwargs):
    static = {'config': config, 'padding': padding}
    kept = tuple((k, v) for k, v in static.items() if v is not None)
    return self._apply(method, kept)(self.mdl_vars, args, kwargs)

  def generate(self, prompt_ids, lengths, config, **kwargs):
    return self(models.generate, prompt_ids, lengths, config=config, **kwargs)
