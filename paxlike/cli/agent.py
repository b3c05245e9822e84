"""Keeps this host in an elastic job: --lighthouse=HOST:PORT -- --exp=..."""

import argparse
import hashlib
import os
import socket
from collections.abc import Sequence

from paxlike import elastic
from paxlike.cli import _elastic_flags
from paxlike.core import errors, fs

_EPILOG = """\
Start one on every host, all with the same flags, and one lighthouse. What
follows `--` is the training job. SIGTERM lets this host leave without losing a
step; Ctrl-C stops the whole job, with a checkpoint (exit status 75).

  paxlike lighthouse --bind=node1:7700 --secret_file=secret
  paxlike agent --lighthouse=node1:7700 --hosts=2:8 --secret_file=secret -- \\
    --exp=KjvTiny --mode=train --job_log_dir=/shared/kjv
"""
_JOB_VARIABLES = ('PAXLIKE_JOB_ID', 'SLURM_JOB_ID', 'JOB_NAME')


def main(arguments: Sequence[str]) -> int:
  """Runs the command.

  Args:
    arguments: The words after `paxlike agent`.

  Returns:
    The exit status of the job; 0 also if this host was let go.
  """
  parser = argparse.ArgumentParser(
    prog='paxlike agent',
    description=__doc__,
    epilog=_EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('--lighthouse', required=True, metavar='HOST:PORT')
  add(
    '--host',
    default=socket.gethostname(),
    help='name or address by which others reach this host; only it is '
    'listened on',
  )
  add('--name', help='of this agent; default: the host')
  add(
    '--job_id', help=f'default: {" or ".join(_JOB_VARIABLES)}, else job_log_dir'
  )
  _elastic_flags.add_snapshot_dirs(parser)
  _elastic_flags.add_secret(parser)
  _elastic_flags.add_policy(parser)
  add('command', nargs='+', metavar='-- FLAG')
  options = parser.parse_args(arguments)
  name = options.name or options.host
  _elastic_flags.set_up_logging(name)
  job_log_dir = _job_log_dir(options.command)
  return elastic.agent.run(
    elastic.agent.Options(
      lighthouse=options.lighthouse,
      host=options.host,
      name=name,
      job_id=options.job_id or _job_id(job_log_dir),
      job_log_dir=job_log_dir,
      command=elastic.agent.command_of(options.command),
      policy=_elastic_flags.policy(options),
      secret=_elastic_flags.secret(options),
      snapshot_dir=options.snapshot_dir,
      snapshot_spill_dir=options.snapshot_spill_dir,
      parent_pid=options.parent_pid,
    )
  )


def _job_log_dir(command: Sequence[str]) -> str:
  """What the training job says of itself; only training is elastic."""
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  parser.add_argument('--job_log_dir')
  parser.add_argument('--mode')
  known, _ = parser.parse_known_args(list(command))
  if known.mode != 'train' or not known.job_log_dir:
    raise errors.UsageError(
      'An agent runs training jobs: give --mode=train and --job_log_dir=DIR '
      'after `--`.'
    )
  return fs.expand(known.job_log_dir)


def _job_id(job_log_dir: str) -> str:
  for variable in _JOB_VARIABLES:
    if os.environ.get(variable):
      return os.environ[variable].replace('/', '_')
  return hashlib.sha256(job_log_dir.encode()).hexdigest()[:12]
