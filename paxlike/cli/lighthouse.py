"""Serves the one lighthouse of an elastic job: --bind=HOST:PORT."""

import argparse
from collections.abc import Sequence

from paxlike import elastic
from paxlike.cli import _elastic_flags


def main(arguments: Sequence[str]) -> int:
  """Runs the command.

  Args:
    arguments: The words after `paxlike lighthouse`.

  Returns:
    The exit status of the job.
  """
  parser = argparse.ArgumentParser(
    prog='paxlike lighthouse', description=__doc__
  )
  parser.add_argument(
    '--bind',
    required=True,
    metavar='HOST:PORT',
    help='where agents reach it; only this address is listened on',
  )
  _elastic_flags.add_secret(parser)
  options = parser.parse_args(arguments)
  _elastic_flags.set_up_logging('lighthouse')
  return elastic.lighthouse.run(
    options.bind,
    _elastic_flags.secret(options),
    parent_pid=options.parent_pid,
  )
