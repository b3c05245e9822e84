"""A restore takes the state's memory, a few buffers, and no more.

Real processes, since what counts is the most that one ever held.
"""

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests import house
from tests.checkpoint import states

# 215 MB, half of it in one array, as in a model with a large vocabulary.
_SHAPES = {
  'embed': (1 << 16, 400),
  **{f'x{i}': (1024, 1200) for i in range(22)},
}
_STATE_BYTES = sum(4 * rows * columns for rows, columns in _SHAPES.values())
_NUM_DEVICES = 8


def run(what: str, kind: str, directory: pathlib.Path) -> str:
  """What a process of its own, with 8 devices, prints last."""
  flags = f'--xla_force_host_platform_device_count={_NUM_DEVICES}'
  done = subprocess.run(
    [sys.executable, '-m', __name__, what, kind, str(directory)],
    cwd=house.ROOT,
    env={**os.environ, 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout.splitlines()[-1]


@pytest.fixture(scope='module')
def saved(tmp_path_factory) -> Iterator[pathlib.Path]:
  """A directory with the same state in each type's own directory."""
  directory = tmp_path_factory.mktemp('saved')
  assert run('save', ','.join(states.KINDS), directory) == 'saved'
  yield directory
  for path in directory.rglob('*'):
    if path.is_file():
      path.unlink()  # pytest keeps directories, and these are large


@pytest.mark.parametrize('mesh', ['same', 'other'])
@pytest.mark.parametrize('kind', states.KINDS)
def test_a_restore_peaks_at_little_more_than_the_state(saved, kind, mesh):
  peak_bytes = int(run(mesh, kind, saved))
  assert _STATE_BYTES <= peak_bytes <= 1.2 * _STATE_BYTES


# --- what the processes do


def _shardings(mesh: str) -> dict[str, Any]:
  """Rows over all devices, or columns over half of them."""
  import jax
  import numpy as np

  devices = jax.devices()
  assert len(devices) == _NUM_DEVICES
  spec = jax.sharding.PartitionSpec('data')
  if mesh == 'other':
    devices = devices[: _NUM_DEVICES // 2]
    spec = jax.sharding.PartitionSpec(None, 'data')
  grid = jax.sharding.Mesh(np.array(devices), ('data',))
  sharding = jax.sharding.NamedSharding(grid, spec)
  return dict.fromkeys(_SHAPES, sharding)


def _save(directory: str, kinds: str) -> None:
  import jax
  import numpy as np

  rng = np.random.default_rng(0)
  shardings = _shardings('same')
  state = {
    name: jax.device_put(
      rng.standard_normal(shape, np.float32), shardings[name]
    )
    for name, shape in _SHAPES.items()
  }
  for kind in kinds.split(','):
    with states.manager(pathlib.Path(directory) / kind, kind) as manager:
      manager.save(1, state)
  print('saved')


def _restore(directory: str, kind: str, mesh: str) -> None:
  """Prints the most memory that it took beside what there was before."""
  import jax
  import numpy as np

  target = {
    name: jax.ShapeDtypeStruct(_SHAPES[name], np.float32, sharding=sharding)
    for name, sharding in _shardings(mesh).items()
  }
  jax.block_until_ready(jax.device_put(np.zeros(8)))
  with states.manager(
    pathlib.Path(directory) / kind, kind, read_only=True
  ) as manager:
    pathlib.Path('/proc/self/clear_refs').write_text('5', encoding='ascii')
    before = _status_bytes('VmRSS')
    restored = manager.restore(target)
    jax.block_until_ready(restored.state)
  print(_status_bytes('VmHWM') - before)


def _status_bytes(key: str) -> int:
  text = pathlib.Path('/proc/self/status').read_text(encoding='ascii')
  (line,) = (x for x in text.splitlines() if x.startswith(key))
  return int(line.split()[1]) * 1024


if __name__ == '__main__':
  what, kind, where = sys.argv[1:]
  if what == 'save':
    _save(where, kind)
  else:
    _restore(where, kind, what)
