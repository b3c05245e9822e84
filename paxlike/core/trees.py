"""Names for the leaves of a nested structure, the same on every process.

Promises: two leaves never share a name, whatever their keys hold; the order is
that of `jax.tree.leaves`; empty containers and None have names too, because a
state that lost one is another state. What to do with a leaf is the caller's.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paxlike.core import errors

SEPARATOR = '/'
# What a name may hold as it is; anything else is %XX of its UTF-8 bytes, so
# that no key can look like two keys, a parent directory or a control code.
_UNSAFE = re.compile(rb'[^A-Za-z0-9_.\-+=,:@()\[\]<> ]')


@dataclasses.dataclass(frozen=True)
class Empty:
  """Stands for a node without leaves: None or an empty container.

  Attributes:
    type_name: 'None', 'dict', 'tuple', 'EmptyState', ...
  """

  type_name: str


@dataclasses.dataclass(frozen=True)
class Child:
  """One edge of a tree: how a node names a child, and the child."""

  key: str | int
  value: Any


@functools.lru_cache(maxsize=1 << 16)
def escape(key: str) -> str:
  """Makes any text fit to stand between two separators of a name."""
  if key in ('', '.', '..'):
    return '%2E' * len(key) or '%'
  raw = key.encode('utf-8', 'surrogatepass')
  return _UNSAFE.sub(lambda m: b'%%%02X' % m.group()[0], raw).decode('ascii')


def children(node: Any) -> list[Child] | None:
  """The direct children of a node, in the order of `jax.tree.leaves`.

  Args:
    node: Any value.

  Returns:
    None for a leaf; an empty list for None and for an empty container.

  Raises:
    ConfigError: The keys cannot be told apart once they are text.
  """
  if node is None:
    return []
  if isinstance(node, Mapping) and type(node) is dict:
    return _dict_children(node)
  if type(node) in (list, tuple):
    return [Child(i, value) for i, value in enumerate(node)]
  if isinstance(node, tuple) and hasattr(node, '_fields'):
    # The registry gives every field of a NamedTuple the first one's key.
    # (trees_test.py::test_fields_of_a_named_tuple_have_their_own_names)
    return [
      Child(k, v)
      for k, v in zip(node._fields, node, strict=True)  # type: ignore[attr-defined]
    ]
  return _registered_children(node)


def _dict_children(node: dict[Any, Any]) -> list[Child]:
  kinds = {bool(isinstance(key, str)) for key in node}
  if len(kinds) > 1:
    raise errors.ConfigError(
      f'A dict mixes text and other keys: {list(node)[:8]}. Their order and '
      'names are not defined; use keys of one type.'
    )
  try:
    keys = sorted(node)
  except TypeError as e:
    raise errors.ConfigError(
      f'The keys of a dict cannot be sorted: {list(node)[:8]}.'
    ) from e
  return _distinct([Child(_plain_key(key), node[key]) for key in keys])


def _registered_children(node: Any) -> list[Child] | None:
  import jax

  flat = jax.tree_util.default_registry.flatten_one_level_with_keys(node)
  if flat is None:
    return None
  return _distinct(
    [Child(_entry_key(entry), value) for entry, value in flat[0]]
  )


def _plain_key(key: Any) -> str | int:
  if isinstance(key, bool) or not isinstance(key, (str, int)):
    return repr(key)
  return key


def _entry_key(entry: Any) -> str | int:
  for attribute in ('key', 'name', 'idx'):
    if hasattr(entry, attribute):
      return _plain_key(getattr(entry, attribute))
  return str(entry)


def _distinct(found: list[Child]) -> list[Child]:
  if len({str(child.key) for child in found}) != len(found):
    raise errors.ConfigError(
      f'Two children of one node share a name: {[c.key for c in found][:8]}.'
    )
  return found


def type_name(node: Any) -> str:
  """What kind of node this is, in one word: 'dict', 'None', 'EmptyState'."""
  return 'None' if node is None else type(node).__name__


def flatten_with_names(
  tree: Any, *, keep_empty: bool = False
) -> list[tuple[str, Any]]:
  """Lists the leaves of a tree with names that cannot collide.

  A name is the escaped keys joined by '/': {'a/b': 1} is 'a%2Fb' and
  {'a': {'b': 1}} is 'a/b'. A tree that is one leaf has the name ''.

  Args:
    tree: Nested dicts, lists, tuples, NamedTuples and registered classes.
    keep_empty: Also list None and empty containers, as `Empty` values.

  Returns:
    (name, leaf) in the order of `jax.tree.leaves`.

  Raises:
    ConfigError: Some keys cannot be told apart once they are text.
  """
  found: list[tuple[str, Any]] = []

  def visit(prefix: str, node: Any) -> None:
    below = children(node)
    if below is None:
      found.append((prefix, node))
      return
    if not below and keep_empty:
      found.append((prefix, Empty(type_name(node))))
    for child in below:
      part = escape(str(child.key))
      visit(f'{prefix}{SEPARATOR}{part}' if prefix else part, child.value)

  visit('', tree)
  return found


def map_with_names(function: Callable[[str, Any], Any], tree: Any) -> Any:
  """Applies `function(name, leaf)` to every leaf and keeps the structure."""
  named = flatten_with_names(tree)
  import jax

  structure = jax.tree.structure(tree)
  return jax.tree.unflatten(
    structure, [function(name, leaf) for name, leaf in named]
  )


def summarize(names: Sequence[str], *, limit: int = 8) -> str:
  """The first few of many names, for an error message of readable length."""
  shown = ', '.join(repr(name) for name in names[:limit])
  more = len(names) - limit
  return f'{shown} and {more} more' if more > 0 else shown
