"""Starts the real program on the experiments of `slow_jobs`."""

import sys

from tests.multiprocess import harness


def command(name, mode, job_log_dir, *flags) -> list[str]:
  """One process's command line, but for its place in the job."""
  return [
    *(sys.executable, '-m', 'paxlike.main'),
    f'--exp=tests.multiprocess.slow_jobs.{name}',
    f'--mode={mode}',
    f'--job_log_dir={job_log_dir}',
    '--nocompilation_cache',
    *flags,
  ]


def run(
  name,
  mode,
  job_log_dir,
  num_processes,
  *flags,
  during=None,
  timeout_s=100.0,
) -> list[harness.Process]:
  """Runs a job to its end.

  Args:
    name: Which experiment of `slow_jobs`.
    mode: 'train', 'eval', 'decode'.
    job_log_dir: Where everything goes.
    num_processes: Of how many processes.
    *flags: Further flags.
    during: Called with the processes while they run.
    timeout_s: When those still alive are killed.
  """
  address = f'localhost:{harness.free_port()}'
  commands = [
    command(
      name,
      mode,
      job_log_dir,
      *flags,
      f'--coordinator_address={address}',
      f'--num_processes={num_processes}',
      f'--process_id={index}',
    )
    for index in range(num_processes)
  ]
  return harness.run_commands(commands, during=during, timeout_s=timeout_s)
