"""Random-access sources and Grain datasets. The one file that imports grain."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paxlike.core import errors, typing
from paxlike.inputs import _base


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GrainInput(_base.IndexedInput):
  """Examples of a `grain.MapDataset`, one by one, in our order.

  Leave shuffling, repeating, batching and sharding out of the dataset: they
  are the input's. A dataset that draws random numbers (`seed`, `random_map`)
  draws new ones in every epoch, the same for any number of processes.

  Attributes:
    make_dataset: Gives the dataset, of dicts of arrays; any source that has a
      length and can be indexed is taken too.
  """

  make_dataset: Callable[[], Any]

  def _open(self) -> Any:
    source = self.make_dataset()
    try:
      import grain  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
      raise errors.ConfigError(
        f"Input {self.name} needs grain: pip install 'paxlike[grain]'."
      ) from error
    if isinstance(source, grain.MapDataset):
      return source
    return grain.MapDataset.source(source)

  @property
  def num_examples(self) -> int:
    """Length of the dataset."""
    return len(self._data)

  @functools.cached_property
  def _first(self) -> dict[str, np.ndarray]:
    if not self.num_examples:
      raise errors.InputError(f'Input {self.name} has no examples.')
    return {k: np.asarray(v) for k, v in self._data[0].items()}

  def _field_specs(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    return _base.narrow_specs(self._first)

  def _facts(self) -> Mapping[str, Any]:
    return {'first_example': _base.describe(self._first)}

  def _gather(self, ids: np.ndarray, visits: np.ndarray) -> typing.HostBatch:
    # Past its length a dataset starts again with other random numbers.
    epochs = visits // self.num_examples * self.num_examples
    examples = [self._data[int(i)] for i in epochs + ids]
    return {
      name: np.stack([np.asarray(example[name]) for example in examples])
      for name in self._first
    }
