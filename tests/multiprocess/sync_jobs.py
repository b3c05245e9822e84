"""What the processes of the synchronisation tests do."""

import contextlib
import os
import queue
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

from paxlike import checkpoint, sync
from paxlike.core import errors


def fault() -> None:
  """Marks the moment from which the others' ends are timed."""
  print('the fault is now', flush=True)


def sharding() -> jax.sharding.NamedSharding:
  """Rows spread over the devices of all processes."""
  mesh = jax.make_mesh(
    (jax.device_count(),),
    ('data',),
    axis_types=(jax.sharding.AxisType.Auto,),
  )
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))


def collective() -> float:
  """One reduction over the devices of all processes."""
  array = jax.make_array_from_callback(
    (jax.device_count(),), sharding(), lambda _: np.ones((1,), np.float32)
  )
  return float(jax.jit(jnp.sum)(array))


def steps(world: sync.World, count: int) -> None:
  """Training, as far as synchronisation is concerned."""
  with world.progress.phase('train'):
    for step in range(count):
      world.progress.step(step)
      collective()
      time.sleep(0.05)


def meets(world: sync.World) -> None:
  collective()
  for index in range(3):
    world.barrier(f'b/{index}')
  assert (
    world.broadcast('v', b'x' if world.process_index == 0 else None) == b'x'
  )
  everyone = world.gather('g', str(world.process_index).encode())
  assert everyone == [str(i).encode() for i in range(world.process_count)]
  sync.sync_global_devices('same name')
  sync.sync_global_devices('same name')
  print('all met', flush=True)


def slow_end(world: sync.World) -> None:
  steps(world, 2)
  if world.process_index == 1:
    time.sleep(3.0)  # the last flush of a summary, say


def error_on(world: sync.World, index: str, while_others: str) -> None:
  steps(world, 3)
  if world.process_index == int(index):
    fault()
    raise ValueError('boom')
  if while_others == 'wait in a barrier':
    world.barrier('never', timeout_s=600.0)
  elif while_others == 'reduce':
    steps(world, 10_000)
  else:
    time.sleep(600.0)


def killed(world: sync.World, index: str, while_others: str) -> None:
  steps(world, 3)
  if world.process_index == int(index):
    fault()
    os.kill(os.getpid(), signal.SIGKILL)
  if while_others == 'wait in a barrier':
    world.barrier('never', timeout_s=600.0)
  else:
    steps(world, 10_000)


def different_barriers(world: sync.World) -> None:
  fault()
  world.barrier(f'of process {world.process_index}', timeout_s=600.0)


def barrier_on_one(world: sync.World) -> None:
  """The save under `if process_index == 0` of a well-known report."""
  steps(world, 2)
  if world.process_index == 0:
    fault()
    world.barrier('save/2', timeout_s=600.0)
  steps(world, 10_000)


def saves_on_one(world: sync.World, directory: str, meanwhile: str) -> None:
  """A well-known mistake: the save under `if process_index == 0`."""
  manager = checkpoint.CheckpointManager(directory)
  for step in range(10_000):
    if meanwhile == 'trains, and says so':
      world.progress.step(step)
    collective()
    if step == 2 and world.process_index == 0:
      fault()
      manager.save(step, {'w': jnp.ones((4,))})
    if step == 2 and world.process_index == 1:
      if meanwhile == 'sleeps':
        time.sleep(600.0)
      if meanwhile == 'ends':
        break
  manager.close()


def saves_once_more_on_one(world: sync.World, directory: str) -> None:
  """The same, where the first save was right."""
  with checkpoint.CheckpointManager(directory) as manager:
    manager.save(1, {'w': jnp.ones((4,))})
    manager.wait()
    for step in range(2, 10):
      if step == 5 and world.process_index == 0:
        fault()
        manager.save(step, {'w': jnp.ones((4,))})
      world.progress.step(step)
      collective()
    if world.process_index == 1:
      time.sleep(600.0)


def comes_late(world: sync.World, directory: str, how: str) -> None:
  """A first save to which process 1 comes late, but does come."""
  with checkpoint.CheckpointManager(directory) as manager:
    collective()
    if world.process_index == 1:
      late_for(17.0, how)
    manager.save(1, {'w': jnp.ones((4,))})
  print('saved', flush=True)


def late_for(duration_s: float, how: str) -> None:
  end_s = time.monotonic() + duration_s
  if how == 'computes':
    while time.monotonic() < end_s:
      sum(range(10_000))
  elif how == 'reads, ever again':
    while time.monotonic() < end_s:
      time.sleep(1.0)
  elif how == 'waits in a library':
    queue.Queue[int]().put(1)
    with contextlib.suppress(queue.Empty):
      queue.Queue[int]().get(timeout=duration_s)
  else:
    assert how == 'compiles'

    @jax.jit
    def slow(x):
      time.sleep(duration_s)  # while it is traced
      return x

    with sync.world().progress.phase('compile'):
      slow(1.0)


def leaves_early(world: sync.World) -> None:
  if world.process_index == 0:
    fault()
    world.barrier('save/2', timeout_s=600.0)


def different_config(world: sync.World) -> None:
  fault()
  steps_asked = 50 if world.process_index == 1 else 100
  config = ''.join(f'task_p.field_{i} = {i}\n' for i in range(100))
  sync.check_same(
    'start',
    {
      'config': f'{config}task_p.train.num_train_steps = {steps_asked}\n',
      'versions': 'jax 1.2.3',
    },
  )


def background_barrier(world: sync.World) -> None:
  """Barriers in a saver thread while the main thread reduces."""
  counts = []

  def saver() -> None:
    for index in range(200):
      world.barrier(f'save/{index}')
    counts.append(200)

  thread = threading.Thread(target=saver)
  thread.start()
  for _ in range(50):
    assert collective() == jax.device_count()
  thread.join()
  assert counts == [200]
  print('saved beside the steps', flush=True)


def background_collective(world: sync.World) -> None:
  """What the guard of test builds is for."""
  with sync.assert_main_thread_only():
    found = []

    def summarise() -> None:
      try:
        collective()
      except RuntimeError as error:
        found.append(str(error))

    thread = threading.Thread(target=summarise)
    thread.start()
    for _ in range(10):
      collective()
    thread.join()
  assert 'no_execution' in found[0], found
  print('the background thread was refused', flush=True)


def stops_in_order(world: sync.World) -> None:
  """A training loop that is asked to stop, saves and ends with status 75."""
  with world.progress.phase('train'):
    for step in range(10_000):
      if step == 5:
        print('ready to be stopped', flush=True)
      if world.stop.poll():
        print(f'saving step {step}', flush=True)
        with world.progress.phase('save'):
          time.sleep(1.0)
          world.barrier(f'save/{step}')
        print(f'saved step {step}', flush=True)
        raise errors.PreemptedError(f'Stopped after step {step}.')
      world.progress.step(step)
      collective()


def stops_after_compiling(world: sync.World) -> None:
  """SIGTERM while the main thread is in C++ code for seconds."""
  collective()

  @jax.jit
  def slow(x):
    return jax.pure_callback(lambda y: (time.sleep(3.0), y)[1], x, x)

  with world.progress.phase('compile'):
    print('ready to be stopped', flush=True)
    jax.block_until_ready(slow(jnp.ones(())))
  asked = world.stop.requested()
  print(f'known when it came out: {bool(asked)}', flush=True)
  stops_in_order(world)


def stuck_on(world: sync.World, index: str, directory: str) -> None:
  """One process sleeps inside a step; the others wait in the reduction."""
  with (
    sync.Watchdog(world, directory, floor_s=2.0, end_job=True),
    world.progress.phase('train'),
  ):
    for step in range(10_000):
      world.progress.step(step)
      if step == 5 and world.process_index == int(index):
        fault()
        with world.progress.phase('input'):
          a_slow_input()
      collective()


def a_slow_input() -> None:
  time.sleep(600.0)


def watched(world: sync.World, directory: str) -> None:
  """Training under a watchdog, to be stopped with SIGSTOP from outside."""
  with sync.Watchdog(world, directory, floor_s=2.0, end_job=True):
    steps(world, 20)
    print('ready to be stopped', flush=True)
    steps(world, 10_000)


def never_starts(world: sync.World) -> None:
  raise AssertionError('not all processes were started')
