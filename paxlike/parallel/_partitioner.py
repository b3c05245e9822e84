"""Says where every array of a step lives, and puts batches there.

Promises: the same numbers on any mesh (up to the order of float sums); any
global batch size, since rows that do not divide are padded with weight 0.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from paxlike.core import errors
from paxlike.core import typing as ptyping
from paxlike.parallel import _mesh

# Bytes; other arrays are copied, on a thread that the step has to share with.
_XLA_ALIGNMENT = 64

LogicalAxes = tuple[str | None, ...]


class Partitioner:
  """Turns logical axis names into shardings on one mesh.

  Attributes:
    mesh: The mesh over all devices of the job.
    replicated: The sharding of what every device holds whole.
    batch_sharding: The sharding of a batch: its first axis is split.
    num_batch_shards: Ways that a batch is split.
  """

  def __init__(
    self,
    mesh: jax.sharding.Mesh,
    rules: Sequence[tuple[str, str]] = _mesh.DEFAULT_RULES,
  ):
    self.mesh = mesh
    self._rules = dict(reversed(list(rules)))
    self.replicated = NamedSharding(mesh, PartitionSpec())
    self.batch_sharding = NamedSharding(mesh, PartitionSpec(_mesh.BATCH_AXES))
    devices = mesh.devices.flat
    self._is_one_cpu = mesh.size == 1 and devices[0].platform == 'cpu'
    self.num_batch_shards = math.prod(
      mesh.shape[axis] for axis in _mesh.BATCH_AXES
    )

  def sharding(
    self, shape: Sequence[int], axes: LogicalAxes | None
  ) -> NamedSharding:
    """Where an array lives.

    A dimension that its mesh axis does not divide is not split, and no mesh
    axis is used twice.

    Args:
      shape: The array's global shape.
      axes: One logical name (or None) a dimension; None: replicated.

    Returns:
      Its sharding on this mesh.
    """
    if axes is None:
      return self.replicated
    if len(axes) != len(shape):
      raise errors.ConfigError(
        f'An array of shape {tuple(shape)} has the logical axes {axes}: give '
        'one name, or None, a dimension.'
      )
    used: set[str] = set()
    entries: list[str | None] = []
    for size, name in zip(shape, axes, strict=True):
      axis = self._rules.get(name) if name is not None else None
      fits = (
        axis is not None
        and axis not in used
        and size > 0
        and size % self.mesh.shape[axis] == 0
      )
      entries.append(axis if fits else None)
      if fits and axis is not None:
        used.add(axis)
    return NamedSharding(self.mesh, PartitionSpec(*entries))

  def shardings(
    self, shapes: ptyping.PyTree, logical_axes: ptyping.PyTree
  ) -> ptyping.PyTree:
    """`sharding` over a tree.

    Args:
      shapes: Tree of arrays or `jax.ShapeDtypeStruct`.
      logical_axes: Same tree with a tuple of names (or None) at each leaf.

    Returns:
      Same tree of shardings.
    """
    leaves, treedef = jax.tree.flatten(shapes)
    axes = treedef.flatten_up_to(logical_axes)
    return treedef.unflatten(
      self.sharding(leaf.shape, names)
      for leaf, names in zip(leaves, axes, strict=True)
    )

  def padded_size(self, batch_size: int) -> int:
    """Rows of a global batch on this mesh: `batch_size`, rounded up."""
    return -(-batch_size // self.num_batch_shards) * self.num_batch_shards

  def _padded_rows(self, batch_size: int) -> range:
    """Rows of the padded batch that lie on this process's devices."""
    padded = self.padded_size(batch_size)
    spans = self.batch_sharding.addressable_devices_indices_map((padded,))
    bounds = [index[0].indices(padded) for index in spans.values() if index]
    return range(min(b[0] for b in bounds), max(b[1] for b in bounds))

  def local_rows(self, batch_size: int) -> range:
    """Rows of a global batch that this process must read.

    Args:
      batch_size: Rows of the global batch before padding.

    Returns:
      A range within 0..batch_size; empty if only padding falls here.
    """
    rows = self._padded_rows(batch_size)
    return range(min(rows.start, batch_size), min(rows.stop, batch_size))

  def put_batch(
    self, batch: ptyping.HostBatch, batch_size: int
  ) -> ptyping.PlacedBatch:
    """Puts this process's rows onto its devices as global arrays.

    Starts transfers only, never a collective, so it may run beside a step.

    Args:
      batch: Rows `local_rows(batch_size)` of every field; not kept and not to
        be written to afterwards.
      batch_size: Rows of the global batch before padding.

    Returns:
      Global arrays of `padded_size(batch_size)` rows. Rows beyond `batch_size`
      hold zeros, so their weights are 0, and `example_id` -1. Where the mesh
      is one CPU they remain NumPy arrays: the step takes them where they are,
      and putting them costs a short step 2% (benchmarks/step_overhead.py).
    """
    padded = self.padded_size(batch_size)
    rows = self._padded_rows(batch_size)
    host = {
      name: _pad_rows(values, len(rows), -1 if name == 'example_id' else 0)
      for name, values in batch.items()
    }
    if self._is_one_cpu:
      return {name: _aligned(values) for name, values in host.items()}
    if len(rows) == padded and self.batch_sharding.is_fully_addressable:
      return jax.device_put(host, self.batch_sharding)  # one call, not many
    spans = self.batch_sharding.addressable_devices_indices_map((padded,))
    result = {}
    for name, values in host.items():
      shards = []
      for device, index in spans.items():
        start, stop, _ = index[0].indices(padded) if index else (0, padded, 1)
        part = values[start - rows.start : stop - rows.start]
        shards.append(jax.device_put(part, device))
      result[name] = jax.make_array_from_single_device_arrays(
        (padded, *values.shape[1:]), self.batch_sharding, shards
      )
    return result


def _pad_rows(values: np.ndarray, rows: int, fill: int) -> np.ndarray:
  """`values` with `rows` rows, the new ones all `fill`."""
  missing = rows - values.shape[0]
  if missing == 0:
    return values
  tail = np.full((missing, *values.shape[1:]), fill, values.dtype)
  return np.concatenate([values, tail])


def _aligned(values: np.ndarray) -> np.ndarray:
  """`values` where XLA's CPU client can use them without a copy of its own."""
  if values.ctypes.data % _XLA_ALIGNMENT == 0 and values.flags.c_contiguous:
    return values
  room = np.empty(values.nbytes + _XLA_ALIGNMENT, np.uint8)
  start = -room.ctypes.data % _XLA_ALIGNMENT
  aligned = room[start : start + values.nbytes].view(values.dtype)
  aligned = aligned.reshape(values.shape)
  aligned[...] = values
  return aligned
