"""Names for the shapes of data that cross room borders."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

PyTree = Any
# One global or process-local batch: field name to an array of [batch, ...].
Batch = Mapping[str, jax.Array]
# The same where a compiled function takes it: on the devices, or in the host
# memory that the only device works in.
PlacedBatch = Mapping[str, jax.Array | np.ndarray]
HostBatch = dict[str, np.ndarray]
# The shapes and dtypes of a batch, without its values.
BatchSpec = Mapping[str, jax.ShapeDtypeStruct]
# A field of a pytree class: an array, or in a tree of the same structure what
# stands for it, such as its shape, sharding or axes.
Leaf = Any
