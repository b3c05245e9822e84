"""What the processes of the synchronisation tests do."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

from paxlike import sync


def fault() -> None:
  """Marks the moment from which the others' ends are timed."""
  print('the fault is now', flush=True)


def collective() -> float:
  """One reduction over the devices of all processes."""
  mesh = jax.make_mesh(
    (jax.device_count(),),
    ('data',),
    axis_types=(jax.sharding.AxisType.Auto,),
  )
  sharding = jax.sharding.NamedSharding(
    mesh, jax.sharding.PartitionSpec('data')
  )
  array = jax.make_array_from_callback(
    (jax.device_count(),), sharding, lambda _: np.ones((1,), np.float32)
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
    world.barrier('save/2', timeout_s=8.0)
  steps(world, 10_000)


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

  def saver() -> None:
    for index in range(50):
      world.barrier(f'save/{index}')

  thread = threading.Thread(target=saver)
  thread.start()
  total = 0.0
  while thread.is_alive() or total == 0.0:
    total = collective()
    stop = sync.agree(f'stop/{time.monotonic()}', True) if False else None
    del stop
    break
  thread.join()
  assert total == jax.device_count()


def stopped(world: sync.World) -> None:
  steps(world, 3)
  print('ready to be stopped', flush=True)
  if world.process_index == 0:
    steps(world, 10_000)
  else:
    steps(world, 10_000)
