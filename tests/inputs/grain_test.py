import numpy as np
import pytest

from paxlike import inputs
from tests.contracts import input_contract

grain = pytest.importorskip('grain')


class Squares:
  """What Grain calls a random-access source."""

  def __len__(self):
    return 9

  def __getitem__(self, i):
    return {'inputs': np.float64(i * i), 'labels': i}


def noisy():
  def add_noise(example, rng):
    return {**example, 'noise': rng.normal()}

  return grain.MapDataset.source(Squares()).seed(3).random_map(add_noise)


def make(make_dataset=Squares, **knobs) -> inputs.GrainInput:
  return inputs.GrainInput(
    **{
      'name': 'grain',
      'batch_size': 4,
      'make_dataset': make_dataset,
      **knobs,
    }
  )


class TestRandomAccessSource(input_contract.InputContract):
  def make(self, **knobs):
    return make(**knobs)


class TestMapDataset(input_contract.InputContract):
  def make(self, **knobs):
    return make(noisy, **knobs)


def test_random_numbers_are_new_in_every_epoch():
  source = make(noisy, is_training=True)
  batches = [source.read(p, range(4)) for p in range(9)]
  labels = np.concatenate([b['labels'] for b in batches])
  noise = np.concatenate([b['noise'] for b in batches])
  assert np.bincount(labels).tolist() == [4] * 9
  assert len(np.unique(noise)) == 36
