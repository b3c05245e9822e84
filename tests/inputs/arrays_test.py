import dataclasses

import numpy as np
import pytest

from paxlike import inputs
from paxlike.core import errors
from tests.contracts import input_contract


def make(arrays, **knobs) -> inputs.ArraysInput:
  return inputs.ArraysInput(
    **{'name': 'arrays', 'batch_size': 4, 'arrays': arrays, **knobs}
  )


class TestArraysInput(input_contract.InputContract):
  def make(self, **knobs):
    arrays = {
      'inputs': np.arange(44, dtype=np.float32).reshape(11, 2, 2),
      'labels': np.arange(11) % 3,
    }
    return make(arrays, **knobs)


class TestLanguageArraysInput(input_contract.InputContract):
  def make(self, **knobs):
    ids = np.arange(21, dtype=np.int32).reshape(7, 3)
    return make({'ids': ids, 'targets': ids + 1}, **knobs)


def test_paddings_become_weights_when_there_are_none():
  arrays = {
    'ids': np.ones((2, 3), np.int32),
    'paddings': np.array([[0, 0, 1], [0, 1, 1]], np.float32),
  }
  batch = make(arrays).read(0, range(4))
  assert batch['weights'].tolist() == [[1, 1, 0], [1, 0, 0], [0] * 3, [0] * 3]


def test_weights_that_are_set_stay():
  arrays = {
    'ids': np.ones((1, 2), np.int32),
    'weights': np.array([[0.5, 0.0]], np.float32),
  }
  assert make(arrays).read(0, range(1))['weights'].tolist() == [[0.5, 0.0]]


def test_wide_numbers_become_those_of_the_devices():
  spec = make({'a': np.zeros(2), 'b': np.zeros(2, np.int64)}).batch_spec
  assert spec['a'].dtype == np.float32
  assert spec['b'].dtype == np.int32


def test_a_number_that_does_not_fit_is_refused():
  with pytest.raises(errors.InputError, match='int32'):
    make({'a': np.array([2**40])}).read(0, range(1))


def test_arrays_of_different_lengths_are_refused():
  with pytest.raises(errors.InputError, match="'a': 2, 'b': 3"):
    make({'a': np.zeros(2), 'b': np.zeros(3)}).read(0, range(1))


def test_names_that_the_input_makes_itself_are_refused():
  with pytest.raises(errors.ConfigError, match='example_id'):
    make({'example_id': np.zeros(2)}).read(0, range(1))


def test_no_arrays_is_an_error_that_says_what_to_set():
  with pytest.raises(errors.ConfigError, match=r'ArraysInput\.arrays'):
    make(None).read(0, range(1))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Flipped(inputs.ArraysInput):
  """The example of docs/design/inputs.md."""

  def _gather(self, ids, visits):
    batch = super()._gather(ids, visits)
    if self.is_training:
      for row, visit in enumerate(visits):
        if np.random.default_rng([self.seed, visit]).random() < 0.5:
          batch['inputs'][row] = batch['inputs'][row, :, ::-1]
    return batch


def test_augmentation_is_new_each_epoch_and_the_same_after_a_resume():
  images = np.arange(32, dtype=np.float32).reshape(8, 2, 2)

  def read(position: int) -> np.ndarray:
    source = Flipped(
      name='flipped',
      batch_size=8,
      is_training=True,
      shuffle=False,
      arrays={'inputs': images},
    )
    # By two processes, each with an input of its own.
    return np.concatenate(
      [
        source.read(position, rows)['inputs']
        for rows in (range(3), range(3, 8))
      ]
    )

  epochs = [read(position) for position in range(3)]
  assert len({epoch.tobytes() for epoch in epochs}) == 3
  np.testing.assert_array_equal(read(1), epochs[1])
