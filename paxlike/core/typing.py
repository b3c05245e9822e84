"""Names for the shapes of data that cross room borders."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

PyTree = Any
# One global or process-local batch: field name to an array of [batch, ...].
Batch = Mapping[str, jax.Array]
HostBatch = dict[str, np.ndarray]
# The shapes and dtypes of a batch, without its values.
BatchSpec = Mapping[str, jax.ShapeDtypeStruct]
# A field of a pytree class: an array, or in a tree of the same structure what
# stands for it, such as its shape, sharding or axes.
Leaf = Any
