"""States with every kind of leaf, and directories of steps that hold them."""

import collections
import pathlib
from typing import Any

import ml_dtypes
import numpy as np

from paxlike import checkpoint, sync
from paxlike.core import clock as clocks

Moments = collections.namedtuple('Moments', ['mu', 'nu'])
KINDS = tuple(kind.value for kind in checkpoint.CheckpointType)


def plain(seed: int, *, num_rows: int = 64) -> dict[str, Any]:
  """Arrays of some dtypes and shapes; every byte depends on the seed."""
  rng = np.random.default_rng(seed)
  weights = rng.standard_normal((num_rows, 33))
  return {
    'mdl_vars': {
      'params': {
        'w': weights.astype(np.float32),
        'half': weights[:5].astype(ml_dtypes.bfloat16),
      },
      'empty': np.zeros((0, 3), np.int32),
    },
    'opt_states': [Moments(weights[0], weights[1] > 0), None],
    'step': np.array(seed, np.int64),
  }


def varied(seed: int) -> dict[str, Any]:
  """A state with what `plain` has and odd names, scalars and containers."""
  return {
    **plain(seed),
    'a/b': np.arange(3, dtype=np.uint8) + seed,
    'a': {'b': np.float32(seed), '__x': np.ones(2, np.float16)},
    'layers': {10: np.array([seed]), 9: ()},
    'note': 'text',
    'count': seed,
    'rate': 0.5,
    'on': True,
    'raw': b'\x00\xff',
    'f8': np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    'c': np.array([1 + 2j], np.complex64),
  }


def manager(
  directory: pathlib.Path | str, kind: str = 'GDA', **options: Any
) -> checkpoint.CheckpointManager:
  """A manager of one process that writes in the foreground."""
  config = checkpoint.CheckpointConfig(
    type=kind, async_save=options.pop('async_save', False)
  )
  return checkpoint.CheckpointManager(
    directory, config=config, world=sync.SoloWorld(), **options
  )


def save_steps(
  directory: pathlib.Path | str,
  kind: str = 'GDA',
  steps: tuple[int, ...] = (100, 200),
  *,
  state: Any = plain,
  clock: clocks.Clock = clocks.SYSTEM,
) -> None:
  """Commits steps whose states come from their numbers."""
  with manager(directory, kind, clock=clock) as steps_manager:
    for step in steps:
      steps_manager.save(
        step,
        state(step),
        items={'input_state': {'position': step}},
        metrics={'loss': 1.0 / (step + 1)},
      )


def assert_equal(a: Any, b: Any, path: str = '') -> None:
  """Bit for bit, containers as their keys and fields."""
  if isinstance(a, (np.ndarray, np.generic)) or hasattr(a, 'dtype'):
    assert a.dtype == b.dtype, path
    assert a.shape == b.shape, path
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), path
    return
  if isinstance(a, dict) or hasattr(a, '_asdict'):
    a = a if isinstance(a, dict) else a._asdict()
    b = b if isinstance(b, dict) else b._asdict()
    assert set(a) == set(b), path
    for key in a:
      assert_equal(a[key], b[key], f'{path}/{key}')
    return
  if isinstance(a, (list, tuple)):
    assert len(a) == len(b), path
    for i, (one, other) in enumerate(zip(a, b, strict=True)):
      assert_equal(one, other, f'{path}/{i}')
    return
  assert type(a) is type(b), path
  assert a == b, path
