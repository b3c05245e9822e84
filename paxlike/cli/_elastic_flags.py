"""Flags that the commands of elastic jobs share."""

import argparse
import dataclasses
import logging as std_logging

from absl import flags, logging

from paxlike import elastic
from paxlike.core import errors

_HELP = {
  'start_wait_s': 'at the start, wait this long for all hosts',
  'replacement_wait_s': 'wait this long for a lost host before going on '
  'with fewer',
  'snapshot_steps': 'steps from one snapshot in memory to the next',
  'watchdog_s': 'least time without a step before a worker counts as stuck',
  'watchdog_factor': 'median steps that may pass without a step',
  'silence_s': 'time without a word before a host counts as lost',
  'max_futile': 'formations in a row that may fail without a new step',
}


def add_secret(parser: argparse.ArgumentParser) -> None:
  """Where the secret comes from."""
  parser.add_argument(
    '--secret_file',
    metavar='FILE',
    help='the secret of the job; default: the variable '
    f'{elastic.agent.SECRET_VARIABLE}',
  )
  # Ends with the process that started it, which is on this machine.
  parser.add_argument('--parent_pid', type=int, help=argparse.SUPPRESS)


def add_snapshot_dirs(parser: argparse.ArgumentParser) -> None:
  """Where snapshots go."""
  parser.add_argument(
    '--snapshot_dir',
    metavar='DIR',
    default=elastic.local.SNAPSHOT_DIR,
    help='where snapshots go (default %(default)s)',
  )
  parser.add_argument(
    '--snapshot_spill_dir',
    metavar='DIR',
    help='on a local disk: where they go instead if they have no room there; '
    'without it that is an error at the start',
  )


def add_policy(parser: argparse.ArgumentParser) -> None:
  """How the job is kept alive."""
  parser.add_argument(
    '--hosts', metavar='LEAST:MOST', help='with fewer the job holds'
  )
  defaults = elastic.Policy()
  for name, text in _HELP.items():
    default = getattr(defaults, name)
    parser.add_argument(
      f'--{name}',
      type=type(default),
      default=default,
      help=f'{text} (default {default})',
    )


def policy(options: argparse.Namespace) -> elastic.Policy:
  """The policy that the flags tell.

  Raises:
    UsageError: They make no sense.
  """
  chosen = elastic.Policy(**{name: getattr(options, name) for name in _HELP})
  if options.hosts is None:
    return chosen
  least, colon, most = options.hosts.partition(':')
  if not least.isdigit() or not (most if colon else least).isdigit():
    raise errors.UsageError(f'--hosts={options.hosts} is no LEAST:MOST.')
  return dataclasses.replace(
    chosen, min_hosts=int(least), max_hosts=int(most if colon else least)
  )


def to_arguments(options: argparse.Namespace) -> list[str]:
  """The flags that tell the same policy."""
  checked = policy(options)
  flags = [f'--{name}={getattr(checked, name)}' for name in _HELP]
  return [f'--hosts={checked.min_hosts}:{checked.max_hosts}', *flags]


def secret(options: argparse.Namespace) -> bytes:
  """The secret of the job."""
  return elastic.load_secret(
    options.secret_file, variable=elastic.agent.SECRET_VARIABLE
  )


def set_up_logging(who: str) -> None:
  """Logs like a job does."""
  if not flags.FLAGS.is_parsed():  # which absl would complain of
    flags.FLAGS.mark_as_parsed()
  logging.use_absl_handler()
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().setFormatter(
    std_logging.Formatter(
      f'%(asctime)s {who} %(levelname).1s %(message)s', '%H:%M:%S'
    )
  )
