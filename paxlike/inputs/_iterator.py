"""Examples that can only be read one after the other.

Promises the same as any input; pays for it in reading: every process reads
all examples of a batch and keeps its rows, and going on at a position reads
or skips all that is before it within the epoch.
"""

import dataclasses
import functools
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from paxlike.core import errors, typing
from paxlike.inputs import _base

# Field name to an array or a number.
_Example = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class IteratorInput(_base.Input):
  """An input over any Python iterable, of one epoch after the other.

  Attributes:
    make_epoch: Called with the number of an epoch, from 0; gives its examples,
      each a mapping of field name to array. Must give the same ones each time
      it is called with the same number, and in training should shuffle them
      by that number: `shuffle` is not looked at.
    size: Examples of every epoch; None counts those of epoch 0 at first need.
    endless: Whether epoch 0 never ends.
  """

  make_epoch: Callable[[int], Iterable[_Example]]
  size: int | None = None
  endless: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.endless and self.size is not None:
      raise errors.ConfigError(
        f'Input {self.name} is endless but has the size {self.size}.'
      )

  @property
  def is_endless(self) -> bool:
    """Whether there is no last example."""
    return self.endless

  @property
  def num_examples(self) -> int | None:
    """Examples of an epoch, counted by reading it if `size` is not set."""
    if self.endless:
      return None
    return self._count if self.size is None else self.size

  @property
  def batch_spec(self) -> typing.BatchSpec:
    """Shapes and dtypes of a global batch, from the first example."""
    return self._spec

  @property
  def fingerprint(self) -> str:
    """Sizes, and a checksum of the first example: all that is cheap to know."""
    return self._fingerprint

  def read(self, position: int, rows: range) -> typing.HostBatch:
    """Reads some rows of one global batch; see `Input.read`."""
    self._check_read(position, rows)
    with self._cursor.lock:
      examples = self._cursor.take(
        position * self.batch_size,
        self.batch_size,
        num_examples=self.num_examples,
        is_repeated=self.is_training,
      )
    examples = examples[rows.start : rows.stop]
    batch = {
      name: np.zeros((len(rows), *shape), dtype)
      for name, (shape, dtype) in self._fields.items()
    }
    for row, (_, example) in enumerate(examples):
      for name, array in batch.items():
        array[row] = example[name]
    ids = np.array([number for number, _ in examples], np.int64)
    return batch | _base.row_fields(ids, len(rows))

  def _examples(self, epoch: int, skip: int) -> Iterator[_Example]:
    """The examples of an epoch but the first `skip`."""
    return itertools.islice(iter(self.make_epoch(epoch)), skip, None)

  def _num_examples(self) -> int:
    return sum(1 for _ in self._examples(0, 0))

  @functools.cached_property
  def _count(self) -> int:
    return self._num_examples()

  @functools.cached_property
  def _cursor(self) -> '_Cursor':
    return _Cursor(self._examples, self.name)

  @functools.cached_property
  def _first(self) -> dict[str, np.ndarray]:
    first = next(self._examples(0, 0), None)
    if first is None:
      raise errors.InputError(f'Input {self.name} has no examples.')
    return {name: np.asarray(value) for name, value in first.items()}

  @functools.cached_property
  def _fields(self) -> dict[str, tuple[tuple[int, ...], Any]]:
    return _base.narrow_specs(self._first)

  @functools.cached_property
  def _spec(self) -> typing.BatchSpec:
    return _base.batch_spec(self._fields, self.batch_size)

  @functools.cached_property
  def _fingerprint(self) -> str:
    facts = {
      'input': type(self).__name__,
      'batch_size': self.batch_size,
      'seed': self.seed,
      'is_training': self.is_training,
      'num_examples': self.num_examples,
      'first_example': _base.describe(self._first),
    }
    return json.dumps(facts, sort_keys=True)


class _Cursor:
  """A place in the endless row of epochs, moved only if it must be."""

  def __init__(
    self, examples: Callable[[int, int], Iterator[_Example]], name: str
  ):
    self.lock = threading.Lock()
    self._examples = examples
    self._name = name
    self._at = -1
    self._batch: list[tuple[int, _Example]] = []
    self._next = 0
    self._iterator: Iterator[_Example] | None = None

  def take(
    self, first: int, count: int, *, num_examples: int | None, is_repeated: bool
  ) -> list[tuple[int, _Example]]:
    """Numbers and contents of `count` examples from number `first` on."""
    if first == self._at:
      return self._batch
    if first != self._next:
      self._iterator = None
    size = num_examples or 2**31
    end = first + count if is_repeated or num_examples is None else num_examples
    batch = []
    for number in range(first, min(first + count, end)):
      epoch, place = divmod(number, size)
      if self._iterator is None or place == 0:
        self._iterator = self._examples(epoch, place)
      batch.append((place, self._pull(self._iterator, number)))
    self._at, self._batch, self._next = first, batch, first + count
    return batch

  def _pull(self, iterator: Iterator[_Example], number: int) -> _Example:
    try:
      return next(iterator)
    except StopIteration:
      self._next = -1
      raise errors.InputError(
        f'Input {self._name} ended before example {number}: every epoch must '
        'have the same number of examples.'
      ) from None
