"""Finds nonsense in a config before anything heavy is built from it."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from paxlike.config import fields
from paxlike.core import errors


def check(tree: Any, path: str) -> None:
  """Looks for missing values, and builds what is nothing but data.

  The latter are the frozen dataclasses, which refuse nonsense when they are built.
  Tasks, models and inputs are not built: they may open files or devices.

  Args:
    tree: A config tree.
    path: Its name, for the error.

  Raises:
    ConfigError: A part refuses its values, or lacks a required one.
  """
  for below, node in _nodes(tree, path):
    if not _is_template(node):  # the rest of whose values comes with the call
      _require(node, below)
  for _, node in _data_nodes(tree, path):
    try:
      _build(node)
    except errors.PaxlikeError as error:
      # Fiddle wraps errors to add where it was; the path says it in our way.
      bare = getattr(error, 'proxy_base_exception', error)
      raise bare from None


def missing_fields(node: Any) -> list[str]:
  """Fields of a config node that have neither value nor default."""
  return [
    name
    for name, field in fields.of(node.__fn_or_cls__).items()
    if field.default is fields.Field.REQUIRED
    and field.factory is None
    and name not in node.__arguments__
  ]


def _require(node: Any, path: str) -> None:
  missing = missing_fields(node)
  if missing:
    raise errors.ConfigError(
      f'{path}.{missing[0]} is not set and has no default. Set it in the '
      f'experiment, or with --set {path}.{missing[0]}=VALUE.'
    )


def _build(node: Any) -> None:
  import fiddle as fdl

  fdl.build(node)


def _nodes(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
  """All Fiddle nodes, each before those below it."""
  if hasattr(type(tree), '__build__'):
    yield path, tree
  for below, item in _items(tree, path):
    yield from _nodes(item, below)


def _data_nodes(node: Any, path: str) -> Iterator[tuple[str, Any]]:
  """The topmost nodes that are data all through."""
  is_node = hasattr(type(node), '__build__')
  if is_node and _is_data(node) and not _is_template(node):
    yield path, node
    return
  for below, item in _items(node, path):
    yield from _data_nodes(item, below)


def _items(node: Any, path: str) -> Iterator[tuple[str, Any]]:
  """What a node or container holds, each with its path."""
  if hasattr(type(node), '__build__'):
    for name, item in node.__arguments__.items():
      yield f'{path}.{name}', item
  elif isinstance(node, Mapping):
    for key, item in node.items():
      yield f'{path}.{key}', item
  elif isinstance(node, list | tuple):
    for index, item in enumerate(node):
      yield f'{path}[{index}]', item


def _is_data(node: Any) -> bool:
  if isinstance(node, list | tuple):
    return all(_is_data(item) for item in node)
  if isinstance(node, Mapping):
    return all(_is_data(item) for item in node.values())
  if not hasattr(type(node), '__build__'):
    return True
  target = node.__fn_or_cls__
  is_frozen = (
    isinstance(target, type)
    and dataclasses.is_dataclass(target)
    and target.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
  )
  calls_nothing_else = is_frozen or _is_template(node)
  return calls_nothing_else and all(map(_is_data, node.__arguments__.values()))


def _is_template(node: Any) -> bool:
  """Whether building `node` leaves the call, and some arguments, to others."""
  return type(node).__name__ != 'Config'
