"""Processes of one job as threads of one process: the real World, fake wires.

def job(world):
  world.barrier('start')
  return world.process_index

assert fake_world.run(4, job) == [0, 1, 2, 3]
"""

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

from paxlike.sync import _meeting, _report, _store_world
from tests.fakes import kv


def make(
  service: kv.Service,
  process_index: int,
  process_count: int,
  *,
  default_timeout_s: float = 60.0,
  main_thread: threading.Thread | None = None,
) -> _store_world.StoreWorld:
  """The world of one such process, whose main thread is the calling thread.

  Time runs 20 times as fast (see `kv.Service`), so 60 s are 3.
  """
  return _store_world.StoreWorld(
    service.client(process_index),
    process_index=process_index,
    process_count=process_count,
    default_timeout_s=default_timeout_s,
    clock=service.clock,
    main_thread=main_thread or threading.current_thread(),
  )


def run(
  process_count: int,
  job: Callable[[_store_world.StoreWorld], Any],
  *,
  default_timeout_s: float = 60.0,
  join_timeout_s: float = 30.0,
  return_errors: bool = False,
  service: kv.Service | None = None,
) -> list[Any]:
  """Runs `job(world)` once a process, all at the same time.

  Args:
    process_count: How many processes (threads).
    job: What each does with its own world.
    default_timeout_s: For meetings that are given none, in fast seconds.
    join_timeout_s: Real seconds after which hanging threads fail the test.
    return_errors: Whether a job that raises yields its error as its result;
      else the first process's error is raised here.
    service: The key-value service, if the test wants to look into it.

  Returns:
    What each job returned, by process index.
  """
  service = service or kv.Service()
  results: list[Any] = [None] * process_count

  def target(index: int) -> None:
    world = make(
      service, index, process_count, default_timeout_s=default_timeout_s
    )
    try:
      results[index] = job(world)
    except BaseException as error:  # noqa: BLE001 - handed to the caller
      results[index] = error
    finally:
      world.close()

  threads = [
    threading.Thread(target=target, args=(i,), name=f'process {i}', daemon=True)
    for i in range(process_count)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(join_timeout_s)
  stuck = [thread.name for thread in threads if thread.is_alive()]
  service.die()
  if stuck:
    raise TimeoutError(f'Still running after {join_timeout_s} s: {stuck}')
  if not return_errors:
    for result in results:
      if isinstance(result, BaseException):
        raise result
  return results


def meet_many(
  service: kv.Service,
  process_count: int,
  job: Callable[[_meeting.Meetings, int], Any],
) -> list[Any]:
  """Like `run`, for thousands: processes that only meet, one thread each."""
  results: list[Any] = [None] * process_count
  reporter = mock.create_autospec(_report.Reporter, instance=True)

  def target(index: int) -> None:
    meetings = _meeting.Meetings(
      service.client(index),
      process_index=index,
      process_count=process_count,
      main_thread=threading.current_thread(),
      clock=service.clock,
      reporter=reporter,
      check_peers=lambda: None,
      ticks=lambda: 0,
    )
    results[index] = job(meetings, index)

  before = threading.stack_size(256 * 1024)
  try:
    threads = [
      threading.Thread(target=target, args=(i,), daemon=True)
      for i in range(process_count)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(60.0)
  finally:
    threading.stack_size(before)
  return results
