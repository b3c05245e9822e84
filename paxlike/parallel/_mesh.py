"""The device mesh of a job, from three numbers in its config."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from paxlike.core import errors

AXES = ('replica', 'data', 'mdl')
BATCH_AXES = ('replica', 'data')

# Logical axis of an array -> mesh axis it is split over. Names that are not
# listed are not split.
DEFAULT_RULES: tuple[tuple[str, str], ...] = (
  ('embed', 'data'),
  ('vocab', 'mdl'),
  ('heads', 'mdl'),
  ('kv_heads', 'mdl'),
  ('mlp', 'mdl'),
  ('conv_out', 'data'),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
  """How many ways a job is split, and over what.

  Attributes:
    replica: Copies of the model, each with its own part of the batch.
    data: Ways that the batch and, by the default rules, each parameter is
      split (fully sharded data parallel).
    mdl: Ways that a layer's own work is split (tensor parallel).
    rules: Logical axis name to mesh axis name, the first match counts.

  At most one of the three sizes is -1: whatever fills the devices.
  """

  replica: int = 1
  data: int = -1
  mdl: int = 1
  rules: tuple[tuple[str, str], ...] = DEFAULT_RULES

  def __post_init__(self) -> None:
    sizes = dict(zip(AXES, self.sizes, strict=True))
    bad = {k: v for k, v in sizes.items() if v < 1 and v != -1}
    if bad or list(sizes.values()).count(-1) > 1:
      said = ' '.join(f'{axis}={size}' for axis, size in sizes.items())
      raise errors.ConfigError(
        f'mesh_p has sizes {said}; each must be >= 1, and one may be -1 to '
        'fill the devices.'
      )
    for logical, axis in self.rules:
      if axis not in AXES:
        raise errors.ConfigError(
          f'mesh_p.rules sends {logical!r} to {axis!r}; the mesh has the axes '
          f'{", ".join(AXES)}.'
        )

  @property
  def sizes(self) -> tuple[int, int, int]:
    """Sizes in the order of the mesh's axes."""
    return (self.replica, self.data, self.mdl)

  def resolve(self, num_devices: int) -> tuple[int, int, int]:
    """The sizes with -1 filled in.

    Args:
      num_devices: Devices of the whole job.

    Returns:
      Three sizes whose product is `num_devices`.

    Raises:
      ConfigError: The sizes do not multiply to `num_devices`.
    """
    known = math.prod(size for size in self.sizes if size != -1)
    filled = num_devices // known if num_devices % known == 0 else 0
    replica, data, mdl = (filled if size == -1 else size for size in self.sizes)
    if replica * data * mdl != num_devices:
      raise errors.ConfigError(
        f'mesh_p asks for replica={self.replica} data={self.data} '
        f'mdl={self.mdl}, but the job has {num_devices} devices. Make the '
        f'product {num_devices}, for example --set mesh_p.data=-1 with the '
        'others dividing it.'
      )
    return replica, data, mdl


def make_mesh(
  config: MeshConfig, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
  """The mesh over `devices`, grouped so that a process's own lie together.

  Args:
    config: The sizes.
    devices: All devices of the job; those of the backend if None.

  Returns:
    A mesh with the axes replica, data, mdl, all partitioned by the compiler.

  Raises:
    ConfigError: The sizes do not fit the number of devices.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = config.resolve(len(devices))
  ordered = sorted(devices, key=lambda d: (d.process_index, d.id))
  if devices[0].platform == 'tpu':
    # On a torus neighbours in the mesh should be neighbours in the machine.
    from jax.experimental import mesh_utils

    grid = mesh_utils.create_device_mesh(sizes, devices)
  else:
    grid = np.asarray(ordered).reshape(sizes)
  return jax.sharding.Mesh(
    grid, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES)
  )
