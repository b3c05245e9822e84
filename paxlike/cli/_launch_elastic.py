"""Runs an elastic job on this machine, each agent playing a host."""

import argparse
from collections.abc import Sequence

from paxlike import elastic
from paxlike.cli import _elastic_flags
from paxlike.core import errors

_EPILOG = """\
What follows `--` are the flags of a training job. Kill any process of it, even
with -9, and it goes on; status/workers.json names the workers.

  paxlike launch --local=3 --elastic -- \\
    --exp=KjvTiny --mode=train --job_log_dir=runs/kjv
"""


def main(arguments: Sequence[str]) -> int:
  """Runs `paxlike launch --elastic`.

  Args:
    arguments: The words after `paxlike launch`.

  Returns:
    The exit status of the job.
  """
  parser = argparse.ArgumentParser(
    prog='paxlike launch --elastic',
    description=__doc__,
    epilog=_EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('--elastic', action='store_true', help='implied')
  add(
    '--local',
    type=int,
    required=True,
    metavar='N',
    help='how many hosts to play on this machine',
  )
  _elastic_flags.add_snapshot_dirs(parser)
  _elastic_flags.add_policy(parser)
  add('command', nargs='+', metavar='-- FLAG')
  options = parser.parse_args(arguments)
  if options.local < 1:
    raise errors.UsageError(f'--local={options.local} must be at least 1.')
  options.hosts = options.hosts or f'1:{options.local}'
  _elastic_flags.set_up_logging('launch')
  return elastic.local.launch(
    options.command,
    num_hosts=options.local,
    agent_arguments=_elastic_flags.to_arguments(options),
    snapshot_dir=options.snapshot_dir,
    snapshot_spill_dir=options.snapshot_spill_dir,
  )
