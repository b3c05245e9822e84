"""Many processes as one job: who is there, meeting, agreeing, ending together.

Promises that nothing hangs unexplained: every wait has a name and a deadline,
says in the log that it waits, and ends in an error that names the processes
that did not come, where they are, and their Python stacks. Nothing here
launches device work, so all of it is safe from any thread.
"""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.sync._agree import agree as agree
  from paxlike.sync._agree import check_same as check_same
  from paxlike.sync._bootstrap import bootstrap as bootstrap
  from paxlike.sync._ending import last_words as last_words
  from paxlike.sync._guard import (
    assert_main_thread_only as assert_main_thread_only,
  )
  from paxlike.sync._progress import Progress as Progress
  from paxlike.sync._stop import StopRequest as StopRequest
  from paxlike.sync._watchdog import Watchdog as Watchdog
  from paxlike.sync._world import SoloWorld as SoloWorld
  from paxlike.sync._world import World as World
  from paxlike.sync._world import set_world as set_world
  from paxlike.sync._world import sync_global_devices as sync_global_devices
  from paxlike.sync._world import world as world

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'Progress': '_progress',
    'SoloWorld': '_world',
    'World': '_world',
    'StopRequest': '_stop',
    'Watchdog': '_watchdog',
    'agree': '_agree',
    'assert_main_thread_only': '_guard',
    'bootstrap': '_bootstrap',
    'check_same': '_agree',
    'last_words': '_ending',
    'set_world': '_world',
    'sync_global_devices': '_world',
    'world': '_world',
  },
)
