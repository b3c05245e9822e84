"""Results for a person: a table on a terminal, lines in a log."""

import io
import sys
from collections.abc import Mapping
from typing import Any

from absl import logging

from paxlike import programs


def show(
  step: int,
  results: Mapping[str, programs.EvalResult],
  *,
  stream: io.TextIOBase | None = None,
) -> None:
  """Shows what was found at a step.

  Args:
    step: Updates done.
    results: What was found, by input.
    stream: Where to draw the table, if it is a terminal; stdout by default.
  """
  terminal: Any = sys.stdout if stream is None else stream
  if not results:
    return
  if not terminal.isatty():
    for name, result in results.items():
      logging.info('%s', line(step, name, result))
    return
  import rich.console
  import rich.table

  scalars = {name: result.scalars() for name, result in results.items()}
  columns = list(dict.fromkeys(tag for row in scalars.values() for tag in row))
  table = rich.table.Table(title=f'step {step}', title_justify='left')
  table.add_column('input')
  for tag in columns:
    table.add_column(tag, justify='right')
  for name, row in scalars.items():
    table.add_row(name, *(_text(row.get(tag)) for tag in columns))
  rich.console.Console(file=terminal).print(table)


def line(step: int, name: str, result: programs.EvalResult) -> str:
  """One line: the metrics of one evaluation."""
  values = result.scalars()
  count = int(values.pop('num_examples'))
  shown = '  '.join(f'{tag} {_text(value)}' for tag, value in values.items())
  return f'step {step}  {name}: {shown}  ({count} examples)'


def _text(value: float | int | None) -> str:
  if value is None:
    return ''
  return str(value) if isinstance(value, int) else f'{value:.5g}'
