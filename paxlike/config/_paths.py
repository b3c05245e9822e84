"""Paths into a config: `task_p.model.layers[0].dim`, `stores['a b'].size`."""

import dataclasses
import re

from paxlike.core import errors

_STEP = re.compile(
  r"""
    \.?(?P<name>[A-Za-z_]\w*)
  | \[\s*(?P<index>-?\d+)\s*\]
  | \[\s*(?P<quote>['"]?)(?P<key>[^'"\[\]]+)(?P=quote)\s*\]
  """,
  re.VERBOSE,
)


@dataclasses.dataclass(frozen=True)
class Step:
  """One step down: an attribute, or an item of a list or dict.

  Attributes:
    key: The name, the number, or the text of the key.
    is_item: Whether it was written in brackets.
  """

  key: str | int
  is_item: bool

  def __str__(self) -> str:
    if not self.is_item:
      return f'.{self.key}'
    return f'[{self.key}]'


def parse(path: str) -> list[Step]:
  """The steps of a path.

  Args:
    path: As typed.

  Returns:
    At least one step, the first of which is an attribute.

  Raises:
    OverrideError: This is no path.
  """
  steps = []
  position = 0
  while position < len(path):
    match = _STEP.match(path, position)
    # A dot parts two names: the first name has none before it, others do.
    starts_well = match is not None and (
      match['name'] is None or (path[position] == '.') == (position > 0)
    )
    if not match or not starts_well:
      raise errors.OverrideError(
        f'--set {path}: {path[position:]!r} is no step of a path such as '
        'eval_input_p[0].batch_size.'
      )
    steps.append(_step(match))
    position = match.end()
  if not steps or steps[0].is_item:
    raise errors.OverrideError(
      f'--set {path}: a path begins with a name, such as task_p.train.'
    )
  return steps


def text(steps: list[Step]) -> str:
  """The path as one would type it."""
  return ''.join(str(step) for step in steps).removeprefix('.')


def _step(match: re.Match[str]) -> Step:
  if match['name'] is not None:
    return Step(match['name'], is_item=False)
  if match['index'] is not None:
    return Step(int(match['index']), is_item=True)
  return Step(match['key'], is_item=True)
