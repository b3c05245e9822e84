import errno
import os

import flax.serialization
import jax
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
import tensorstore as ts

from paxlike import checkpoint
from paxlike.checkpoint import tools
from paxlike.checkpoint.tools import _bundle, _safetensors, _zarr
from paxlike.cli import ckpt
from paxlike.core import errors
from tests.checkpoint import states
from tests.fakes import faulty_fs

EXACT = ('FLAX', 'MULTI_HOST_FLAX', 'safetensors', 'zarr3')


@pytest.fixture
def run(tmp_path):
  states.save_steps(tmp_path / 'run', state=states.varied)
  return tmp_path / 'run'


def saved(tmp_path, state, name='saved', step=1):
  states.save_steps(tmp_path / name, steps=(step,), state=lambda _: state)
  return tmp_path / name


def restored(path):
  with states.manager(path, read_only=True) as manager:
    return manager.restore()


# --- there and back


@pytest.mark.parametrize('to', EXACT)
def test_nothing_is_lost_on_the_way_there_and_back(run, tmp_path, to):
  tools.convert(run, tmp_path / 'there', to=to, step=100)
  fixed = to if to == 'safetensors' else None
  tools.convert(tmp_path / 'there', tmp_path / 'back', source_format=fixed)
  found = tools.diff(run, tmp_path / 'back', step_a=100)
  assert found.is_equal
  assert found.num_equal == 19
  back = restored(tmp_path / 'back')
  assert back.step == 100
  assert back.items == {'input_state': {'position': 100}}
  assert tools.list_steps(tmp_path / 'back').steps[0].metrics == {
    'loss': 1 / 101
  }


@pytest.mark.parametrize('to', EXACT)
def test_a_training_state_fits_its_program_again(tmp_path, to):
  params = {'w': jax.numpy.ones((4, 2)), 'b': jax.numpy.zeros(2)}
  state = {
    'params': params,
    'opt': optax.adam(1e-3).init(params),
    'key': jax.random.split(jax.random.key(3), 2),
  }
  there, back = tmp_path / 'there', tmp_path / 'back'
  tools.convert(saved(tmp_path, state), there, to=to)
  fixed = to if to == 'safetensors' else None
  tools.convert(there, back, source_format=fixed)
  with states.manager(back, read_only=True) as manager:
    found = manager.restore(state).state
  assert jax.tree.structure(found) == jax.tree.structure(state)
  assert jax.random.bits(found['key'][1]) == jax.random.bits(state['key'][1])
  states.assert_equal(found['opt'][0]._asdict(), state['opt'][0]._asdict())


@pytest.mark.parametrize('kind', ['GDA', 'FLAX', 'MULTI_HOST_FLAX'])
def test_types_convert_into_each_other(tmp_path, kind):
  states.save_steps(tmp_path / 'a', kind, (3,), state=states.varied)
  for to in states.KINDS:
    tools.convert(tmp_path / 'a', tmp_path / to, to=to)
    assert tools.show(tmp_path / to).type == to
    assert tools.verify(tmp_path / to).damage == ()
    assert tools.diff(tmp_path / 'a', tmp_path / to).is_equal


def test_a_state_that_is_one_array_has_a_way_there_and_back(tmp_path):
  source = saved(tmp_path, np.arange(3))
  for to in EXACT:
    tools.convert(source, tmp_path / to, to=to)
    fixed = to if to == 'safetensors' else None
    tools.convert(tmp_path / to, tmp_path / f'back_{to}', source_format=fixed)
    assert tools.diff(source, tmp_path / f'back_{to}').is_equal


@pytest.mark.parametrize(
  'dtype',
  [
    *('bool', 'int8', 'uint8', 'int16', 'uint16', 'int32', 'uint32'),
    *('int64', 'uint64', 'float16', 'bfloat16', 'float32', 'float64'),
    *('float8_e4m3fn', 'float8_e5m2', 'int4', 'complex64', 'complex128'),
  ],
)
@pytest.mark.parametrize('shape', [(), (0, 3), (5, 7)])
def test_zarr3_holds_every_dtype_and_shape(tmp_path, dtype, shape):
  rng = np.random.default_rng(0)
  values = np.asarray(rng.integers(0, 2, shape)).astype(np.dtype(dtype))
  source = saved(tmp_path, {'x': values})
  tools.convert(source, tmp_path / 'x.zarr')
  tools.convert(tmp_path / 'x.zarr', tmp_path / 'back')
  states.assert_equal(restored(tmp_path / 'back').state['x'], values)


# --- safetensors


def test_safetensors_are_read_by_its_own_library(tmp_path):
  state = {
    'a': {'w': np.arange(6, dtype=np.float32).reshape(2, 3)},
    'n': np.array(5, np.int64),
    'empty': np.zeros((0, 3), np.float32),
  }
  tools.convert(saved(tmp_path, state), tmp_path / 'm.safetensors')
  found = safetensors.numpy.load_file(tmp_path / 'm.safetensors')
  assert set(found) == {'a/w', 'n', 'empty'}
  states.assert_equal(found['a/w'], state['a']['w'])
  states.assert_equal(found['n'], state['n'])


def test_safetensors_of_others_become_a_step_of_the_given_number(tmp_path):
  tensors = {
    'model.w': np.arange(4, dtype=np.float32),
    'head/b': np.ones((2, 2), np.float16),
  }
  safetensors.numpy.save_file(tensors, tmp_path / 'm.safetensors')
  tools.convert(tmp_path / 'm.safetensors', tmp_path / 'out', step=7)
  found = restored(tmp_path / 'out')
  assert found.step == 7
  states.assert_equal(
    found.state,
    {'head': {'b': tensors['head/b']}, 'model.w': tensors['model.w']},
  )


def test_safetensors_of_others_keep_bfloat16(tmp_path):
  values = np.arange(4).astype(ml_dtypes.bfloat16)
  safetensors.numpy.save_file({'x': values}, tmp_path / 'm.safetensors')
  tools.convert(tmp_path / 'm.safetensors', tmp_path / 'out')
  states.assert_equal(restored(tmp_path / 'out').state['x'], values)


@pytest.mark.parametrize('cut', [1, 8, 24])
def test_safetensors_that_are_torn_are_refused(tmp_path, cut):
  path = tmp_path / 'm.safetensors'
  tools.convert(saved(tmp_path, {'x': np.arange(3)}), path)
  path.write_bytes(path.read_bytes()[:-cut])
  with pytest.raises(errors.CheckpointDamagedError, match='within array'):
    tools.convert(path, tmp_path / 'out')
  assert not (tmp_path / 'out' / 'checkpoints.pb').exists()


def test_what_is_no_safetensors_file_is_refused(tmp_path):
  path = tmp_path / 'm.safetensors'
  for data in (b'', b'short', b'\xff' * 64, b'\x02' + b'\0' * 7 + b'[]'):
    path.write_bytes(data)
    with pytest.raises(errors.CheckpointDamagedError, match='no safetensors'):
      tools.convert(path, tmp_path / 'out')


def test_safetensors_refuse_what_they_cannot_hold_by_name(tmp_path):
  state = {'w': np.zeros(2, np.float32), 'c': np.zeros(2, np.complex128)}
  source = saved(tmp_path, state)
  with pytest.raises(errors.UsageError, match=r"'c' \(complex128\).*--only"):
    tools.convert(source, tmp_path / 'm.safetensors')
  assert not (tmp_path / 'm.safetensors').exists()
  tools.convert(source, tmp_path / 'm.safetensors', only='w')
  assert set(safetensors.numpy.load_file(tmp_path / 'm.safetensors')) == {'w'}


def test_a_failed_write_leaves_nothing(tmp_path):
  bundle = _bundle.from_tree(states.plain(1))
  disk = faulty_fs.FaultyFileSystem(
    faulty_fs.FailWhen(
      lambda number, call: call.method == 'finish',
      lambda: OSError(errno.ENOSPC, 'No space left on device'),
    )
  )
  with pytest.raises(OSError, match='No space'):
    _safetensors.save(bundle, disk, str(tmp_path / 'm.safetensors'))
  assert os.listdir(tmp_path) == []


# --- flax msgpack


def test_msgpack_is_read_by_flax(run, tmp_path):
  done = tools.convert(run, tmp_path / 's.msgpack', step=100)
  found = flax.serialization.msgpack_restore(
    (tmp_path / 's.msgpack').read_bytes()
  )
  want = states.plain(100)
  states.assert_equal(found['mdl_vars']['params'], want['mdl_vars']['params'])
  assert set(found['opt_states']) == {'0', '1'}
  assert found['note'] == 'text'
  assert done.notes == ('items are not carried over: input_state',)


def test_what_flax_wrote_becomes_a_step(tmp_path):
  params = {'w': jax.numpy.arange(4.0)}
  state = {'params': params, 'opt': optax.adam(1e-3).init(params), 'n': 3}
  path = tmp_path / 's.msgpack'
  path.write_bytes(flax.serialization.to_bytes(state))
  tools.convert(path, tmp_path / 'out', step=9)
  found = restored(tmp_path / 'out')
  assert found.step == 9
  assert found.state['n'] == 3
  states.assert_equal(found.state['opt']['0']['mu']['w'], np.zeros(4, 'f'))


def test_what_is_no_msgpack_is_refused(run, tmp_path):
  path = tmp_path / 's.msgpack'
  path.write_bytes(b'\xc1 never')
  with pytest.raises(errors.CheckpointDamagedError, match='no flax msgpack'):
    tools.convert(path, tmp_path / 'out')
  tools.convert(run, tmp_path / 'flax', to='FLAX')
  file = tmp_path / 'flax/checkpoint_00000200/state.msgpack'
  with pytest.raises(errors.UsageError, match='give the directory'):
    tools.convert(file, tmp_path / 'out')


# --- Orbax


def orbax_state():
  return {
    'params': {'w': np.arange(6, dtype=np.float32).reshape(2, 3)},
    'half': np.ones(3, ml_dtypes.bfloat16),
    'layers': [np.arange(2), np.arange(3)],
    'step': np.array(4, np.int32),
    'rate': 0.5,
  }


def test_orbax_reads_what_was_written_for_it(tmp_path):
  state = orbax_state()
  done = tools.convert(saved(tmp_path, state), tmp_path / 'out', to='orbax')
  with ocp.PyTreeCheckpointer() as checkpointer:
    found = checkpointer.restore(tmp_path / 'out')
  states.assert_equal(
    jax.tree.map(np.asarray, found['params']), state['params']
  )
  states.assert_equal(np.asarray(found['half']), state['half'])
  assert found['rate'] == 0.5
  assert done.notes == ('items are not carried over: input_state',)


def test_orbax_there_and_back_keeps_the_arrays(tmp_path):
  state = orbax_state()
  source = saved(tmp_path, state)
  tools.convert(source, tmp_path / 'out', to='orbax')
  tools.convert(tmp_path / 'out', tmp_path / 'back', step=1)
  found = tools.diff(source, tmp_path / 'back')
  assert found.is_structure_equal
  assert found.arrays == ()


def test_a_run_of_orbax_becomes_a_step_without_its_devices(tmp_path):
  mesh = jax.make_mesh((4,), ('data',), devices=jax.devices()[:4])
  sharding = jax.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  with ocp.CheckpointManager(tmp_path / 'orbax') as manager:
    for step in (3, 12):
      value = jax.device_put(np.arange(8.0, dtype=np.float32) + step, sharding)
      manager.save(step, args=ocp.args.StandardSave({'w': value}))
    manager.wait_until_finished()
  tools.convert(tmp_path / 'orbax', tmp_path / 'out')
  tools.convert(tmp_path / 'orbax', tmp_path / 'out', step=3)
  assert [s.step for s in tools.list_steps(tmp_path / 'out').steps] == [3, 12]
  want = np.arange(8.0, dtype=np.float32) + 12
  states.assert_equal(restored(tmp_path / 'out').state['w'], want)
  with pytest.raises(errors.CheckpointNotFoundError, match=r'\[3, 12\]'):
    tools.convert(tmp_path / 'orbax', tmp_path / 'out', step=4)


def test_orbax_is_not_given_what_it_would_mix_up_or_drop(tmp_path):
  one = np.ones(1)
  clash = saved(tmp_path, {'a.b': one, 'a': {'b': one}}, 'clash')
  with pytest.raises(errors.UsageError, match='under one name'):
    tools.convert(clash, tmp_path / 'out', to='orbax')
  empty = saved(tmp_path, {'x': np.zeros((0, 3))}, 'empty')
  with pytest.raises(errors.UsageError, match='of no elements'):
    tools.convert(empty, tmp_path / 'out', to='orbax')
  assert not (tmp_path / 'out').exists()


# --- zarr 3


def test_zarr3_is_read_by_tensorstore_array_by_array(run, tmp_path):
  tools.convert(run, tmp_path / 'out', to='zarr3', step=100)
  store = ts.open(
    {
      'driver': 'zarr3',
      'kvstore': f'file://{tmp_path}/out/mdl_vars/params/w',
    },
    open=True,
  ).result()
  want = states.plain(100)['mdl_vars']['params']['w']
  states.assert_equal(store.read().result(), want)


def test_zarr3_of_others_becomes_a_step(tmp_path):
  group = '{"zarr_format": 3, "node_type": "group"}'
  (tmp_path / 'z').mkdir()
  (tmp_path / 'z/zarr.json').write_text(group)
  values = np.arange(6, dtype=np.int32).reshape(2, 3)
  store = ts.open(
    {'driver': 'zarr3', 'kvstore': f'file://{tmp_path}/z/x'},
    create=True,
    dtype=ts.int32,
    shape=[2, 3],
  ).result()
  store.write(values).result()
  tools.convert(tmp_path / 'z', tmp_path / 'out')
  states.assert_equal(restored(tmp_path / 'out').state, {'x': values})


def test_zarr3_with_a_flipped_bit_or_a_lost_chunk_is_refused(tmp_path):
  source = saved(tmp_path, {'x': np.zeros(1000)})
  tools.convert(source, tmp_path / 'z.zarr')
  chunk = tmp_path / 'z.zarr/x/c/0'
  data = bytearray(chunk.read_bytes())
  data[77] ^= 4
  chunk.write_bytes(data)
  with pytest.raises(errors.CheckpointDamagedError, match="array 'x'"):
    tools.convert(tmp_path / 'z.zarr', tmp_path / 'out')
  chunk.unlink()
  with pytest.raises(errors.CheckpointDamagedError, match="array 'x'"):
    tools.convert(tmp_path / 'z.zarr', tmp_path / 'out')


def test_large_arrays_are_cut_into_chunks(tmp_path, monkeypatch):
  monkeypatch.setattr(_zarr, '_CHUNK_BYTES', 1 << 16)
  values = np.arange(20 << 10, dtype=np.float32).reshape(20, -1)
  source = saved(tmp_path, {'x': values})
  tools.convert(source, tmp_path / 'z.zarr')
  chunks = [p for p in (tmp_path / 'z.zarr/x/c').rglob('*') if p.is_file()]
  assert len(chunks) == 2
  tools.convert(tmp_path / 'z.zarr', tmp_path / 'back')
  assert tools.diff(source, tmp_path / 'back').is_equal


# --- what is refused


def test_only_takes_the_leaves_that_match(run, tmp_path):
  done = tools.convert(
    run, tmp_path / 'out', to='GDA', only='mdl_vars/params/.*'
  )
  assert done.num_arrays == 2
  want = states.plain(200)['mdl_vars']['params']
  states.assert_equal(
    restored(tmp_path / 'out').state, {'mdl_vars': {'params': want}}
  )
  with pytest.raises(errors.UsageError, match='No leaf has a name'):
    tools.convert(run, tmp_path / 'x', to='GDA', only='params')
  with pytest.raises(errors.UsageError, match='no regular expression'):
    tools.convert(run, tmp_path / 'x', to='GDA', only='(')


def test_a_target_that_is_there_is_never_overwritten(run, tmp_path):
  for to in ('safetensors', 'msgpack', 'orbax', 'zarr3'):
    with pytest.raises(errors.UsageError, match='is there already'):
      tools.convert(run, run, to=to)
  tools.convert(run, tmp_path / 'out', to='GDA')
  with pytest.raises(errors.UsageError, match='has a step 200 already'):
    tools.convert(run, tmp_path / 'out', to='FLAX')


def test_a_directory_that_a_run_writes_to_is_left_alone(run, tmp_path):
  (tmp_path / 'live/tmp_5.checkpoint_00000300').mkdir(parents=True)
  with pytest.raises(errors.UsageError, match='is being written by a run'):
    tools.convert(run, tmp_path / 'live', to='GDA')
  assert os.listdir(tmp_path / 'live') == ['tmp_5.checkpoint_00000300']


def test_an_unknown_format_names_the_near_one(run, tmp_path):
  with pytest.raises(errors.UsageError, match='Did you mean safetensors'):
    tools.convert(run, tmp_path / 'x', to='safetensor')
  (tmp_path / 'file.bin').write_bytes(b'')
  with pytest.raises(errors.UsageError, match='--from'):
    tools.convert(tmp_path / 'file.bin', tmp_path / 'x')


def test_a_job_log_dir_gets_the_step_where_training_looks(run, tmp_path):
  (tmp_path / 'job/checkpoints').mkdir(parents=True)
  done = tools.convert(run, tmp_path / 'job', to='GDA')
  assert done.target == f'{tmp_path}/job/checkpoints/checkpoint_00000200'


def test_each_process_of_a_multi_host_state_is_chosen_by_number(tmp_path):
  states.save_steps(tmp_path / 'a', 'MULTI_HOST_FLAX', (3,))
  with pytest.raises(errors.UsageError, match='no state of process 1'):
    tools.convert(tmp_path / 'a', tmp_path / 'b', to='GDA', process=1)


def test_the_door_names_everything():
  assert checkpoint.tools.Format('zarr3') is tools.Format.ZARR3


# --- another dtype


def mixed():
  """Floats of every width beside what is none."""
  return {
    'half': np.arange(7).astype(ml_dtypes.bfloat16),
    'single': np.linspace(-3, 3, 9, dtype=np.float32),
    'eighth': np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    'double': np.array([1.5, np.inf, np.nan]),
    'count': np.array([16777217], np.int32),
    'on': np.array([True, False]),
    'key': np.array([1, 2], np.uint32),
    'complex': np.array([1 + 2j], np.complex64),
    'rate': 0.1,
  }


@pytest.mark.parametrize('to', ['GDA', 'FLAX', 'safetensors', 'zarr3', 'orbax'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_dtype_is_that_of_every_floating_array_and_of_no_other(
  tmp_path, to, dtype
):
  state = mixed()
  if to == 'orbax':
    del state['rate'], state['complex']
  source = saved(tmp_path, state)
  target = tmp_path / 'target'
  if to == 'safetensors':
    target = target.with_suffix('.safetensors')
  ckpt.main(['convert', str(source), str(target), '--to', to, '--dtype', dtype])
  back = tmp_path / 'back'
  fixed = to if to not in EXACT[:2] and to != 'GDA' else None
  tools.convert(target, back, source_format=fixed, step=1)
  found = restored(back).state
  for name, value in state.items():
    if name in ('half', 'single', 'eighth', 'double'):
      assert found[name].dtype == np.dtype(dtype), name
      states.assert_equal(found[name], value.astype(dtype), name)
    else:
      states.assert_equal(found[name], value, name)


def test_typed_keys_are_not_cast(tmp_path):
  source = saved(tmp_path, {'key': jax.random.key(0), 'x': np.zeros(2)})
  tools.convert(source, tmp_path / 'to', dtype='bfloat16')
  arrays = {a.name: a.dtype for a in tools.show(tmp_path / 'to').arrays}
  assert arrays == {'key': 'key<threefry2x32>', 'x': 'bfloat16'}


def test_a_value_that_the_dtype_cannot_hold_is_an_error(tmp_path):
  source = saved(tmp_path, {'big': np.array([1.0, 1e30]), 'x': np.ones(2)})
  with pytest.raises(errors.UsageError, match=r"'big'.*1 values.*1e\+30"):
    tools.convert(source, tmp_path / 'to', dtype='float16')
  assert not list((tmp_path / 'to').glob('checkpoint_*'))


@pytest.mark.parametrize('dtype', ['int32', 'flaot32', 'complex64', ''])
def test_a_dtype_that_is_not_floating_is_refused(tmp_path, dtype):
  source = saved(tmp_path, {'x': np.ones(2)})
  with pytest.raises(errors.UsageError, match='no floating dtype'):
    tools.convert(source, tmp_path / 'to', dtype=dtype)
  assert not (tmp_path / 'to').exists()
