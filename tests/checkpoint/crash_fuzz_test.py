"""A process that is killed at any file-system call loses no committed step."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from paxlike import checkpoint
from tests.checkpoint import states
from tests.fakes import faulty_fs

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def fuzz():
  """Asks the zygote; it kills, looks, and answers with what it saw."""
  with subprocess.Popen(
    [sys.executable, '-m', 'tests.checkpoint.crash_zygote'],
    cwd=_ROOT,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:

    def ask(action: str, **how: Any) -> dict[str, Any]:
      request = {
        'action': action,
        'kind': 'GDA',
        'async_save': False,
        'in_place': False,
        **how,
      }
      assert process.stdin is not None
      assert process.stdout is not None
      process.stdin.write(json.dumps(request) + '\n')
      process.stdin.flush()
      answer = json.loads(process.stdout.readline())
      assert 'error' not in answer, answer['error']
      return answer

    yield ask
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=60) == 0


_Fuzz = Callable[..., dict[str, Any]]


@pytest.mark.parametrize('async_save', [False, True])
@pytest.mark.parametrize('kind', states.KINDS)
def test_a_killed_save_leaves_the_old_steps_or_the_new(
  fuzz: _Fuzz, kind, async_save
):
  found = fuzz('save_and_sweep', kind=kind, async_save=async_save)
  assert found['killed'] >= 30
  assert found['torn'] >= 4
  assert [1, 2] in found['steps']
  assert [2, 3] in found['steps']


@pytest.mark.parametrize('async_save', [False, True])
@pytest.mark.parametrize('kind', states.KINDS)
def test_without_rename_the_manifest_makes_the_step(
  fuzz: _Fuzz, kind, async_save
):
  found = fuzz(
    'save_and_sweep', kind=kind, in_place=True, async_save=async_save
  )
  assert found['killed'] >= 20
  assert [1, 2] in found['steps']
  assert [2, 3] in found['steps']


@pytest.mark.parametrize('async_save', [False, True])
@pytest.mark.parametrize('kind', states.KINDS)
@pytest.mark.parametrize('in_place', [False, True])
def test_a_killed_overwrite_leaves_one_version_whole(
  fuzz: _Fuzz, kind, in_place, async_save
):
  found = fuzz('overwrite', kind=kind, in_place=in_place, async_save=async_save)
  assert found['killed'] >= 20
  assert found['steps'] == [[1, 2]]


def test_a_killed_overwrite_leaves_the_step_pinned(fuzz: _Fuzz):
  found = fuzz('overwrite_pinned')
  assert found['killed'] >= 22
  assert found['steps'] == [[1, 2]]


@pytest.mark.parametrize('kind', states.KINDS)
def test_five_crashes_in_a_row_leave_no_more_than_one(fuzz: _Fuzz, kind):
  found = fuzz('five_lives', kind=kind)
  assert found['killed'] == 5
  assert not found['survivors']
  # Two kept and one more, the history, the writer's name, one being written,
  # and three on their way out.
  assert found['most_names'] <= 9


@pytest.mark.parametrize('kind', states.KINDS)
@pytest.mark.parametrize(
  'action', ['forget', 'clear_litter', 'repair_history', 'rm', 'rm_newest']
)
def test_killed_while_deleting_or_repairing_no_half_step_shows(
  fuzz: _Fuzz, action, kind
):
  found = fuzz(action, kind=kind, async_save=True)
  assert found['killed'] >= 8
  assert len(found['steps']) >= 2


@pytest.mark.parametrize('action', ['forget', 'rm', 'rm_newest'])
def test_without_rename_what_is_killed_while_deleting_is_no_damage(
  fuzz: _Fuzz, action
):
  found = fuzz(action, in_place=True)
  assert found['killed'] >= 6
  assert len(found['steps']) >= 2


@pytest.mark.parametrize('kind', states.KINDS)
@pytest.mark.parametrize('action', ['pin', 'unpin'])
def test_killed_while_pinning_the_steps_stay_whole(fuzz: _Fuzz, action, kind):
  found = fuzz(action, kind=kind)
  assert found['killed'] >= 3
  assert found['steps'] == [[1, 2]]


@pytest.mark.parametrize('kind', states.KINDS)
def test_a_killed_conversion_leaves_no_half_step(fuzz: _Fuzz, kind):
  assert fuzz('convert', kind=kind)['killed'] >= 20


@pytest.mark.parametrize('kind', states.KINDS)
def test_all_bytes_and_names_are_synced_before_the_step_gets_its_name(
  tmp_path, kind
):
  """So that the power may fail at any moment, not only the process."""
  states.save_steps(tmp_path, kind, (1,))
  disk = faulty_fs.FaultyFileSystem()
  keep = checkpoint.KeepPolicy(max_to_keep=1)
  with states.manager(
    tmp_path, kind, file_system=disk, keep_policy=keep
  ) as manager:
    begin = len(disk.calls)
    manager.save(2, states.plain(2), items={'input_state': 2})
  calls = disk.calls[begin:]
  named = calls.index(
    faulty_fs.Call('rename', str(tmp_path / 'checkpoint_00000002'))
  )

  def last(method: str, path: str) -> int:
    return max(
      i for i, c in enumerate(calls) if c == faulty_fs.Call(method, path)
    )

  # `write_new` syncs the bytes by itself; the name is the directory's.
  new = [
    c for c in calls[:named] if c.method in ('create', 'write_new', 'make_dirs')
  ]
  assert len(new) >= 4
  for call in new:
    if call.method == 'create':
      assert last('write_at', call.path) < last('finish', call.path) < named
    parent = str(pathlib.Path(call.path).parent)
    if parent != str(tmp_path):
      assert last(call.method, call.path) < last('sync_dir', parent) < named
  # Nothing goes before the new name is durable.
  synced = next(
    i
    for i, c in enumerate(calls)
    if i > named and c == faulty_fs.Call('sync_dir', str(tmp_path))
  )
  hidden = next(
    i
    for i, c in enumerate(calls)
    if c.method == 'rename' and 'todelete_' in c.path
  )
  assert named < synced < hidden
