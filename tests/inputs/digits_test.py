import numpy as np
import pytest

from paxlike import inputs
from paxlike.core import errors
from tests.contracts import input_contract


def make(split: str, **knobs) -> inputs.DigitsInput:
  return inputs.DigitsInput(
    **{'name': 'digits', 'batch_size': 64, 'split': split, **knobs}
  )


def read_all(source: inputs.Input) -> dict[str, np.ndarray]:
  with inputs.Stream(source) as stream:
    batches = list(stream)
  real = np.concatenate([b['example_weights'] for b in batches]) == 1
  return {
    name: np.concatenate([b[name] for b in batches])[real]
    for name in batches[0]
  }


class TestDigitsInput(input_contract.InputContract):
  def make(self, **knobs):
    return make('test', **knobs)


def test_the_splits_share_no_image_and_leave_none_out():
  train, test = read_all(make('train')), read_all(make('test'))
  assert (len(train['labels']), len(test['labels'])) == (1437, 360)
  images = np.concatenate([train['inputs'], test['inputs']])
  assert len(np.unique(images.reshape(1797, -1), axis=0)) == 1797


def test_images_are_in_0_to_1_and_every_digit_is_tested():
  test = read_all(make('test'))
  assert test['inputs'].min() == 0.0
  assert test['inputs'].max() == 1.0
  assert np.bincount(test['labels']).min() >= 25


def test_another_split_is_refused():
  with pytest.raises(errors.ConfigError, match="'validation'"):
    make('validation')
