"""What a process has compiled it finds again, whichever process it is."""

import os

import pytest

from tests.multiprocess import harness

pytestmark = pytest.mark.multiprocess

_JOB = 'tests.multiprocess.compilation_test:compile_once'


def compile_once(world):
  import jax

  from tests.multiprocess import sync_jobs

  hits = []
  jax.monitoring.register_event_listener(
    lambda event, **facts: hits.append(event)
  )
  sync_jobs.collective()
  found = '/jax/compilation_cache/cache_hits' in hits
  print(f'process {world.process_index} found: {found}', flush=True)


def test_every_process_finds_its_programs_again(tmp_path):
  env = {
    'JAX_COMPILATION_CACHE_DIR': str(tmp_path),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  for expected in (False, True):
    ended = harness.run(_JOB, 2, env=env)
    harness.assert_all_ended(ended)
    for process in ended:
      assert process.status == 0, process.output
      assert f'found: {expected}' in process.output
  assert os.listdir(tmp_path) != []
