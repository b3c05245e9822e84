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
