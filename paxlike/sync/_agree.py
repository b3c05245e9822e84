"""Decisions that are the same on every process, and facts that must be."""

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from paxlike.core import errors
from paxlike.sync import _report
from paxlike.sync import _world as world_lib

_SHORT_CHARS = 120
_MOST_DIFF_LINES = 20


def agree(
  name: str,
  value: Any = None,
  *,
  world: world_lib.World | None = None,
  timeout_s: float | None = None,
) -> Any:
  """Gives every process what process 0 decided.

  For whatever depends on a clock, a directory listing or a measured number:
  save now? stop? which step to restore?

  Args:
    name: What is decided, once per run: 'train/should_save/1200'.
    value: Process 0's decision, as JSON has it; ignored on the others.
    world: The current world if None.
    timeout_s: As for a barrier.
  """
  world = world or world_lib.world()
  data = json.dumps(value).encode() if world.process_index == 0 else None
  return json.loads(world.broadcast(name, data, timeout_s=timeout_s))


def check_same(
  name: str,
  facts: Mapping[str, str],
  *,
  world: world_lib.World | None = None,
  timeout_s: float | None = None,
) -> None:
  """Refuses to go on with processes that were started differently.

  Args:
    name: Which check; serves once.
    facts: What must be the same everywhere: 'config', 'mesh', 'shapes',
      'code', 'versions', each as text whose lines can be compared.
    world: The current world if None.
    timeout_s: As for a barrier.

  Raises:
    DivergenceError: On every process: what differs, where, and how.
  """
  world = world or world_lib.world()
  mine = {fact: _brief(text) for fact, text in facts.items()}
  told = world.gather(
    f'{name}/digests', json.dumps(mine).encode(), timeout_s=timeout_s
  )
  groups = _groups([json.loads(data) for data in told])
  differing = {fact: group for fact, group in groups.items() if len(group) > 1}
  if not differing:
    return
  # Only now, that it must be explained, do whole texts travel: one of each
  # of the first two kinds.
  spokesmen = {
    index
    for group in differing.values()
    for index in [members[0] for members in group.values()][:2]
  }
  texts = world.gather(
    f'{name}/texts',
    json.dumps(dict(facts)).encode()
    if world.process_index in spokesmen
    else b'{}',
    timeout_s=timeout_s,
  )
  raise errors.DivergenceError(
    _explain(name, differing, [json.loads(text) for text in texts])
  )


def _brief(text: str) -> str:
  digest = hashlib.sha256(text.encode()).hexdigest()[:16]
  return text if len(text) <= _SHORT_CHARS else f'sha256 {digest}'


def _groups(told: list[dict[str, str]]) -> dict[str, dict[str, list[int]]]:
  """Fact to value to the processes that have it, lowest process first."""
  facts = sorted({fact for each in told for fact in each})
  groups: dict[str, dict[str, list[int]]] = {fact: {} for fact in facts}
  for index, each in enumerate(told):
    for fact in facts:
      value = each.get(fact, '(not told)')
      groups[fact].setdefault(value, []).append(index)
  return groups


def _explain(
  name: str,
  differing: Mapping[str, Mapping[str, list[int]]],
  texts: list[dict[str, str]],
) -> str:
  lines = [f'The processes of this job differ (checked at {name!r}):']
  for fact, group in differing.items():
    lines.append(f'  {fact}:')
    lines.extend(
      f'    processes {_report.indices(members)}: {value}'
      for value, members in group.items()
    )
    first, second = [members[0] for members in group.values()][:2]
    diff = list(
      difflib.unified_diff(
        texts[first].get(fact, '').splitlines(),
        texts[second].get(fact, '').splitlines(),
        f'process {first}',
        f'process {second}',
        lineterm='',
        n=0,
      )
    )
    lines.extend(f'    {line}' for line in diff[:_MOST_DIFF_LINES])
  lines.append('Start every process with the same code and the same flags.')
  return '\n'.join(lines)
