"""No option is without effect: each is read by some other code than its own.

That it does what it says is tested where it works; this finds the option that
is declared, documented, and then forgotten, or read under another's name.
"""

import ast
import dataclasses
import functools
import inspect
import pathlib

import pytest

from paxlike import checkpoint, inputs, models, parallel, reporting, tasks
from tests import house

OPTIONS = (
  tasks.TrainParams,
  tasks.DecoderParams,
  checkpoint.CheckpointConfig,
  checkpoint.SavePolicy,
  checkpoint.KeepPolicy,
  parallel.MeshConfig,
  reporting.DecodeParams,
  models.GenerateConfig,
  inputs.Input,
  inputs.TextInput,
  inputs.TextPromptInput,
  inputs.ArraysInput,
)


@functools.cache
def _attributes(file: pathlib.Path) -> tuple[tuple[str, int], ...]:
  """Every attribute that a file reads, and in which line."""
  return tuple(
    (node.attr, node.lineno)
    for node in ast.walk(ast.parse(file.read_text()))
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
  )


def _is_read(cls: type, option: str) -> bool:
  """Whether something reads it that is no check of the class's own."""
  own = pathlib.Path(inspect.getfile(cls))
  checks = cls.__dict__.get('__post_init__')
  lines, first = inspect.getsourcelines(checks) if checks else ([], 0)
  checked = range(first, first + len(lines))
  return any(
    name == option and not (file == own and line in checked)
    for file in (house.ROOT / 'paxlike').rglob('*.py')
    for name, line in _attributes(file)
  )


@pytest.mark.parametrize(
  ('cls', 'option'),
  [
    pytest.param(cls, field.name, id=f'{cls.__name__}.{field.name}')
    for cls in OPTIONS
    for field in dataclasses.fields(cls)
  ],
)
def test_every_option_is_read(cls, option):
  assert _is_read(cls, option)
