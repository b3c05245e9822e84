"""Tiny models whose choices are far from ties."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import pytest

from paxlike import models

VOCAB_SIZE = 19


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
    mdl_vars = jax.jit(self.functional.init)(jax.random.key(0))
    # Larger than at the start of training, so that attention is sharp and the
    # best token is well ahead of the second.
    self.mdl_vars = jax.tree.map(
      lambda a: a * 3.0 if a.ndim > 1 else a, mdl_vars
    )
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


@pytest.fixture(scope='session')
def tiny_lm() -> Callable[..., TinyLm]:
  """Makes a tiny model of these knobs, once a session."""

  @functools.lru_cache
  def make(**knobs: Any) -> TinyLm:
    return TinyLm(**knobs)

  return make
