"""Which devices there are is asked in one place each; all else has a mesh."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
_ASKS = re.compile(r'jax\.(local_)?(devices|device_count)\(')
_MAY_ASK = {
  # The default of a mesh over all there is.
  'paxlike/parallel/_mesh.py',
  # What an elastic job is told to lay its mesh over.
  'paxlike/runners/_train_elastic.py',
  # Where arrays go that nobody gave a sharding.
  'paxlike/checkpoint/_restore.py',
}


def test_devices_come_from_the_mesh():
  asking = {
    str(path.relative_to(ROOT))
    for room in ('paxlike', 'experiments')
    for path in (ROOT / room).rglob('*.py')
    if _ASKS.search(path.read_text())
  }
  assert asking == _MAY_ASK
