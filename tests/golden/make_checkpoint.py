"""Writes the golden checkpoint of the present format.

    python -m tests.golden.make_checkpoint

Run once for each new format, never again: the files prove that what an older
version wrote is still read.
"""

import pathlib
from typing import Any

import jax
import numpy as np

from paxlike import checkpoint
from paxlike.checkpoint import _integrity
from tests.fakes import clock as fake_clock

HERE = pathlib.Path(__file__).parent


def state() -> dict[str, Any]:
  """What the golden checkpoints hold, whatever their format."""
  return {
    'mdl_vars': {
      'params': {
        'w': np.arange(24, dtype=np.float32).reshape(4, 6) / 7,
        'a/b': np.arange(5, dtype=np.int32),
      },
      'non_trainable': {},
    },
    'key': np.asarray(jax.random.key_data(jax.random.key(7))),
    'big': (np.arange(70_000) % 251).astype(np.uint32),
    'list': [np.float64(0.1), 5, None, 'text', 2.5, True],
    'step': np.int32(3),
  }


def main() -> None:
  """Writes one step of each type."""
  for kind in checkpoint.CheckpointType:
    directory = HERE / f'checkpoint_format_{_integrity.FORMAT}' / kind.value
    with checkpoint.CheckpointManager(
      directory,
      config=checkpoint.CheckpointConfig(type=kind.value),
      clock=fake_clock.FakeClock(),
    ) as manager:
      manager.save(
        3,
        state(),
        items={'input_state': {'position': 3}, 'raw': b'\0\1'},
        metrics={'loss': 0.5},
      )


if __name__ == '__main__':
  main()
