"""Writes a config down: as text to read, as JSON to load again.

The text lists every value in force, defaults included, one `path = value` a
line. The JSON holds what the config sets and rebuilds the same tree; it names
classes by their public homes, so it survives files that move.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from paxlike.config import _json, _text
from paxlike.core import errors

FORMAT = 1
# What may follow a value: that it is a default, and the like.
_NOTES = re.compile(r'(  # \w+)+$')
_ABSENT = ('absent', True)


def to_text(roots: Mapping[str, Any]) -> str:
  """All values of a config, defaults included, a line each.

  Args:
    roots: Trees by name, such as `task_p`.

  Returns:
    Lines of 'path = value', ending with a newline; empty if there are none.
  """
  writer = _text.Writer()
  lines = [
    line for name, tree in roots.items() for line in writer.lines(tree, name)
  ]
  return ''.join(f'{line}\n' for line in lines)


def changes(before: str, now: str) -> list[str]:
  """What differs between two texts of `to_text`, comment lines left out.

  A default that only one of them has came or went with the code: nobody
  changed it.

  Args:
    before: The one text.
    now: The other one.

  Returns:
    Lines of 'path: before -> now'.
  """
  old, new = _values(before), _values(now)
  found = []
  for name in dict.fromkeys([*old, *new]):
    was, was_default = old.get(name, _ABSENT)
    value, is_default = new.get(name, _ABSENT)
    is_of_code = (
      was_default and is_default and not (name in old and name in new)
    )
    if was != value and not is_of_code:
      found.append(f'{name}: {was} -> {value}')
  return found


def to_json(
  roots: Mapping[str, Any], *, about: Mapping[str, Any] | None = None
) -> str:
  """A config as JSON that `from_json` reads.

  Args:
    roots: Trees by name.
    about: What else to record, such as the command line; JSON values.

  Returns:
    An indented JSON object with the keys of `about`, and `config`.
  """
  encoder = _json.Encoder()
  record = {
    'format': FORMAT,
    **(about or {}),
    'config': {
      name: encoder.encode(tree, name) for name, tree in roots.items()
    },
  }
  return json.dumps(record, indent=2, allow_nan=False) + '\n'


def from_json(text: str) -> dict[str, Any]:
  """The roots that `to_json` wrote.

  Args:
    text: The whole file.

  Raises:
    ConfigError: This is no such file, or it names what no longer exists, or
      it holds a value that could not be written, such as a lambda.
  """
  try:
    record = json.loads(text)
    version, roots = record['format'], record['config']
  except (ValueError, TypeError, KeyError) as error:
    raise errors.ConfigError(
      f'This is no config that paxlike wrote: {error!r}. Give the .json file '
      'under config/ of a job directory.'
    ) from None
  if version != FORMAT:
    raise errors.ConfigError(
      f'This config has format {version}, and this paxlike reads {FORMAT}.'
    )
  decoder = _json.Decoder()
  return {name: decoder.decode(tree, name) for name, tree in roots.items()}


def _values(text: str) -> dict[str, tuple[str, bool]]:
  """Each value by its path, as text, and whether it is a default."""
  found = {}
  for line in text.splitlines():
    name, is_value, value = line.partition(' = ')
    if is_value and not line.startswith('#'):
      found[name] = _NOTES.sub('', value), value.endswith('  # default')
  return found
