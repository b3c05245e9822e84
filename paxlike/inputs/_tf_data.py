"""tf.data pipelines as inputs. The one file that imports TensorFlow."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from paxlike.core import errors
from paxlike.inputs import _iterator


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TfDataInput(_iterator.IteratorInput):
  """Examples of a `tf.data.Dataset`, unbatched, of dicts of dense tensors.

  Attributes:
    make_epoch: Called with the number of an epoch; gives its dataset, with a
      fixed order. Its `skip` is used to go on at a position.
  """

  make_epoch: Callable[[int], Any]

  def _examples(self, epoch: int, skip: int) -> Iterator[dict[str, np.ndarray]]:
    return self._dataset(epoch).skip(skip).as_numpy_iterator()

  def _num_examples(self) -> int:
    cardinality = int(self._dataset(0).cardinality())
    return cardinality if cardinality >= 0 else super()._num_examples()

  def _dataset(self, epoch: int) -> Any:
    try:
      import tensorflow as tf  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
      raise errors.ConfigError(
        f"Input {self.name} needs TensorFlow: pip install 'paxlike[tf]'."
      ) from error
    # TensorFlow must leave the accelerator's memory to JAX.
    for kind in ('GPU', 'TPU'):
      tf.config.set_visible_devices([], kind)
    options = tf.data.Options()
    options.deterministic = True
    return self.make_epoch(epoch).with_options(options)
