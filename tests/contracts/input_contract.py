"""What every Input must pass: subclass `InputContract`, give `make`.

class TestMyInput(input_contract.InputContract):
  def make(self, **knobs):
    return MyInput(**{'name': 'mine', 'batch_size': 4, **knobs})
"""

import itertools
from typing import Any

import numpy as np
import pytest

from paxlike import inputs
from paxlike.core import errors


def split_rows(batch_size: int, num_processes: int) -> list[range]:
  """Rows of each process, in order; as even as they can be."""
  ends = [batch_size * i // num_processes for i in range(num_processes + 1)]
  return [range(a, b) for a, b in itertools.pairwise(ends)]


def read_whole(source: inputs.Input, position: int) -> dict[str, np.ndarray]:
  return source.read(position, range(source.batch_size))


def read_by_processes(
  source: inputs.Input, position: int, num_processes: int
) -> dict[str, np.ndarray]:
  parts = [
    source.read(position, rows)
    for rows in split_rows(source.batch_size, num_processes)
  ]
  return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def assert_same(one: Any, other: Any) -> None:
  assert one.keys() == other.keys()
  for name in one:
    np.testing.assert_array_equal(one[name], other[name], err_msg=name)


class InputContract:
  """Promises of `inputs.Input`, for one kind of input."""

  def make(self, **knobs: Any) -> inputs.Input:
    """A new input of at least 2 examples; finite unless it cannot be."""
    raise NotImplementedError

  def test_batches_fit_their_spec(self):
    for is_training in (False, True):
      source = self.make(is_training=is_training, batch_size=3)
      batch = read_whole(source, 0)
      assert batch.keys() == source.batch_spec.keys()
      for name, spec in source.batch_spec.items():
        assert batch[name].shape == spec.shape, name
        assert batch[name].dtype == spec.dtype, name

  def test_a_batch_depends_on_its_position_alone(self):
    source = self.make(is_training=True)
    forwards = [read_whole(source, p) for p in range(6)]
    fresh = self.make(is_training=True)
    for position in (5, 0, 3, 1, 4, 2):
      assert_same(read_whole(fresh, position), forwards[position])

  @pytest.mark.parametrize('num_processes', [2, 3, 4])
  def test_processes_together_read_the_same_batches(self, num_processes: int):
    for is_training in (False, True):
      source = self.make(is_training=is_training, batch_size=5)
      for position in range(source.num_batches or 4):
        assert_same(
          read_by_processes(source, position, num_processes),
          read_whole(source, position),
        )

  @pytest.mark.parametrize('batch_size', [1, 2, 3, 7])
  def test_an_evaluation_has_each_example_once(self, batch_size: int):
    source = self.make(batch_size=batch_size)
    batches = [read_whole(source, p) for p in range(source.num_batches)]
    ids = np.concatenate([b['example_id'] for b in batches])
    weights = np.concatenate([b['example_weights'] for b in batches])
    np.testing.assert_array_equal(
      ids[weights == 1], np.arange(source.num_examples)
    )
    assert set(ids[weights == 0]) <= {-1}
    assert weights.sum() == source.num_examples

  def test_padding_counts_nothing(self):
    source = self.make(batch_size=1)
    padded = self.make(batch_size=source.num_examples + 3)
    batch = read_whole(padded, 0)
    assert batch['example_weights'][-3:].tolist() == [0, 0, 0]
    assert batch['example_id'][-3:].tolist() == [-1, -1, -1]
    if 'weights' in batch:
      assert not batch['weights'][-3:].any()

  def test_each_training_epoch_has_each_example_once(self):
    source = self.make(is_training=True, batch_size=3)
    num = source.num_examples
    batches = [read_whole(source, p) for p in range(num)]  # Three epochs.
    ids = np.concatenate([b['example_id'] for b in batches])
    for epoch in np.split(ids, 3):
      np.testing.assert_array_equal(np.sort(epoch), np.arange(num))

  def test_there_is_no_batch_past_the_last(self):
    source = self.make()
    with pytest.raises(IndexError, match=str(source.num_batches)):
      read_whole(source, source.num_batches)

  def test_arrays_belong_to_the_caller(self):
    source = self.make()
    batch = read_whole(source, 0)
    expected = {name: array.copy() for name, array in batch.items()}
    for array in batch.values():
      array[...] = 0
    assert_same(read_whole(source, 0), expected)

  def test_keys_are_unique(self):
    source = self.make()
    keys = [source.key(i) for i in range(source.num_examples)]
    assert len(set(keys)) == source.num_examples

  def test_the_fingerprint_tells_batch_size_and_seed(self):
    same = self.make(is_training=True, batch_size=3, seed=1)
    assert (
      same.fingerprint
      == self.make(is_training=True, batch_size=3, seed=1).fingerprint
    )
    for other in ({'batch_size': 4, 'seed': 1}, {'batch_size': 3, 'seed': 2}):
      changed = self.make(is_training=True, **other)
      assert changed.fingerprint != same.fingerprint

  def test_a_stream_resumes_at_any_position(self):
    with inputs.Stream(self.make(is_training=True)) as stream:
      straight = [next(stream) for _ in range(5)]
    for start in range(5):
      with inputs.Stream(self.make(is_training=True), position=start) as stream:
        for batch in straight[start:]:
          assert_same(next(stream), batch)

  def test_nonsense_is_refused_when_built(self):
    for knobs in (
      {'batch_size': 0},
      {'eval_loop_num_batches': 0},
      {'name': 'a/b'},
      {'name': ''},
    ):
      with pytest.raises(errors.ConfigError):
        self.make(**knobs)
