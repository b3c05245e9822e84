"""What the processes of the real multi-process checkpoint tests do.

Every value comes from a seed and the leaf's name, so that a process of another
job, with other devices, knows what it must find.
"""

import pathlib
import random
import time
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import checkpoint, sync
from paxlike.core import errors
from tests.fakes import faulty_fs

P = jax.sharding.PartitionSpec
STEP = 7
KINDS = ('GDA', 'FLAX', 'MULTI_HOST_FLAX')
# Name: (shape, dtype, mesh axes of its dimensions). Rows and columns divide
# over 2, 4 and 6 devices.
LEAVES: Mapping[str, tuple[tuple[int, ...], Any, P]] = {
  'rows': ((12, 8), np.float32, P(('x', 'y'))),
  'columns': ((5, 24), jnp.bfloat16, P(None, ('x', 'y'))),
  'both': ((12, 8), np.int32, P('x', 'y')),
  'some_rows': ((8, 3), np.float32, P('y')),
  'large_rows': ((768, 512), np.float32, P(('y', 'x'))),
  'whole': ((7,), np.float32, P()),
  'large_whole_0': ((512, 600), np.float32, P()),
  'large_whole_1': ((512, 600), np.float32, P()),
}
REPLICATED = ('whole', 'large_whole_0', 'large_whole_1')


def values(name: str, *, seed: int = 0) -> np.ndarray:
  """What the leaf holds, all of it."""
  shape, dtype, _ = LEAVES[name]
  rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
  return (rng.standard_normal(shape) * 1000).astype(dtype)


def mesh(order: str) -> jax.sharding.Mesh:
  """Two devices a process in each row; 'swapped' turns the processes round."""
  devices = jax.devices()
  if order == 'swapped':
    devices = devices[::-1]
  return jax.sharding.Mesh(
    np.array(devices).reshape(-1, 2),
    ('x', 'y'),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )


def _put(name: str, on: jax.sharding.Mesh) -> jax.Array:
  shape, _, spec = LEAVES[name]
  whole = values(name)
  sharding = jax.sharding.NamedSharding(on, spec)
  return jax.make_array_from_callback(shape, sharding, lambda i: whole[i])


def _keys(on: jax.sharding.Mesh) -> jax.Array:
  make = jax.jit(
    lambda: jax.random.split(jax.random.key(3), 12),
    out_shardings=jax.sharding.NamedSharding(on, P(('x', 'y'))),
  )
  return make()


def state(kind: str, order: str, process: int) -> dict[str, Any]:
  """A state that `kind` can hold."""
  on = mesh(order)
  if kind == 'GDA':
    return {
      **{name: _put(name, on) for name in LEAVES},
      'keys': _keys(on),
      'host': np.arange(5),
      'step': STEP,
    }
  same = {name: _put(name, on) for name in REPLICATED}
  if kind == 'FLAX':
    return {**same, 'host': np.arange(5), 'step': STEP}
  return {**same, 'own': np.full((3, 4), process, np.int16), 'step': STEP}


def _manager(
  directory: str, world: sync.World, kind: str, **options: Any
) -> checkpoint.CheckpointManager:
  return checkpoint.CheckpointManager(
    pathlib.Path(directory) / kind,
    config=checkpoint.CheckpointConfig(type=kind, timeout_s=60.0),
    world=world,
    **options,
  )


def saves(world: sync.World, directory: str) -> None:
  """Saves two steps of each type, the second while the first is written."""
  for kind in KINDS:
    with _manager(directory, world, kind) as manager:
      for step in (STEP - 1, STEP):
        assert manager.save(
          step,
          state(kind, 'straight', world.process_index),
          items={'input_state': {'position': step}},
        )
  print('all saved', flush=True)


def _abstract(leaf: Any) -> Any:
  if not isinstance(leaf, jax.Array):
    return leaf
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _raw(leaf: Any) -> list[tuple[Any, ...]]:
  if not isinstance(leaf, jax.Array):
    array = np.asarray(leaf)
    return [(type(leaf), array.dtype, array.shape, array.tobytes())]
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    return [(str(jax.random.key_impl(leaf)),), *_raw(jax.random.key_data(leaf))]
  return [
    (str(s.index), s.data.dtype, np.asarray(s.data).tobytes())
    for s in leaf.addressable_shards
  ]


def _assert_same(found: Any, expected: Any) -> None:
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for (path, a), b in zip(
    jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True
  ):
    assert _raw(a) == _raw(b), f'{path} differs'


def restores(
  world: sync.World, directory: str, order: str, num_saved: str
) -> None:
  """Restores every type, on another order or number of processes."""
  for kind in KINDS:
    expected = state(kind, order, world.process_index)
    target = jax.tree.map(_abstract, expected)
    with _manager(directory, world, kind, read_only=True) as manager:
      if kind == 'MULTI_HOST_FLAX' and world.process_count > int(num_saved):
        # Each had its own state, and there is none for a third.
        with pytest.raises(
          errors.RestoreMismatchError, match=f'none for process {num_saved}'
        ):
          manager.restore(target)
        continue
      found = manager.restore(target)
      assert found.step == STEP
      assert found.items == {'input_state': {'position': STEP}}
      _assert_same(found.state, expected)
      if kind == 'GDA':
        _use(found.state)
  print('all equal', flush=True)


def _use(restored: dict[str, Any]) -> None:
  """A donated step over all processes, as training would do next."""
  total = float(values('rows').astype(np.float64).sum())
  step = jax.jit(lambda x: (x + 1.0, jnp.sum(x)), donate_argnums=0)
  _, found = step(restored['rows'])
  np.testing.assert_allclose(float(found), total, rtol=1e-4)


def goes_on(world: sync.World, directory: str, order: str) -> None:
  """A trainer that restores on other processes, saves on and restores that."""
  on = mesh(order)
  sharding = jax.sharding.NamedSharding(on, P(('x', 'y')))
  target = {'x': jax.ShapeDtypeStruct((12, 8), np.float32, sharding=sharding)}
  with _manager(directory, world, 'GDA') as manager:
    first = manager.latest_step() or 0
    if not first:
      made = jax.make_array_from_callback(
        (12, 8), sharding, lambda _: np.zeros((12, 8), np.float32)[_]
      )
      now = {'x': made}
    else:
      now = manager.restore(target).state
    for step in range(first + 1, first + 4):
      now = {'x': jax.jit(lambda x: x + 1.0, donate_argnums=0)(now['x'])}
      manager.save(step, now)
    manager.wait()
    now = manager.restore(target).state
    for shard in now['x'].addressable_shards:
      assert (np.asarray(shard.data) == first + 3).all()
  print(f'at {first + 3}', flush=True)


def indivisible(world: sync.World, directory: str) -> None:
  """Ten rows, saved over two devices, are asked for over four."""
  two = jax.sharding.Mesh(np.array(jax.devices()[:2]), ('d',))
  over_two = jax.sharding.NamedSharding(two, P('d'))
  ten = np.arange(40, dtype=np.float32).reshape(10, 4)
  with _manager(directory, world, 'GDA') as manager:
    if world.process_index == 0:
      x = jax.device_put(ten, over_two)
    else:
      x = jax.make_array_from_single_device_arrays(
        (10, 4), over_two, [], dtype=ten.dtype
      )
    manager.save(1, {'x': x})
    manager.wait()
    four = jax.sharding.Mesh(np.array(jax.devices()), ('d',))
    for spec in (P('d'), P(None, 'd'), P()):
      sharding = jax.sharding.NamedSharding(four, spec)
      target = jax.ShapeDtypeStruct((10, 4), np.float32, sharding=sharding)
      if spec == P('d'):
        with pytest.raises(
          errors.RestoreMismatchError,
          match=r'x: float32\[10, 4\] cannot be cut',
        ):
          manager.restore({'x': target})
        continue
      found = manager.restore({'x': target}).state['x']
      for shard in found.addressable_shards:
        assert (np.asarray(shard.data) == ten[shard.index]).all()
  print('all equal', flush=True)


class _NoMemory:
  """An arena of a host that has no memory left."""

  size_bytes = 0

  def take(self, size_bytes: int) -> np.ndarray:
    raise MemoryError(f'no {size_bytes} bytes')


def cannot_stage_on_one(
  world: sync.World, directory: str, on_save_error: str
) -> None:
  """Process 1 cannot copy the state of one save."""
  manager = checkpoint.CheckpointManager(
    directory,
    config=checkpoint.CheckpointConfig(
      timeout_s=60.0, on_save_error=on_save_error
    ),
    world=world,
  )
  manager.save(1, state('GDA', 'straight', world.process_index))
  manager.wait()
  arena = manager._arena
  if world.process_index == 1:
    manager._arena = _NoMemory()
  assert manager.save(2, state('GDA', 'straight', world.process_index))
  manager._arena = arena
  if on_save_error == 'stop':
    with pytest.raises(errors.SaveError, match='process 1 failed'):
      manager.wait()
  assert manager.save(3, state('GDA', 'straight', world.process_index))
  manager.close()
  assert manager.steps() == [1, 3]
  print('all told', flush=True)


def saves_in_pairs(world: sync.World, directory: str) -> None:
  """Fifty times two saves in a row, the second while the first is written."""
  made = {name: _put(name, mesh('straight')) for name in ('rows', 'large_rows')}
  with _manager(
    directory, world, 'GDA', keep_policy=checkpoint.KeepPolicy(max_to_keep=2)
  ) as manager:
    for pair in range(50):
      assert manager.save(2 * pair, made)
      assert manager.save(2 * pair + 1, made)
    manager.wait()
    assert manager.steps() == [98, 99]
    _assert_same(manager.restore(jax.tree.map(_abstract, made)).state, made)
  print('hundred saved', flush=True)


def hangs_on_one(world: sync.World, directory: str) -> None:
  """The disk of process 1 does not come back from a call for a while."""
  disk = faulty_fs.FaultyFileSystem(
    faulty_fs.DelayWhen(
      lambda _, call: call.method == 'create' and world.process_index == 1,
      lambda: time.sleep(15.0),
    )
  )
  manager = checkpoint.CheckpointManager(
    directory,
    config=checkpoint.CheckpointConfig(timeout_s=5.0),
    world=world,
    file_system=disk,
  )
  started_s = time.monotonic()
  manager.save(1, {'rows': _put('rows', mesh('straight'))})
  with pytest.raises(errors.SaveError) as caught:
    manager.wait()
  if world.process_index == 0:
    assert time.monotonic() - started_s < 12.0
    assert 'process 1' in str(caught.value)
  print(f'told: {caught.value}', flush=True)
  manager.close()


def saves_lists_deletes(world: sync.World, directory: str) -> None:
  """A hundred rounds in which every call to the disk is late by chance."""
  chance = random.Random(world.process_index)

  def late() -> faulty_fs.FaultyFileSystem:
    return faulty_fs.FaultyFileSystem(
      faulty_fs.DelayWhen(
        lambda number, call: True,
        lambda: time.sleep(chance.expovariate(1.0) * 0.0004),
      )
    )

  on = mesh('straight')
  with (
    _manager(directory, world, 'GDA', file_system=late()) as manager,
    _manager(
      directory, sync.SoloWorld(), 'GDA', file_system=late(), read_only=True
    ) as reader,
  ):
    for step in range(1, 101):
      manager.save(step, {'rows': _put('rows', on)}, items={'at': step})
      seen = reader.steps()
      assert seen == sorted(seen)
      if seen:
        found = reader.restore(only='nothing')
        assert found.items == {'at': found.step}
      if step > 2:
        manager.delete(step - 2)
      if step % 10 == 0:
        manager.forget_above(step - 1)
    manager.wait()
    assert manager.steps() == [99]
  print('no error in 100 rounds', flush=True)
