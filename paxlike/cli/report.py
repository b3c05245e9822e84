"""Shows where the time of a job went: useful steps over wall time, by cause."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from paxlike import reporting
from paxlike.core import errors, fs


def main(arguments: Sequence[str]) -> int:
  """Runs the command.

  Args:
    arguments: The words after `paxlike report`.

  Returns:
    0.
  """
  parser = argparse.ArgumentParser(prog='paxlike report', description=__doc__)
  parser.add_argument('job_log_dir')
  parser.add_argument(
    '--json', action='store_true', help='one JSON object for programs'
  )
  options = parser.parse_args(arguments)
  found = reporting.goodput(fs.expand(options.job_log_dir))
  if options.json:
    told = {'goodput': found.fraction, **dataclasses.asdict(found)}
    sys.stdout.write(f'{json.dumps(told)}\n')
  else:
    sys.stdout.write(f'{found.text()}\n')
  return errors.EXIT_DONE
