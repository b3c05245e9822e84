"""A failure of process 0 is raised on every process, and as what it is."""

import pytest

from paxlike import checkpoint
from paxlike.checkpoint import _directory, _first
from paxlike.checkpoint._stores import requests
from paxlike.core import errors
from tests.fakes import world as fake_world

COUNT = 3


def ask(make):
  def job(world):
    calls = []

    def made():
      calls.append(world.process_index)
      return make()

    try:
      found = _first.ask(world, 'x', made, timeout_s=60.0)
    except Exception as e:  # noqa: BLE001 (looked at by the test)
      found = e
    assert calls == ([0] if world.process_index == 0 else [])
    return found

  return fake_world.run(COUNT, job, return_errors=True)


def raises(error):
  def make(*_):
    raise error

  return make


def test_all_get_what_process_0_made():
  assert ask(lambda: b'+x') == [b'+x'] * COUNT


@pytest.mark.parametrize(
  'kind',
  [
    errors.ConfigError,
    errors.SaveError,
    errors.CheckpointNotFoundError,
    errors.CheckpointDamagedError,
    errors.RestoreMismatchError,
    errors.InputError,
  ],
)
def test_our_errors_keep_their_class(kind):
  found = ask(raises(kind('what is wrong')))
  assert [type(e) for e in found] == [kind] * COUNT
  assert [str(e) for e in found] == ['what is wrong'] * COUNT


@pytest.mark.parametrize(
  ('error', 'kind'),
  [
    (requests.VanishedError('gone'), errors.CheckpointDamagedError),
    (errors.BarrierTimeoutError('late', name='b'), errors.SyncError),
  ],
)
def test_a_class_that_the_others_cannot_make_becomes_its_parent(error, kind):
  found = ask(raises(error))
  assert found[0] is error
  assert [type(e) for e in found[1:]] == [kind] * (COUNT - 1)


@pytest.mark.parametrize(
  'error',
  [ValueError('odd'), MemoryError('odd'), OSError(5, 'odd'), KeyError('odd')],
)
def test_any_other_error_is_named(error):
  first, *others = ask(raises(error))
  assert first is error
  for e in others:
    assert type(e) is errors.CheckpointError
    assert 'Process 0' in str(e)
    assert type(error).__name__ in str(e)
    assert 'odd' in str(e)


@pytest.mark.parametrize(
  'error', [ValueError('odd'), errors.ConfigError('odd')]
)
def test_a_manager_that_process_0_cannot_open_opens_nowhere(
  tmp_path, monkeypatch, error
):
  monkeypatch.setattr(_directory, 'take_over', raises(error))

  def job(world):
    checkpoint.CheckpointManager(tmp_path, world=world)

  found = fake_world.run(COUNT, job, return_errors=True)
  assert all('odd' in str(e) for e in found), found
  assert isinstance(found[1], type(error) | errors.CheckpointError)


def test_a_restore_that_process_0_cannot_choose_fails_on_all_as_it_is(tmp_path):
  def job(world):
    with checkpoint.CheckpointManager(tmp_path, world=world) as manager:
      manager.restore()

  found = fake_world.run(COUNT, job, return_errors=True)
  assert [type(e) for e in found] == [errors.CheckpointNotFoundError] * COUNT


def test_a_bug_in_choosing_is_told_to_all(tmp_path, monkeypatch):
  from paxlike.checkpoint import _history

  def job(world):
    with checkpoint.CheckpointManager(tmp_path, world=world) as manager:
      manager.save(1, {'x': 1})
      manager.wait()
      world.barrier('saved')
      if world.process_index == 0:
        monkeypatch.setattr(
          _history, 'committed_names', raises(ZeroDivisionError('odd'))
        )
      manager.restore()

  found = fake_world.run(COUNT, job, return_errors=True)
  assert all('odd' in str(e) for e in found), found
