"""The one object that other rooms meet their fellow processes through.

Promises what `World` says, and a `SoloWorld` that costs nothing. How real
processes meet is `_meeting`'s; how they find each other is `_bootstrap`'s.
"""

import itertools
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from paxlike.sync import _progress as progress_lib
from paxlike.sync import _stop as stop_lib


@runtime_checkable
class World(Protocol):
  """The processes of one job, seen from one of them.

  Every process calls the same methods with the same names, in any thread.
  A name serves once, so put the step in it: 'save/commit/1200'. What is called
  from the main thread is called in the same order on every process; a process
  that does otherwise is found out within seconds.

  Attributes:
    process_index: This process, 0 to process_count - 1.
    process_count: How many there are; 1 when not distributed.
    progress: What this process is doing, as its peers are told.
    stop: Whether the job has been asked to stop, and where it does.
  """

  @property
  def process_index(self) -> int: ...

  @property
  def process_count(self) -> int: ...

  @property
  def progress(self) -> progress_lib.Progress: ...

  @property
  def stop(self) -> stop_lib.StopRequest: ...

  def announce(self, name: str) -> None:
    """Notes that the main thread makes a call which every process makes.

    For calls whose meetings, named `name/...`, another thread has later on:
    so a process that never makes the call is found out all the same. To be
    called when the devices of this process have done what came before.
    """
    ...

  def barrier(self, name: str, *, timeout_s: float | None = None) -> float:
    """Blocks until every process has called this with `name`.

    Args:
      name: Which barrier; the same string on every process.
      timeout_s: Longest wait in seconds, counted from this process's arrival;
        None is the world's default.

    Returns:
      Seconds waited here.

    Raises:
      BarrierTimeoutError: Some process did not come; `.missing` lists which.
      PeerFailedError: Another process failed meanwhile.
    """
    ...

  def broadcast(
    self, name: str, value: bytes | None, *, timeout_s: float | None = None
  ) -> bytes:
    """Gives every process the value that process 0 passed.

    Process 0 does not wait for the others. What the others pass is ignored.
    """
    ...

  def gather(
    self, name: str, value: bytes, *, timeout_s: float | None = None
  ) -> list[bytes]:
    """Gives every process the values of all, by process index."""
    ...

  def scoped(self, prefix: str) -> 'World':
    """This world with its own room for names, for one user of it.

    The second call with one prefix gets another room than the first, so two
    managers alive at once cannot meet in each other's barriers. Like barriers,
    scopes are opened in the same order on every process.
    """
    ...

  def explain(self, error: BaseException) -> BaseException:
    """The error to tell of: a peer's failure if `error` is but its echo.

    When a process dies, the collectives of the others fail, each with an
    error of the network. May wait some seconds to learn the cause.
    """
    ...

  def report_failure(self, error: BaseException) -> None:
    """Tells every process that this one fails, and with what.

    Their waits raise PeerFailedError and they end soon. Never raises.
    """
    ...

  def check_peers(self) -> None:
    """Raises PeerFailedError if another process has failed; costs no call."""
    ...


class SoloWorld:
  """The world of a process that is alone: nothing waits, nothing is sent."""

  process_index = 0
  process_count = 1

  def __init__(self) -> None:
    self.progress = progress_lib.Progress()
    self.stop = stop_lib.SoloStop()

  def announce(self, name: str) -> None:
    """Nobody could miss a call."""
    del name

  def barrier(self, name: str, *, timeout_s: float | None = None) -> float:
    """Returns at once."""
    del name, timeout_s
    return 0.0

  def broadcast(
    self, name: str, value: bytes | None, *, timeout_s: float | None = None
  ) -> bytes:
    """Returns `value`, which process 0 must give."""
    del timeout_s
    if value is None:
      raise TypeError(f'broadcast({name!r}): process 0 must give a value.')
    return value

  def gather(
    self, name: str, value: bytes, *, timeout_s: float | None = None
  ) -> list[bytes]:
    """Returns `[value]`."""
    del name, timeout_s
    return [value]

  def scoped(self, prefix: str) -> 'SoloWorld':
    """Returns this world: names mean nothing to it."""
    del prefix
    return self

  def explain(self, error: BaseException) -> BaseException:
    """Nobody else could be the cause."""
    return error

  def report_failure(self, error: BaseException) -> None:
    """There is nobody to tell."""
    del error

  def check_peers(self) -> None:
    """There is nobody to fail."""


_current: World = SoloWorld()
_serial: Iterator[int] = itertools.count()


def world() -> World:
  """The world that this process is in: SoloWorld before `bootstrap`."""
  return _current


def set_world(new: World) -> World:
  """Makes `new` the world of this process and returns the one before."""
  global _current, _serial
  before, _current, _serial = _current, new, itertools.count()
  return before


def sync_global_devices(name: str, *, timeout_s: float | None = None) -> float:
  """Blocks until every process has called this; the name that Pax gave it.

  A host barrier, not a device collective, so safe from any thread. Pax users
  call it with the same name again and again, hence each call is numbered;
  the names must come in the same order on every process.

  Returns:
    Seconds waited here.
  """
  return world().barrier(
    f'sync_global_devices/{next(_serial)}/{name}', timeout_s=timeout_s
  )
