"""A shuffle that needs no memory: where each place of an epoch comes from.

Promises: a bijection of range(n) for every (seed, epoch), worked out for the
places asked alone, so that a data set of any size starts at any position in
constant time; the same on every machine and NumPy version.
"""

import functools
import hashlib
import math

import numpy as np

_NUM_ROUNDS = 6
# Places whose order is worked out at a time.
_BLOCK = 4096


def places_to_ids(
  first: int, count: int, *, num_examples: int, seed: int
) -> np.ndarray:
  """The examples at places `first`, ... of all epochs one after the other.

  Worked out for many places at a time and remembered: for a batch alone the
  calls would cost more than the arithmetic.
  """
  length = min(_BLOCK, num_examples)
  ids = np.empty(count, np.int64)
  done = 0
  while done < count:
    block, offset = divmod(first + done, length)
    part = _block(block, length, num_examples, seed)[offset:]
    part = part[: count - done]
    ids[done : done + len(part)] = part
    done += len(part)
  return ids


@functools.lru_cache(maxsize=16)
def _block(block: int, length: int, num_examples: int, seed: int) -> np.ndarray:
  """Examples at `length` places from `block * length`; not to be written to."""
  places = np.arange(block * length, (block + 1) * length, dtype=np.int64)
  epochs, places = np.divmod(places, num_examples)
  for epoch in np.unique(epochs):  # two at the most
    chosen = epochs == epoch
    places[chosen] = shuffled(
      places[chosen], num_examples=num_examples, seed=seed, epoch=int(epoch)
    )
  places.flags.writeable = False
  return places


def shuffled(
  places: np.ndarray, *, num_examples: int, seed: int, epoch: int
) -> np.ndarray:
  """Which example stands at each of `places` in the shuffled epoch.

  Args:
    places: Integers in range(num_examples), of any shape.
    num_examples: How many examples an epoch has; at least 1.
    seed: Chooses the order, with `epoch`.
    epoch: Every epoch has an order of its own.

  Returns:
    Example ids of the same shape, int64.
  """
  # A Feistel network over a grid of height x width >= num_examples cells;
  # the few cells that are no example are walked over until one is, which
  # keeps it a bijection (order_test.py).
  height = math.isqrt(num_examples - 1) + 1
  width = -(-num_examples // height)
  keys = _keys(seed, epoch)
  ids = _permute(places.astype(np.int64), height, width, keys)
  while (outside := ids >= num_examples).any():
    ids[outside] = _permute(ids[outside], height, width, keys)
  return ids


def mix(values: np.ndarray) -> np.ndarray:
  """Scrambles each uint64 into one that looks random (splitmix64)."""
  values = values + np.uint64(0x9E3779B97F4A7C15)
  values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return values ^ (values >> np.uint64(31))


def _permute(
  cells: np.ndarray, height: int, width: int, keys: tuple[np.uint64, ...]
) -> np.ndarray:
  row, column = np.divmod(cells, width)
  for number, key in enumerate(keys):
    if number % 2:
      column = (column + _offset(row, key, width)) % width
    else:
      row = (row + _offset(column, key, height)) % height
  return row * width + column


def _offset(values: np.ndarray, key: np.uint64, size: int) -> np.ndarray:
  hashed = mix(values.astype(np.uint64) ^ key)
  return (hashed % np.uint64(size)).astype(np.int64)


@functools.lru_cache(maxsize=16)
def _keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
  digest = hashlib.blake2b(
    f'paxlike order {seed} {epoch}'.encode(), digest_size=8 * _NUM_ROUNDS
  ).digest()
  return tuple(np.frombuffer(digest, dtype='<u8').astype(np.uint64))
