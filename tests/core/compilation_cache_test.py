import os
import subprocess
import sys

from paxlike.core import compilation_cache


def test_the_default_is_in_the_users_cache_by_processor(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  directory = compilation_cache.default_directory()
  assert os.path.dirname(directory) == str(tmp_path / 'paxlike' / 'jax')
  assert directory == compilation_cache.default_directory()


def test_jax_keeps_programs_where_it_is_told(tmp_path):
  code = (
    'from paxlike.core import compilation_cache; '
    f'compilation_cache.turn_on({str(tmp_path)!r}); '
    'import jax; jax.jit(lambda x: x + 1)(1.0)'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
  assert list(tmp_path.glob('jit_*-cache'))


def test_jax_keeps_nothing_when_turned_off(tmp_path):
  code = (
    'from paxlike.core import compilation_cache; '
    'compilation_cache.turn_off(); '
    'import jax; jax.jit(lambda x: x + 1)(1.0)'
  )
  subprocess.run(
    [sys.executable, '-c', code],
    check=True,
    env={
      **os.environ,
      'JAX_COMPILATION_CACHE_DIR': str(tmp_path),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    },
  )
  assert not list(tmp_path.iterdir())
