"""A function that all processes have compiled before any of them runs it."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from paxlike import sync

# Compiling may take an hour for the largest models.
_COMPILE_TIMEOUT_S = 3600.0

_serial: Iterator[int] = itertools.count()


class Executable:
  """Compiles a function once for each shape of its last argument.

  A process that enters a collective long before the others fails it: the
  transport gives up after half a minute, while one process may find a program
  in the compilation cache and another must compile it for minutes. Hence they
  meet in between. The shapes of the other arguments must not change; a call
  with other ones is an error, never a silent second compilation.
  """

  def __init__(self, function: Callable[..., Any], **jit_options: Any):
    """Compiles nothing yet.

    Args:
      function: A pure function.
      **jit_options: Of `jax.jit`.
    """
    self._jitted = jax.jit(function, **jit_options)
    self._compiled: dict[Any, Callable[..., Any]] = {}

  def __call__(self, *args: Any) -> Any:
    """Runs the function on every process of the job."""
    sync.world().progress.tick()
    # JAX finds the place of a NaN inside of jit only.
    if jax.config.jax_debug_nans:  # pyright: ignore[reportAttributeAccessIssue]
      # Outside of jit, the function is to meet no NumPy array.
      return self._jitted(*args[:-1], jax.device_put(args[-1]))
    batch = args[-1]
    key = (
      tuple((n, getattr(v, 'shape', None)) for n, v in batch.items())
      if isinstance(batch, dict)
      else ()
    )
    compiled = self._compiled.get(key)
    if compiled is None:
      with sync.world().progress.phase('compile'):
        compiled = self._jitted.lower(*args).compile()
        self._compiled[key] = compiled
        sync.world().barrier(
          f'compiled/{next(_serial)}', timeout_s=_COMPILE_TIMEOUT_S
        )
    return compiled(*args)
