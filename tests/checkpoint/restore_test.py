"""A state comes back bit for bit, on any mesh, or says why it cannot."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paxlike import checkpoint
from paxlike.core import errors
from tests.checkpoint import samples as states


def save(directory, state, *, step=1, kind='GDA', items=None):
  config = checkpoint.CheckpointConfig(type=kind)
  with checkpoint.CheckpointManager(directory, config=config) as manager:
    manager.save(step, state, items=items)


def restore(directory, target, **options):
  with checkpoint.CheckpointManager(directory, read_only=True) as manager:
    return manager.restore(target, **options)


@pytest.mark.parametrize('kind', ['GDA', 'FLAX', 'MULTI_HOST_FLAX'])
def test_every_kind_of_leaf_and_container_comes_back(tmp_path, kind):
  state = states.varied()
  save(tmp_path, state, kind=kind)
  found = restore(tmp_path, states.abstract(state)).state
  states.assert_equal(found, state)


def test_a_state_that_is_one_array_comes_back(tmp_path):
  save(tmp_path, jnp.arange(3))
  found = restore(tmp_path, jnp.zeros(3, jnp.int32)).state
  np.testing.assert_array_equal(found, [0, 1, 2])


@pytest.mark.parametrize('shape', [(1,), (2,), (4,), (8,), (2, 2), (2, 4)])
@pytest.mark.parametrize('spec', [(), ('data',), (None, 'data')])
def test_another_mesh_reads_the_same_values(tmp_path, shape, spec):
  values = np.arange(32 * 48, dtype=np.float32).reshape(32, 48)
  save(tmp_path, {'x': states.put(values, states.mesh(4, 2), 'data', 'model')})
  on = states.mesh(*shape)
  sharding = jax.sharding.NamedSharding(on, states.P(*spec))
  target = {'x': jax.ShapeDtypeStruct((32, 48), np.float32, sharding=sharding)}
  found = restore(tmp_path, target).state['x']
  assert found.sharding == sharding
  np.testing.assert_array_equal(found, values)


def test_large_arrays_are_put_together_from_pieces_of_another_cut(tmp_path):
  values = np.random.default_rng(0).standard_normal((2048, 4096), np.float32)
  save(tmp_path, {'x': states.put(values, states.mesh(2), 'data')})
  for spec in [(), ('data',), (None, 'data')]:
    sharding = jax.sharding.NamedSharding(states.mesh(4), states.P(*spec))
    target = {
      'x': jax.ShapeDtypeStruct(values.shape, np.float32, sharding=sharding)
    }
    found = restore(tmp_path, target).state['x']
    np.testing.assert_array_equal(found, values)


def test_a_restored_key_draws_the_same_numbers(tmp_path):
  state = {'k': jax.random.key(3), 'r': jax.random.key(4, impl='rbg')}
  save(tmp_path, state)
  found = restore(tmp_path, states.abstract(state)).state
  for name in state:
    np.testing.assert_array_equal(
      jax.random.normal(found[name], (5,)), jax.random.normal(state[name], (5,))
    )


def test_a_restored_optimizer_state_is_the_same_class_in_a_scan(tmp_path):
  params = {'w': jnp.ones(3)}
  optimizer = optax.adam(0.1)
  state = optimizer.init(params)
  save(tmp_path, state)
  found = restore(tmp_path, states.abstract(state)).state

  def body(carry, _):
    _, carry = optimizer.update({'w': jnp.ones(3)}, carry, params)
    return carry, None

  end, _ = jax.lax.scan(body, found, length=3)
  assert jax.tree.structure(end) == jax.tree.structure(state)
  assert int(end[0].count) == 3


def test_a_restored_state_is_not_compiled_for_again(tmp_path, compiles):
  on = states.mesh(4, 2)

  @jax.jit
  def advance(state):
    return jax.tree.map(lambda x: x + 1, state)

  state = {
    'step': states.put(np.int32(0), on),
    'w': states.put(np.zeros((8, 8), np.float32), on, 'data', 'model'),
  }
  state = advance(advance(state))
  save(tmp_path, state)
  found = restore(tmp_path, states.abstract(state)).state
  before = compiles('advance')
  assert before >= 1
  advance(found)
  assert compiles('advance') == before


def test_donating_a_restored_state_changes_only_it(tmp_path):
  on = states.mesh(8)
  values = np.ones((1 << 20,), np.float32)
  state = {'x': states.put(values, on), 'y': states.put(values, on, 'data')}
  save(tmp_path, state)
  kept = restore(tmp_path, states.abstract(state)).state
  given = restore(tmp_path, states.abstract(state)).state
  step = jax.jit(lambda s: jax.tree.map(lambda x: x * 3, s), donate_argnums=0)
  for _ in range(3):
    given = step(given)
  for name in state:
    np.testing.assert_array_equal(given[name], values * 27)
    np.testing.assert_array_equal(kept[name], values)
    for shard in given[name].addressable_shards:
      assert float(shard.data[0]) == 27.0
  again = restore(tmp_path, states.abstract(state)).state
  states.assert_equal(again, kept)


def test_a_restored_state_outlives_the_files_it_came_from(tmp_path):
  values = np.random.default_rng(0).standard_normal((1 << 20,), np.float32)
  save(tmp_path, {'x': jnp.asarray(values)})
  found = restore(tmp_path, {'x': jnp.zeros(1 << 20)}).state
  (path,) = tmp_path.glob('checkpoint_*/*.data')
  with open(path, 'r+b') as f:
    f.write(bytes(os.path.getsize(path)))
  np.testing.assert_array_equal(found['x'], values)


def test_leaves_that_do_not_fit_are_all_named_with_both_sides(tmp_path):
  save(
    tmp_path,
    {'a': jnp.zeros(3), 'b': jnp.zeros(2), 'c': 1, 'e': {}, 'y': jnp.ones(2)},
  )
  target = {
    'a': jnp.zeros(4),
    'b': jnp.zeros(2, jnp.int32),
    'd': jnp.zeros(()),
    'c': 1.0,
    'e': (),
  }
  with pytest.raises(errors.RestoreMismatchError) as caught:
    restore(tmp_path, target)
  text = str(caught.value)
  for line in (
    '6 leaves differ',
    'y: only in the checkpoint, float32[2]',
    'a: checkpoint float32[3], wanted float32[4]',
    'b: checkpoint float32[2], wanted int32[2]',
    'c: checkpoint a Python int, wanted a Python float',
    'd: missing from the checkpoint, wanted float32[]',
    'e: checkpoint empty dict, wanted empty tuple',
  ):
    assert line in text


def test_leaves_only_in_the_checkpoint_are_named(tmp_path):
  save(tmp_path, {'a': jnp.zeros(3), 'b': jnp.zeros(2)})
  with pytest.raises(
    errors.RestoreMismatchError, match=r'b: only in the checkpoint, float32\[2'
  ):
    restore(tmp_path, {'a': jnp.zeros(3)})


def test_an_optimizer_that_was_changed_is_named_by_what_changed(tmp_path):
  params = {'w': jnp.ones(3)}
  made = {'params': params, 'opt': optax.adam(0.1).init(params)}
  save(tmp_path, made)
  others = {
    'opt/2': optax.adamw(0.1).init(params),  # one more empty state
    'opt/1/0/mu/w': optax.chain(optax.clip(1.0), optax.adam(0.1)).init(params),
    'opt/0/mu/w': optax.adam(0.1, mu_dtype=jnp.bfloat16).init(params),
  }
  for name, other in others.items():
    target = {'params': params, 'opt': other}
    with pytest.raises(errors.RestoreMismatchError, match=f'{name}: '):
      restore(tmp_path, target)
    found = restore(tmp_path, target, only='params/.*')
    np.testing.assert_array_equal(found.state['params']['w'], 1.0)
    assert found.report.restored == ('params/w',)


def test_another_optimizer_is_named_leaf_by_leaf(tmp_path):
  params = {'w': jnp.ones(3)}
  save(tmp_path, optax.adam(0.1).init(params))
  target = optax.chain(optax.identity(), optax.sgd(0.1, momentum=0.9)).init(
    params
  )
  with pytest.raises(errors.RestoreMismatchError, match='trace/w'):
    restore(tmp_path, target)


def test_an_empty_state_of_another_class_is_named(tmp_path):
  save(tmp_path, {'o': optax.EmptyState(), 'x': jnp.zeros(())})
  target = {'o': optax.MaskedNode(), 'x': jnp.zeros(())}
  with pytest.raises(
    errors.RestoreMismatchError, match='checkpoint empty EmptyState'
  ):
    restore(tmp_path, target)


@pytest.mark.parametrize('cast', [False, True])
def test_what_is_no_float_never_changes_its_dtype(tmp_path, cast):
  made = {
    'int': jnp.int32(16777217),
    'bool': jnp.array([True]),
    'key': jax.random.key(0),
    'float': jnp.float32(1.0),
  }
  save(tmp_path, made)
  wrong = {
    'int': [jnp.float32(0), jnp.int8(0), jnp.uint32(0), jnp.bool_(0)],
    'bool': [jnp.zeros(1, jnp.int32), jnp.zeros(1)],
    'key': [jax.random.key_data(made['key']), jax.random.key(0, impl='rbg')],
    'float': [jnp.int32(0), jnp.bool_(0)],
  }
  for name, values in wrong.items():
    for value in values:
      with pytest.raises(
        errors.RestoreMismatchError, match=rf'{name}: checkpoint '
      ):
        restore(tmp_path, {**made, name: value}, cast=cast)


def test_floats_change_dtype_only_when_asked(tmp_path):
  save(tmp_path, {'x': jnp.asarray([1.0, 1.00390625], jnp.float32)})
  target = {'x': jnp.zeros(2, jnp.bfloat16)}
  with pytest.raises(errors.RestoreMismatchError):
    restore(tmp_path, target)
  found = restore(tmp_path, target, cast=True).state['x']
  assert found.dtype == jnp.bfloat16
  np.testing.assert_array_equal(
    found, jnp.asarray([1.0, 1.00390625], jnp.bfloat16)
  )


def test_only_the_wanted_leaves_are_read(tmp_path):
  state = {
    'params': {'w': jnp.ones((64, 64))},
    'opt': {f'm{i}': jnp.ones((512, 512)) for i in range(4)},
  }
  save(tmp_path, state)
  target = {'params': {'w': jnp.zeros((64, 64))}}
  found = restore(tmp_path, target, only=r'params/.*')
  np.testing.assert_array_equal(found.state['params']['w'], 1.0)
  assert found.report.bytes_read < 64 * 64 * 4 + 8192
  assert found.report.restored == ('params/w',)
  assert len(found.report.ignored) == 4


def test_missing_and_extra_leaves_are_allowed_by_name(tmp_path):
  save(tmp_path, {'a': jnp.ones(2), 'old': jnp.ones(2)})
  target = {'a': jnp.zeros(2), 'new': jnp.full(2, 7.0)}
  found = restore(tmp_path, target, allow_missing='new', allow_extra='old')
  np.testing.assert_array_equal(found.state['new'], 7.0)
  assert found.report.restored == ('a',)
  assert found.report.initialised == ('new',)
  assert found.report.ignored == ('old',)


def test_items_come_back(tmp_path):
  items = {'input_state': {'position': 5}, 'blob': b'\0\1'}
  save(tmp_path, states.small(), items=items)
  assert restore(tmp_path, states.small()).items == items


def test_without_a_target_the_state_comes_back_as_numpy(tmp_path):
  state = states.varied()
  save(tmp_path, state)
  found = restore(tmp_path, None).state
  np.testing.assert_array_equal(found['params']['w'], state['params']['w'])
  assert found['ints'][10][0] == 10.0
  assert found['python'] == state['python']
  assert found['opt'][1][0]['count'] == 0


def test_a_step_directory_in_place_of_its_parent_is_explained(tmp_path):
  save(tmp_path, states.small(), step=7)
  with pytest.raises(
    errors.CheckpointNotFoundError, match=r'is one step.*step=7'
  ):
    restore(tmp_path / 'checkpoint_00000007', states.small())


def test_a_job_in_place_of_its_directory_of_steps_is_explained(tmp_path):
  save(tmp_path / 'checkpoints', states.small(), step=7)
  with pytest.raises(
    errors.CheckpointNotFoundError,
    match=f'Did you mean {tmp_path}/checkpoints',
  ):
    restore(tmp_path, states.small())


def test_a_missing_directory_is_never_a_fresh_start(tmp_path):
  with pytest.raises(
    errors.CheckpointNotFoundError, match='There is no directory'
  ):
    restore(tmp_path / 'typo', states.small())


def test_an_absent_step_is_told_with_those_that_are_there(tmp_path):
  save(tmp_path, states.small(), step=7)
  with pytest.raises(errors.CheckpointNotFoundError, match=r'no step 8.*\[7\]'):
    restore(tmp_path, states.small(), step=8)


@pytest.mark.parametrize('kind', ['Auto', 'Explicit'])
def test_restoring_inside_an_ambient_mesh_works(tmp_path, kind):
  axis_type = getattr(jax.sharding.AxisType, kind)
  on = jax.make_mesh((4, 2), ('data', 'model'), axis_types=(axis_type,) * 2)
  state = {
    'x': states.put(np.ones((8, 8), np.float32), on, 'data'),
    'k': jax.random.key(0),
  }
  with jax.set_mesh(on):
    save(tmp_path, state)
    found = restore(tmp_path, states.abstract(state)).state
  states.assert_equal(found, state)
  assert found['x'].sharding == state['x'].sharding
  assert found['x'].sharding.mesh.axis_types == (axis_type,) * 2


def test_a_registered_dataclass_comes_back(tmp_path):
  @jax.tree_util.register_dataclass
  @dataclasses.dataclass
  class Train:
    step: jax.Array
    params: dict

  state = Train(jnp.int32(3), {'w': jnp.ones(2)})
  save(tmp_path, state)
  found = restore(tmp_path, states.abstract(state)).state
  assert isinstance(found, Train)
  states.assert_equal(found, state)


def test_the_order_in_which_a_dict_was_built_does_not_matter(tmp_path):
  save(tmp_path, {'b': jnp.ones(2), 'a': jnp.zeros(3)})
  found = restore(tmp_path, {'a': jnp.ones(3), 'b': jnp.zeros(2)}).state
  np.testing.assert_array_equal(found['a'], 0.0)


def test_one_array_at_two_places_comes_back_at_both(tmp_path):
  shared = jnp.arange(4.0)
  save(tmp_path, {'a': shared, 'b': shared})
  found = restore(tmp_path, {'a': jnp.zeros(4), 'b': jnp.zeros(4)}).state
  np.testing.assert_array_equal(found['a'], shared)
  np.testing.assert_array_equal(found['b'], shared)


def test_few_open_files_are_enough_for_many_leaves(tmp_path):
  program = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from paxlike import checkpoint
state = {{f'x{{i}}': np.full(4, i, np.float32) for i in range(20000)}}
with checkpoint.CheckpointManager({str(tmp_path)!r}) as manager:
  manager.save(1, state)
  found = manager.restore(state).state
assert all(found[k][0] == v[0] for k, v in state.items())
"""
  subprocess.run([sys.executable, '-c', program], check=True, timeout=30)
  assert sum(1 for _ in tmp_path.rglob('*')) < 10
