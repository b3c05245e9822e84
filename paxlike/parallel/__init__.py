"""Where arrays live: the mesh, the rules for logical axes, the partitioner."""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.parallel._mesh import DEFAULT_RULES as DEFAULT_RULES
  from paxlike.parallel._mesh import MeshConfig as MeshConfig
  from paxlike.parallel._mesh import make_mesh as make_mesh
  from paxlike.parallel._partitioner import Partitioner as Partitioner

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'DEFAULT_RULES': '_mesh',
    'MeshConfig': '_mesh',
    'make_mesh': '_mesh',
    'Partitioner': '_partitioner',
  },
)
