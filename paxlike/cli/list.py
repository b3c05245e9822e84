"""Lists the registered experiments."""

import argparse
import sys
from collections.abc import Sequence

from paxlike import experiment
from paxlike.core import errors


def main(arguments: Sequence[str]) -> int:
  """Prints the name to type for each experiment, and what it is.

  Args:
    arguments: Words that a name must contain; all experiments if none.

  Returns:
    0; 1 if some module could not be imported, after listing the others.
  """
  parser = argparse.ArgumentParser(prog='paxlike list', description=__doc__)
  parser.add_argument('word', nargs='*', help='only names that contain it')
  words = [word.lower() for word in parser.parse_args(arguments).word]
  listing = experiment.list_all()
  rows = [
    (listing.short_name(name), name, _summary(cls))
    for name, cls in listing.experiments.items()
    if all(word in name.lower() for word in words)
  ]
  widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
  for short, name, summary in rows:
    print(f'{short:<{widths[0]}}  {name:<{widths[1]}}  {summary}'.rstrip())
  for module, error in listing.broken.items():
    print(
      f'paxlike: {module} cannot be imported: {type(error).__name__}: {error}',
      file=sys.stderr,
    )
  return errors.EXIT_FAILED if listing.broken else errors.EXIT_DONE


def _summary(cls: type) -> str:
  return (cls.__doc__ or '').strip().partition('\n')[0]
