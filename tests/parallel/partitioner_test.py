import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from paxlike import parallel
from paxlike.core import errors


def make(num_devices, **sizes):
  config = parallel.MeshConfig(**sizes)
  mesh = parallel.make_mesh(config, jax.devices()[:num_devices])
  return parallel.Partitioner(mesh, config.rules)


def test_axes_are_split_by_the_rules():
  spec = make(8, data=4, mdl=2).sharding((64, 32), ('embed', 'mlp')).spec
  assert spec == PartitionSpec('data', 'mdl')


def test_a_dimension_that_does_not_divide_is_not_split():
  spec = make(8, data=4, mdl=2).sharding((10, 32), ('embed', 'mlp')).spec
  assert spec == PartitionSpec(None, 'mdl')


def test_no_mesh_axis_is_used_twice_in_one_array():
  spec = make(8, data=1, mdl=8).sharding((8, 8), ('heads', 'mlp')).spec
  assert spec == PartitionSpec('mdl', None)


def test_axes_of_the_wrong_number_are_refused():
  with pytest.raises(errors.ConfigError, match='one name'):
    make(1).sharding((4, 4), ('embed',))


@pytest.mark.parametrize('batch_size', [1, 3, 6, 8])
@pytest.mark.parametrize('sizes', [{'data': 4}, {'data': 2, 'mdl': 2}])
def test_a_batch_of_any_size_arrives_whole_with_weightless_padding(
  batch_size, sizes
):
  partitioner = make(4, **sizes)
  rows = partitioner.local_rows(batch_size)
  assert rows == range(batch_size)
  weights = np.ones(batch_size, np.float32)
  ids = np.arange(batch_size, dtype=np.int32)
  values = np.arange(batch_size * 3, dtype=np.float32).reshape(batch_size, 3)
  batch = partitioner.put_batch(
    {'example_weights': weights, 'example_id': ids, 'x': values}, batch_size
  )
  padded = partitioner.padded_size(batch_size)
  assert batch['x'].shape == (padded, 3)
  assert padded % partitioner.num_batch_shards == 0
  np.testing.assert_array_equal(batch['x'][:batch_size], values)
  np.testing.assert_array_equal(batch['x'][batch_size:], 0)
  assert float(batch['example_weights'].sum()) == batch_size
  np.testing.assert_array_equal(batch['example_id'][batch_size:], -1)


def test_a_batch_is_split_over_replicas_and_data_and_copied_over_mdl():
  partitioner = make(8, replica=2, data=2, mdl=2)
  batch = partitioner.put_batch({'x': np.arange(8)}, 8)
  shards = {
    s.device.id: np.asarray(s.data) for s in batch['x'].addressable_shards
  }
  assert all(len(part) == 2 for part in shards.values())
  assert partitioner.num_batch_shards == 4
