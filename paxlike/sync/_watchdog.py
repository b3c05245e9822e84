"""Finds that no step or batch is done any more, and who is to blame.

A process that is alive but stuck is noticed by nobody else: its peers wait in
a collective for as long as it takes.
"""

import collections
import threading
from collections.abc import Callable, Iterable

from absl import logging

from paxlike.core import clock as clock_lib
from paxlike.core import errors, fs
from paxlike.sync import _ending, _report, _store_world, _world
from paxlike.sync import _store as store_lib
from paxlike.sync import _where as where_lib

_LONGEST_LOOK_S = 10.0
_LAST_WORDS_S = 5.0
# More than all others are given to answer.
_STORE_WAIT_S = 8.0


class Watchdog:
  """Watches the steps of this process for the time of a `with` block.

  When no step has been done for `max(factor * median step, floor_s)` seconds,
  time in compile, save and restore not counted, every process writes its
  Python stacks to `directory`, and one process says which of them differ in
  phase or step. Batches of an evaluation or a decoding are watched in the same
  way, with the median of their own.
  """

  def __init__(
    self,
    world: _world.World,
    directory: str,
    *,
    factor: float = 10.0,
    floor_s: float = 300.0,
    end_job: bool = False,
    clock: clock_lib.Clock = clock_lib.SYSTEM,
  ):
    """Nothing happens before the `with` block.

    Args:
      world: Whose `progress` is watched.
      directory: Where stacks go: `job_log_dir/status/stacks`.
      factor: How many median steps (or batches) may pass without one.
      floor_s: But at least so many seconds.
      end_job: Whether to end all processes with exit status 1 then; if not,
        the stacks are the only effect.
      clock: For tests.
    """
    self._world = world
    self._directory = directory
    self._factor = factor
    self._floor_s = floor_s
    self._end_job = end_job
    self._clock = clock
    self._over = threading.Event()
    self._reported = ''
    self._culprit: int | None = None
    self._thread = threading.Thread(
      target=self._run, name='paxlike-watchdog', daemon=True
    )

  def __enter__(self) -> 'Watchdog':
    self._thread.start()
    return self

  def __exit__(self, *unused: object) -> None:
    self._over.set()
    self._thread.join()

  def look(self) -> str:
    """Looks once; the report if this process is the first to find a stall."""
    mark = self._world.progress.mark()
    limit_s = max(self._factor * mark.median_step_s, self._floor_s)
    if not mark.is_timed or mark.idle_s <= limit_s:
      return ''
    if mark.stretch == self._reported:
      return ''
    self._reported = mark.stretch
    try:
      summary = dump_stacks(self._world, self._directory, stall=mark.stretch)
    except store_lib.StoreTimeoutError:
      self._culprit = 0
      summary = _dump_alone(self._world, self._directory)
    except store_lib.StoreLostError:
      return ''  # Process 0 is gone, and that is being told.
    if not summary:
      return ''
    where = f'after step {mark.step}' if mark.due == 'step' else f'at {mark}'
    return (
      f'No {mark.due} for {mark.idle_s:.0f} s {where}; the limit is '
      f'{limit_s:.0f} s. Stacks are in {self._directory}.\n{summary}'
    )

  def _run(self) -> None:
    every_s = min(self._floor_s / 10, _LONGEST_LOOK_S)
    while not self._over.wait(every_s):
      report = self.look()
      if not report:
        continue
      logging.error('%s', report)
      if self._end_job:
        self._end(report)

  def _end(self, report: str) -> None:
    root = getattr(self._world, 'root', None)
    if isinstance(root, _store_world.StoreWorld):
      if self._culprit is not None:  # who cannot pass the news on either
        what = f'does not answer. {report}'
        root.note_failure(
          _store_world.Failure(process_index=self._culprit, what=what)
        )
        return
      root.post_failure(
        _store_world.Failure(
          process_index=root.process_index, what=f'ends the job: {report}'
        )
      )
      return
    error = errors.PeerFailedError(report, process_index=0)
    _ending.speak(error, timeout_s=_LAST_WORDS_S)
    _ending.say(report)
    _ending.end_now(errors.EXIT_FAILED)


def dump_stacks(world: _world.World, directory: str, *, stall: str) -> str:
  """Has every process write its stacks; returns who differs from the others.

  Args:
    world: The processes.
    directory: Where; readable text, one file a process.
    stall: What this happens at, the same on every process; only the first
      process to ask for it does anything.

  Returns:
    A summary for people, '' if another process makes it.

  Raises:
    StoreTimeoutError: Process 0, through which all answer, does not.
  """
  root = getattr(world, 'root', None)
  if not isinstance(root, _store_world.StoreWorld):
    here = where_lib.here(
      0,
      at=str(world.progress.mark()),
      meetings=(),
      with_stack=True,
      main_thread=threading.main_thread(),
    )
    where_lib.write(directory, here)
    return f'{here}\n{here.stack}'
  return _within(_STORE_WAIT_S, lambda: _dump_all(root, directory, stall))


def _dump_all(root: _store_world.StoreWorld, directory: str, stall: str) -> str:
  if not root.is_first(f'stall/{stall}'):
    return ''
  answers = root.dump_all(directory)
  return _write_summary(directory, answers, range(root.process_count))


def _dump_alone(world: _world.World, directory: str) -> str:
  """What this process knows, whose question has not come through."""
  root = getattr(world, 'root', None)
  assert isinstance(root, _store_world.StoreWorld)
  here = root.reporter.here(with_stack=True)
  where_lib.write(directory, here)
  index = root.process_index
  return _write_summary(directory, {index: here}, (0, index))


def _write_summary(
  directory: str, answers: dict[int, where_lib.Where], asked: Iterable[int]
) -> str:
  summary = differing(answers, asked)
  fs.for_path(directory).write_atomic(
    fs.join(directory, 'summary.txt'), f'{summary}\n'.encode()
  )
  return summary


def _within(timeout_s: float, work: Callable[[], str]) -> str:
  """What `work` returns, in a thread that is left alone if it is late."""
  done: list[str | errors.SyncError] = []

  def run() -> None:
    try:
      done.append(work())
    except errors.SyncError as error:
      done.append(error)

  thread = threading.Thread(target=run, name='paxlike-dump', daemon=True)
  thread.start()
  thread.join(timeout_s)
  if not done:
    raise store_lib.StoreTimeoutError(f'No answer within {timeout_s:.0f} s.')
  if isinstance(done[0], errors.SyncError):
    raise done[0]
  return done[0]


def differing(answers: dict[int, where_lib.Where], asked: Iterable[int]) -> str:
  """Which processes are at the same place, the largest group first.

  The smallest groups, last, hold the culprit: for the others wait for it.
  """
  groups: dict[str, list[int]] = collections.defaultdict(list)
  for index, where in answers.items():
    groups[where.at].append(index)
  lines = [
    f'  {at}: {"process" if len(members) == 1 else "processes"} '
    f'{_report.indices(members)}'
    for at, members in sorted(groups.items(), key=lambda item: -len(item[1]))
  ]
  silent = set(asked) - set(answers)
  if silent:
    lines.append(
      '  do not answer (stopped, or without a Python that runs): '
      f'{_report.indices(silent)}'
    )
  return '\n'.join(lines)
