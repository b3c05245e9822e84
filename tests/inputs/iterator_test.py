from collections.abc import Iterator

import numpy as np
import pytest

from paxlike import inputs
from paxlike.core import errors
from tests.contracts import input_contract


def numbers(epoch: int, size: int = 9) -> Iterator[dict]:
  for i in np.random.default_rng(epoch).permutation(size):
    yield {'inputs': np.float64(i), 'epoch': np.int64(epoch)}


def make(make_epoch=numbers, **knobs) -> inputs.IteratorInput:
  return inputs.IteratorInput(
    **{'name': 'numbers', 'batch_size': 4, 'make_epoch': make_epoch, **knobs}
  )


class TestIteratorInput(input_contract.InputContract):
  def make(self, **knobs):
    return make(**knobs)


def test_each_epoch_is_asked_for_by_its_number():
  source = make(is_training=True)
  batches = [source.read(p, range(4)) for p in range(9)]
  epochs = np.concatenate([b['epoch'] for b in batches])
  values = np.concatenate([b['inputs'] for b in batches])
  assert epochs.tolist() == [0] * 9 + [1] * 9 + [2] * 9 + [3] * 9
  for epoch in np.split(values, 4):
    assert sorted(epoch.tolist()) == list(range(9))


def test_reading_on_does_not_start_again():
  asked = []

  def spy(epoch: int):
    asked.append(epoch)
    return numbers(epoch)

  source = make(spy, is_training=True, size=9)
  for position in range(6):
    for rows in (range(2), range(2, 4)):
      source.read(position, rows)
  # Once for the shapes, then once an epoch.
  assert asked == [0, 0, 1, 2]


def test_an_endless_iterable_is_never_counted():
  def counting(epoch: int):
    del epoch
    i = 0
    while True:
      yield {'inputs': np.float32(i)}
      i += 1

  source = make(counting, endless=True, is_training=True)
  assert source.read(3, range(1, 3))['inputs'].tolist() == [13, 14]
  assert source.read(0, range(4))['inputs'].tolist() == [0, 1, 2, 3]
  with pytest.raises(errors.ConfigError, match='eval_loop_num_batches'):
    make(counting, endless=True)


def test_an_epoch_that_ends_early_is_an_error():
  source = make(lambda epoch: numbers(epoch, 9 - epoch), is_training=True)
  for position in range(4):
    source.read(position, range(4))
  with pytest.raises(errors.InputError, match='ended before example 17'):
    source.read(4, range(4))


def test_other_data_are_another_fingerprint():
  other = make(lambda epoch: numbers(epoch + 1))
  assert other.fingerprint != make().fingerprint


def test_no_examples_is_an_error_that_names_the_input():
  with pytest.raises(errors.InputError, match='numbers has no examples'):
    make(lambda epoch: []).batch_spec  # noqa: B018
