"""The world of one process, and which world is the current one."""

from paxlike import sync
from tests.fakes import world as fake_world


def test_a_process_alone_never_waits():
  world = sync.SoloWorld()
  assert world.barrier('b') == 0.0
  assert world.barrier('b') == 0.0
  assert world.broadcast('v', b'x') == b'x'
  assert world.gather('g', b'y') == [b'y']
  assert world.scoped('s').gather('g', b'y') == [b'y']


def test_both_worlds_are_worlds():
  assert isinstance(sync.SoloWorld(), sync.World)

  def job(world):
    return isinstance(world, sync.World), isinstance(
      world.scoped('s'), sync.World
    )

  assert fake_world.run(1, job) == [(True, True)]


def test_a_name_that_pax_users_call_again_and_again_meets_each_time():
  def job(world):
    before = sync.set_world(world)
    try:
      sync.sync_global_devices('checkpoint:save')
      sync.sync_global_devices('checkpoint:save')
    finally:
      sync.set_world(before)
    return 'met twice'

  assert fake_world.run(1, job) == ['met twice']


def test_without_bootstrap_a_process_is_alone():
  assert sync.world().process_count == 1
