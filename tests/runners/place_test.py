import pytest

from paxlike import sync
from paxlike.core import errors
from paxlike.runners import place
from tests.fakes import clock as fake_clock


def wait(path, *, world=None, clock=None):
  place.wait_for(
    str(path),
    world=world or sync.SoloWorld(),
    timeout_s=30.0,
    clock=clock or fake_clock.FakeClock(),
  )


def test_a_directory_that_is_there_is_not_waited_for(tmp_path):
  clock = fake_clock.FakeClock()
  wait(tmp_path, clock=clock)
  assert clock.monotonic_s() == fake_clock.FakeClock().monotonic_s()


def test_a_directory_that_comes_late_is_waited_for(tmp_path):
  class Making(fake_clock.FakeClock):
    def sleep_s(self, duration_s):
      super().sleep_s(duration_s)
      if self.monotonic_s() - fake_clock.FakeClock().monotonic_s() > 20:
        (tmp_path / 'job').mkdir(exist_ok=True)

  wait(tmp_path / 'job', clock=Making())


def test_a_directory_that_never_comes_ends_the_wait_and_stays_unmade(tmp_path):
  with pytest.raises(errors.FollowedJobError, match='job for 30 s'):
    wait(tmp_path / 'job')
  assert not (tmp_path / 'job').exists()


def test_a_request_to_stop_ends_the_wait(tmp_path):
  world = sync.SoloWorld()
  world.stop.ask('the test')
  with pytest.raises(errors.PreemptedError, match='while waiting'):
    wait(tmp_path / 'job', world=world)


def test_only_directories_are_suggested(tmp_path):
  (tmp_path / 'jobs').touch()
  with pytest.raises(errors.CheckpointNotFoundError) as caught:
    place.check(str(tmp_path / 'job'))
  assert 'Did you mean' not in str(caught.value)
