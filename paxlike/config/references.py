"""Names of Python objects that stay good when files move, and back again.

An object is named by the shortest public module that holds it: the class
`paxlike.models._transformer.TransformerLm` is `paxlike.models:TransformerLm`.
"""

import sys
from typing import Any

from paxlike.core import lazy, suggest

# Public homes of what libraries define in private modules of another name.
_KNOWN_DOORS = (
  'jax.numpy',
  'jax.nn',
  'jax.nn.initializers',
  'jax.lax',
  'jax.sharding',
  'jax.random',
  'jax',
  'flax.nnx',
  'optax',
  'numpy',
)


class ReferenceError(LookupError):  # noqa: A001
  """A dotted path names nothing; the message says what is near."""


def name_of(target: Any) -> str | None:
  """The public name of a class, function or other module attribute.

  Args:
    target: What to name.

  Returns:
    'module.path:attribute', which `load` turns back into `target`; None where
    no module holds it, as with a lambda.
  """
  module = getattr(target, '__module__', None)
  attribute = getattr(target, '__qualname__', None) or getattr(
    target, '__name__', None
  )
  if not isinstance(attribute, str) or '<' in attribute:
    return None
  doors = _public_prefixes(module) if isinstance(module, str) else []
  for door in [*doors, *_KNOWN_DOORS, module]:
    loaded = sys.modules.get(door) if isinstance(door, str) else None
    if loaded is not None and _walk(loaded, attribute) is target:
      return f'{door}:{attribute}'
  return None


def load(name: str) -> Any:
  """The object that a reference names.

  Args:
    name: 'module.path:attribute', or dotted all through, as in 'jax.nn.gelu'.

  Returns:
    The object; its module is imported if it was not.

  Raises:
    ReferenceError: No such module or attribute. An import that fails inside
      an existing module is raised as it is.
  """
  module_name, colon, attribute = name.partition(':')
  if colon:
    module = lazy.import_if_there(module_name)
    if module is None:
      raise ReferenceError(f'There is no module {module_name!r}.')
    return _get(module, attribute, name)
  parts = name.split('.')
  for count in range(len(parts) - 1, 0, -1):
    module = lazy.import_if_there('.'.join(parts[:count]))
    if module is not None:
      return _get(module, '.'.join(parts[count:]), name)
  raise ReferenceError(
    f'{name!r} names nothing: there is no module {parts[0]!r}.'
  )


def _public_prefixes(module: str) -> list[str]:
  """Modules above `module`, private parts left out, shortest first."""
  public = [part for part in module.split('.') if not part.startswith('_')]
  return ['.'.join(public[: i + 1]) for i in range(len(public))]


def _walk(module: Any, attribute: str) -> Any:
  for part in attribute.split('.'):
    module = getattr(module, part, None)
  return module


def _get(module: Any, attribute: str, whole: str) -> Any:
  for part in attribute.split('.'):
    try:
      module = getattr(module, part)
    except AttributeError:
      near = suggest.nearest(part, dir(module))
      meant = f' Did you mean {" or ".join(near)}?' if near else ''
      where = getattr(module, '__name__', type(module).__name__)
      raise ReferenceError(
        f'{whole!r} names nothing: {where} has no {part!r}.{meant}'
      ) from None
  return module
