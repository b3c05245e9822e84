import numpy as np
import pytest

from paxlike import inputs
from paxlike.core import errors
from tests.contracts import input_contract


class TestSyntheticLmInput(input_contract.InputContract):
  def make(self, **knobs):
    return inputs.SyntheticLmInput(
      **{
        'name': 'lm',
        'batch_size': 4,
        'seq_len': 6,
        'vocab_size': 17,
        'num_examples': 9,
        **knobs,
      }
    )


class TestSyntheticClassificationInput(input_contract.InputContract):
  def make(self, **knobs):
    return inputs.SyntheticClassificationInput(
      **{
        'name': 'classes',
        'batch_size': 4,
        'shape': (3, 2),
        'num_classes': 4,
        'num_examples': 9,
        **knobs,
      }
    )


def test_a_token_follows_from_the_two_before():
  source = inputs.SyntheticLmInput(
    name='lm', batch_size=50, seq_len=6, vocab_size=17, is_training=True
  )
  batch = source.read(3, range(50))
  ids, targets = batch['ids'], batch['targets']
  np.testing.assert_array_equal(ids[:, 1:], targets[:, :-1])
  np.testing.assert_array_equal(
    (2 * ids[:, 1:] - ids[:, :-1]) % 17, targets[:, 1:]
  )
  assert len(np.unique(ids[:, 0])) > 10


def test_an_endless_input_does_not_repeat_itself():
  source = inputs.SyntheticLmInput(
    name='lm', batch_size=50, seq_len=4, vocab_size=1000, is_training=True
  )
  rows = np.concatenate([source.read(p, range(50))['ids'] for p in range(10)])
  assert len(np.unique(rows, axis=0)) > 495


def test_ids_stay_int32_for_ever():
  source = inputs.SyntheticLmInput(
    name='lm', batch_size=4, seq_len=2, vocab_size=9, is_training=True
  )
  ids = source.read(10**9, range(4))['example_id']
  assert (ids >= 0).all()
  assert ids.dtype == np.int32


def test_examples_of_a_class_are_like_each_other():
  source = inputs.SyntheticClassificationInput(
    name='classes',
    batch_size=400,
    shape=(16,),
    num_classes=3,
    is_training=True,
  )
  batch = source.read(0, range(400))
  centres = np.stack(
    [batch['inputs'][batch['labels'] == c].mean(axis=0) for c in range(3)]
  )
  distances = np.linalg.norm(batch['inputs'][:, None] - centres, axis=-1)
  assert (distances.argmin(axis=1) == batch['labels']).mean() > 0.99
  spread = batch['inputs'] - centres[batch['labels']]
  assert abs(spread.std() - 0.5) < 0.03


def test_a_negative_number_of_examples_is_refused():
  with pytest.raises(errors.ConfigError, match='num_examples'):
    inputs.SyntheticLmInput(
      name='lm', batch_size=4, seq_len=2, vocab_size=9, num_examples=-1
    )
