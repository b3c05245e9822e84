"""A warm process that forks children which are killed at a chosen call.

It loads the libraries once and starts no thread, so that a fork is safe and
takes milliseconds; each child is a real process that dies by SIGKILL in the
middle of a real save, and what it leaves is looked at by a process that knows
nothing of it. Requests come in as lines of JSON and are answered likewise.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

from absl import logging

from paxlike import checkpoint
from paxlike.checkpoint import _manifest, tools
from paxlike.core import fs
from tests.checkpoint import states
from tests.fakes import faulty_fs

_KILLED = 9
_MAX_CALLS = 500
_LITTER = ('tmp_', 'todelete_', 'writer_', '.')
# What a step holds: its own number, or this where it was overwritten.
_OTHER = 77
_STATE_FILES = ('.data', '.index', '.msgpack')
_Action = Callable[[pathlib.Path, fs.FileSystem, dict[str, Any]], None]


def _manager(
  directory: pathlib.Path, disk: fs.FileSystem, how: dict[str, Any]
) -> checkpoint.CheckpointManager:
  return states.manager(
    directory,
    how['kind'],
    file_system=disk,
    async_save=how['async_save'],
    keep_policy=checkpoint.KeepPolicy(max_to_keep=2),
  )


def _save(
  manager: checkpoint.CheckpointManager,
  step: int,
  seed: int | None = None,
  **options: Any,
) -> None:
  seed = step if seed is None else seed
  items = {'input_state': {'position': seed}}
  manager.save(step, states.plain(seed), items=items, **options)


def _prepare(
  directory: pathlib.Path, disk: fs.FileSystem, how: dict[str, Any]
) -> None:
  with _manager(directory, disk, {**how, 'async_save': False}) as manager:
    _save(manager, 1)
    _save(manager, 2)


# --- what is interrupted: with the steps 1 and 2 there


def _save_and_sweep(directory, disk, how):
  with _manager(directory, disk, how) as manager:
    _save(manager, 3)


def _overwrite(directory, disk, how):
  with _manager(directory, disk, how) as manager:
    _save(manager, 2, _OTHER, overwrite=True)


def _overwrite_pinned(directory, disk, how):
  tools.pin(directory, [2])
  try:
    _overwrite(directory, disk, how)
  finally:
    assert (directory / 'checkpoint_00000002' / 'PINNED').exists()


def _forget(directory, disk, how):
  with _manager(directory, disk, how) as manager:
    manager.forget_above(1)


def _clear_litter(directory, disk, how):
  shutil.copytree(
    directory / 'checkpoint_00000002', directory / 'tmp_5.checkpoint_00000003'
  )
  shutil.copytree(
    directory / 'checkpoint_00000001',
    directory / 'todelete_5.0.checkpoint_00000000',
  )
  with _manager(directory, disk, how) as manager:
    _save(manager, 3)


def _repair_history(directory, disk, how):
  (directory / 'checkpoints.pb').write_bytes(b'\x0a\x05torn')
  with _manager(directory, disk, how) as manager:
    _save(manager, 3)


def _with_disk(disk: fs.FileSystem, action: Callable[[], object]) -> None:
  fs.LOCAL = disk
  action()


def _tool_rm(directory, disk, how):
  del how
  _with_disk(disk, lambda: tools.remove(directory, [1]))


def _tool_rm_newest(directory, disk, how):
  del how
  _with_disk(disk, lambda: tools.remove(directory, [1, 2], force=True))


def _tool_pin(directory, disk, how):
  del how
  _with_disk(disk, lambda: tools.pin(directory, [1]))


def _tool_unpin(directory, disk, how):
  del how
  tools.pin(directory, [1])
  _with_disk(disk, lambda: tools.unpin(directory, [1]))


def _tool_convert(directory, disk, how):
  target = directory.with_name(f'{directory.name}_converted')
  _with_disk(disk, lambda: tools.convert(directory, target, to=how['kind']))


_ACTIONS: dict[str, tuple[_Action, set[tuple[int, ...]]]] = {
  # Name: (what is done, which steps may be there afterwards).
  'save_and_sweep': (_save_and_sweep, {(1, 2), (1, 2, 3), (2, 3)}),
  'overwrite': (_overwrite, {(1, 2)}),
  'overwrite_pinned': (_overwrite_pinned, {(1, 2)}),
  'forget': (_forget, {(1, 2), (1,)}),
  'clear_litter': (_clear_litter, {(1, 2), (1, 2, 3), (2, 3)}),
  'repair_history': (_repair_history, {(1, 2), (1, 2, 3), (2, 3)}),
  'rm': (_tool_rm, {(1, 2), (2,)}),
  'rm_newest': (_tool_rm_newest, {(1, 2), (1,), ()}),
  'pin': (_tool_pin, {(1, 2)}),
  'unpin': (_tool_unpin, {(1, 2)}),
  'convert': (_tool_convert, {(1, 2)}),
}


# --- dying


def _run_child(
  action: _Action,
  directory: pathlib.Path,
  fault: faulty_fs.Fault,
  how: dict[str, Any],
) -> bool:
  """Runs an action in a child; whether the fault killed it."""
  child = os.fork()
  if child == 0:
    status = 1
    try:
      disk = faulty_fs.FaultyFileSystem(fault, in_place=how['in_place'])
      action(directory, disk, how)
      status = 0
    except BaseException:  # noqa: BLE001 (told on stderr; the parent sees 1)
      traceback.print_exc()
    finally:
      os._exit(status)
  _, status = os.waitpid(child, 0)
  if os.WIFSIGNALED(status):
    assert os.WTERMSIG(status) == _KILLED, status
    return True
  assert os.WEXITSTATUS(status) == 0, 'The child failed; see above.'
  return False


# --- looking at what is left


def _check(
  directory: pathlib.Path, allowed: set[tuple[int, ...]], how: dict[str, Any]
) -> tuple[int, ...]:
  """Whole steps only, all of one version, and the next run saves again."""
  disk = faulty_fs.FaultyFileSystem(in_place=how['in_place'])
  reader = states.manager(
    directory, how['kind'], file_system=disk, read_only=True
  )
  with reader:
    steps = tuple(reader.steps())
    assert steps in allowed, f'{steps} are there, not one of {allowed}'
    for step in steps:
      found = reader.restore(step=step)
      seed = found.items['input_state']['position']
      assert seed in (step, _OTHER)
      states.assert_equal(found.state, states.plain(seed))
  if not how['in_place']:
    damage = tools.verify(directory).damage
    assert not [d for d in damage if not d.file.endswith('checkpoints.pb')]
  with _manager(directory, disk, how) as manager:
    assert tuple(manager.steps()) == steps
    if how['in_place'] and steps:
      _check_no_other_attempt(directory / f'checkpoint_{steps[-1]:08d}')
    _save(manager, 9)
  with _manager(directory, disk, how) as manager:
    found = manager.restore()
    states.assert_equal(found.state, states.plain(9))
  litter = [n for n in os.listdir(directory) if n.startswith(_LITTER)]
  assert not litter, litter
  if not how['in_place']:
    assert tools.verify(directory).damage == ()
  return steps


def _check_no_other_attempt(step: pathlib.Path) -> None:
  """In the newest step nothing is left of an attempt that was killed."""
  attempt = _manifest.parse((step / 'MANIFEST').read_bytes(), path='').attempt
  states_of = [p for p in step.rglob('*') if p.suffix in _STATE_FILES]
  others = [p.name for p in states_of if attempt.hex()[:8] not in p.name]
  assert states_of
  assert not others, others


def _check_converted(directory: pathlib.Path) -> None:
  target = directory.with_name(f'{directory.name}_converted')
  if not target.exists():
    return
  # Beside a name that says who writes, there may be nothing yet.
  names = [n for n in os.listdir(target) if not n.startswith('writer_')]
  listing = tools.list_steps(target) if names else None
  whole = [s for s in listing.steps if s.state == 'complete'] if listing else []
  for step in whole:
    assert step.step == 2
    assert tools.diff(directory, target, step_a=2).is_equal


def fuzz(how: dict[str, Any]) -> dict[str, Any]:
  """Kills an action at each of its calls in turn, and in each of its writes.

  Args:
    how: 'action', 'kind', 'async_save', 'in_place'.

  Returns:
    'killed' and 'torn', how often; 'steps', all that was left behind.
  """
  action, allowed = _ACTIONS[how['action']]
  found: set[tuple[int, ...]] = set()
  counts = {'killed': 0, 'torn': 0}
  with tempfile.TemporaryDirectory(dir='/dev/shm') as root:
    template = pathlib.Path(root) / 'template'
    _prepare(
      template, faulty_fs.FaultyFileSystem(in_place=how['in_place']), how
    )
    for is_torn in (False, True):
      for number in range(1, _MAX_CALLS):
        directory = pathlib.Path(root) / f'{number}_{is_torn}'
        shutil.copytree(template, directory)
        kind = faulty_fs.DieInWrite if is_torn else faulty_fs.DieAt
        fault = kind(number)
        was_killed = _run_child(action, directory, fault, how)
        try:
          if how['action'] == 'convert':
            _check_converted(directory)
          if how['action'] == 'overwrite_pinned':
            pin = directory / 'checkpoint_00000002' / 'PINNED'
            assert pin.exists(), 'The pin is lost.'
          found.add(_check(directory, allowed, how))
        except AssertionError as e:
          what = 'torn' if is_torn else 'killed'
          raise AssertionError(f'{what} at call {number}: {e}') from e
        shutil.rmtree(directory)
        if not was_killed:
          break
        counts['torn' if is_torn else 'killed'] += 1
  return {**counts, 'steps': sorted(found)}


def five_lives(how: dict[str, Any]) -> dict[str, Any]:
  """One run that is killed in five saves, each time somewhere else.

  Returns:
    'killed', how often; 'most_names', how many names there were at most;
    'survivors', what of a crash was still there after the next one.
  """
  most_names = killed = 0
  before: set[str] = set()
  survivors: list[str] = []

  def live(directory, disk, how):
    with _manager(directory, disk, how) as manager:
      for _ in range(3):
        step = (manager.latest_step() or 0) + 1
        _save(manager, step)

  with tempfile.TemporaryDirectory(dir='/dev/shm') as root:
    directory = pathlib.Path(root) / 'run'
    for life in range(5):
      fault = faulty_fs.DieAt(60 + 7 * life)
      killed += _run_child(live, directory, fault, how)
      names = os.listdir(directory)
      most_names = max(most_names, len(names))
      litter = {name for name in names if name.startswith(_LITTER)}
      survivors += sorted(litter & before)
      before = litter
      with states.manager(directory, how['kind'], read_only=True) as reader:
        found = reader.restore()
      states.assert_equal(found.state, states.plain(found.step))
    with _manager(directory, faulty_fs.FaultyFileSystem(), how) as manager:
      _save(manager, (manager.latest_step() or 0) + 1)
    litter = {n for n in os.listdir(directory) if n.startswith(_LITTER)}
    assert not litter, litter
  return {'killed': killed, 'most_names': most_names, 'survivors': survivors}


def main() -> None:
  """Answers requests until the input ends."""
  logging.set_verbosity(logging.FATAL)
  # Loads what the types need when they first write.
  with tempfile.TemporaryDirectory(dir='/dev/shm') as path:
    for kind in states.KINDS:
      states.save_steps(f'{path}/{kind}', kind)
      tools.convert(f'{path}/{kind}', f'{path}/to_{kind}', to=kind)
  for line in sys.stdin:
    try:
      how = json.loads(line)
      answer = five_lives(how) if how['action'] == 'five_lives' else fuzz(how)
    except BaseException as e:  # noqa: BLE001 (answered)
      traceback.print_exc()
      answer = {'error': f'{type(e).__name__}: {e}'}
    print(json.dumps(answer), flush=True)


if __name__ == '__main__':
  main()
