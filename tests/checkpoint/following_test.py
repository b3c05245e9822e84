import pytest

from paxlike import checkpoint
from paxlike.checkpoint import tools
from paxlike.core import errors, fs
from tests.checkpoint import samples
from tests.fakes import clock as fake_clock
from tests.fakes import s3


def save(manager, *steps):
  for step in steps:
    manager.save(step, samples.small(step))
    manager.wait()


@pytest.fixture
def clock():
  return fake_clock.FakeClock()


@pytest.fixture
def manager(tmp_path, clock):
  """A writer that keeps one step and has saved step 1."""
  keep = checkpoint.KeepPolicy(max_to_keep=1)
  with checkpoint.CheckpointManager(
    str(tmp_path), keep_policy=keep, clock=clock
  ) as made:
    save(made, 1)
    yield made


def follow(directory, clock, name='eval', **options):
  options = {'max_steps': 2, 'duration_s': 60.0, **options}
  return checkpoint.Following(str(directory), name, clock=clock, **options)


def test_steps_that_came_after_the_lease_are_kept(tmp_path, clock, manager):
  follow(tmp_path, clock).hold_after(1)
  save(manager, 2, 3)
  assert manager.steps() == [2, 3]


def test_no_more_are_kept_than_was_asked_for_and_the_oldest_of_them(
  tmp_path, clock, manager
):
  follow(tmp_path, clock).hold_after(1)
  save(manager, 2, 3, 4, 5, 6)
  assert manager.steps() == [2, 3, 6]


def test_what_is_done_goes_at_the_next_save(tmp_path, clock, manager):
  following = follow(tmp_path, clock)
  following.hold_after(1)
  save(manager, 2, 3)
  following.hold_after(2)
  save(manager, 4)
  assert manager.steps() == [3, 4]
  following.release()
  following.release()
  save(manager, 5)
  assert manager.steps() == [5]


def test_one_that_died_and_came_back_takes_over_what_it_held(
  tmp_path, clock, manager
):
  follow(tmp_path, clock).hold_after(1)
  save(manager, 2, 3)
  follow(tmp_path, clock).hold_after(2)
  save(manager, 4)
  assert manager.steps() == [3, 4]


def test_what_one_that_never_came_back_held_goes_in_time(
  tmp_path, clock, manager
):
  follow(tmp_path, clock).hold_after(1)
  save(manager, 2)
  clock.advance_s(61.0)
  save(manager, 3)
  assert manager.steps() == [3]


def test_it_lasts_as_long_as_it_is_renewed(tmp_path, clock, manager):
  following = follow(tmp_path, clock)
  for step in range(2, 5):
    following.hold_after(1)
    clock.advance_s(40.0)
    save(manager, step)
  assert manager.steps() == [2, 3, 4]


def test_two_followers_keep_what_either_waits_for(tmp_path, clock, manager):
  follow(tmp_path, clock, 'eval').hold_after(3)
  follow(tmp_path, clock, 'decode').hold_after(1)
  save(manager, 2, 3, 4, 5, 6, 7)
  assert manager.steps() == [2, 3, 4, 5, 7]


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
# The server and its clients leave sockets to the garbage collector.
@pytest.mark.filterwarnings('ignore::ResourceWarning')
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_the_same_holds_in_an_object_store(clock):
  keep = checkpoint.KeepPolicy(max_to_keep=1)
  with (
    s3.bucket() as bucket,
    checkpoint.CheckpointManager(
      f'{bucket}/checkpoints', keep_policy=keep, clock=clock
    ) as manager,
  ):
    directory = f'{bucket}/checkpoints'
    save(manager, 1)
    following = follow(directory, clock)
    following.hold_after(1)
    save(manager, 2, 3)
    assert manager.steps() == [2, 3]
    following.release()
    save(manager, 4)
    assert manager.steps() == [4]


def test_where_nothing_may_be_written_it_is_not_granted(
  tmp_path, clock, monkeypatch
):
  def refuse(self, path, data):
    raise PermissionError(path)

  monkeypatch.setattr(fs.LocalFileSystem, 'write_new', refuse)
  following = follow(tmp_path, clock)
  following.hold_after(1)
  assert not following.is_granted


@pytest.mark.parametrize('data', [b'', b'\xff', b'[]', b'{"until_s": 1}'])
def test_a_file_that_is_no_lease_keeps_nothing(tmp_path, manager, data):
  (tmp_path / 'follower_eval').write_bytes(data)
  save(manager, 2)
  assert manager.steps() == [2]


def test_the_tools_tell_what_a_follower_waits_for(tmp_path, clock, manager):
  follow(tmp_path, clock).hold_after(1)
  save(manager, 2, 3)
  listed = tools.list_steps(str(tmp_path), clock=clock)
  assert listed.steps[0].keep == ('leased',)
  with pytest.raises(errors.UsageError, match='a follower waits for step 2'):
    tools.remove(str(tmp_path), [2], clock=clock)
