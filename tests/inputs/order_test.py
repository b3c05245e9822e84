import numpy as np
import pytest

from paxlike.inputs import _order

GOLDEN_10 = [5, 9, 1, 4, 2, 0, 8, 6, 3, 7]
GOLDEN_BIG = [2115256985, 1582138188, 1207437781]


def order(num_examples: int, *, seed: int = 0, epoch: int = 0) -> np.ndarray:
  return _order.shuffled(
    np.arange(num_examples), num_examples=num_examples, seed=seed, epoch=epoch
  )


@pytest.mark.parametrize('num_examples', [*range(1, 70), 997, 1024, 10_007])
def test_every_example_has_one_place(num_examples):
  for epoch in range(3):
    ids = order(num_examples, epoch=epoch)
    np.testing.assert_array_equal(np.sort(ids), np.arange(num_examples))


def test_a_part_is_a_part_of_the_whole():
  whole = order(1000, seed=3, epoch=2)
  part = _order.shuffled(
    np.array([999, 5, 5, 17]), num_examples=1000, seed=3, epoch=2
  )
  np.testing.assert_array_equal(part, whole[[999, 5, 5, 17]])


def test_seeds_and_epochs_have_orders_of_their_own():
  orders = {
    tuple(order(20, seed=seed, epoch=epoch))
    for seed in range(10)
    for epoch in range(10)
  }
  assert len(orders) == 100


def test_the_order_never_changes_between_versions():
  # A checkpoint of an earlier version goes on in this order.
  assert order(10, seed=0, epoch=0).tolist() == GOLDEN_10
  big = _order.shuffled(np.arange(3), num_examples=2**31 - 1, seed=7, epoch=1)
  assert big.tolist() == GOLDEN_BIG


def test_two_examples_swap_half_of_the_time():
  swapped = sum(order(2, epoch=epoch)[0] == 1 for epoch in range(400))
  assert 150 < swapped < 250


def test_places_are_as_likely_as_one_another():
  num, epochs = 12, 2400
  counts = np.zeros((num, num))
  for epoch in range(epochs):
    counts[np.arange(num), order(num, epoch=epoch)] += 1
  expected = epochs / num
  chi2 = ((counts - expected) ** 2 / expected).sum()
  # 121 degrees of freedom: mean 121, standard deviation 15.6.
  assert chi2 < 121 + 5 * 15.6


def test_neighbours_in_the_data_are_no_neighbours_in_the_order():
  ids = order(10_000)
  steps = np.abs(np.diff(ids))
  # A true shuffle has 2 / 10,000 of them; the mean distance is a third.
  assert (steps == 1).sum() < 10
  assert 3200 < steps.mean() < 3470
  assert abs(np.corrcoef(np.arange(10_000), ids)[0, 1]) < 0.05


def test_a_huge_data_set_costs_no_memory():
  ids = _order.shuffled(
    np.arange(5) + 10**12, num_examples=10**12 + 39, seed=0, epoch=0
  )
  assert len(set(ids.tolist())) == 5
  assert (ids < 10**12 + 39).all()
