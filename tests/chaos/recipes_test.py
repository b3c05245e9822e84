"""The recipe for hosts that ssh reaches, with what stands in for ssh."""

import os
import subprocess
import sys

import pytest

from tests.chaos import harness

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_the_ssh_recipe_trains_on_an_agent_each_host_until_all_is_done(
  tmp_path,
):
  # Every host is this one, under another of its addresses.
  ssh = tmp_path / 'ssh'
  ssh.write_text('#!/bin/bash\nshift\nexec bash -c "$*"\n')
  ssh.chmod(0o700)
  job_log_dir = tmp_path / 'job'
  done = subprocess.run(
    [
      *('bash', 'launch/elastic_ssh.sh', '127.0.0.1 127.0.0.2'),
      *('--exp=tests.chaos.toys.Slow', '--mode=train'),
      *(f'--job_log_dir={job_log_dir}', '--set=NUM_TRAIN_STEPS=20'),
    ],
    cwd=harness.ROOT,
    env={
      **os.environ,
      'JAX_PLATFORMS': 'cpu',
      'XLA_FLAGS': '',
      'SSH': str(ssh),
      'PYTHON': sys.executable,
      'PORT': str(harness.free_port()),
      'LEAST': '2',
    },
    check=False,
    capture_output=True,
    text=True,
    timeout=150,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert [row['step'] for row in harness.losses(job_log_dir)] == [*range(1, 21)]
  assert harness.processes_with(f'--job_log_dir={job_log_dir}') == []
