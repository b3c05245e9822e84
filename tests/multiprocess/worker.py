"""One process of a test's job: joins the others and calls a function."""

import argparse
import importlib
import sys

from absl import logging

from paxlike import sync
from paxlike.core import errors


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('--coordinator_address')
  parser.add_argument('--num_processes', type=int)
  parser.add_argument('--process_id', type=int)
  parser.add_argument('--start_timeout_s', type=float, default=60.0)
  parser.add_argument('--silence_s', type=float, default=60.0)
  parser.add_argument('--grace_s', type=float, default=2.0)
  parser.add_argument('job')
  parser.add_argument('arguments', nargs='*')
  flags = parser.parse_args()
  logging.set_verbosity(logging.INFO)
  module, _, function = flags.job.partition(':')
  job = getattr(importlib.import_module(module), function)
  try:
    with sync.bootstrap(
      coordinator_address=flags.coordinator_address,
      num_processes=flags.num_processes,
      process_id=flags.process_id,
      timeout_s=flags.start_timeout_s,
      silence_s=flags.silence_s,
      grace_s=flags.grace_s,
    ) as world:
      job(world, *flags.arguments)
  except errors.PaxlikeError as error:
    print(f'{type(error).__name__}: {error}', flush=True)
    sys.exit(error.exit_status)


if __name__ == '__main__':
  main()
