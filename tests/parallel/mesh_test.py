import jax
import pytest

from paxlike import parallel
from paxlike.core import errors


def test_minus_one_takes_the_devices_that_the_others_leave():
  assert parallel.MeshConfig(mdl=2).resolve(8) == (1, 4, 2)


def test_sizes_that_do_not_fit_the_devices_are_refused_with_both_numbers():
  with pytest.raises(errors.ConfigError, match=r'mdl=3.*8 devices'):
    parallel.MeshConfig(mdl=3).resolve(8)


@pytest.mark.parametrize('sizes', [{'data': 0}, {'data': -1, 'mdl': -1}])
def test_nonsense_sizes_are_refused_when_built(sizes):
  with pytest.raises(errors.ConfigError, match='mesh_p has sizes'):
    parallel.MeshConfig(**sizes)


def test_a_rule_for_an_unknown_mesh_axis_is_refused():
  with pytest.raises(errors.ConfigError, match='modle'):
    parallel.MeshConfig(rules=(('embed', 'modle'),))


def test_a_mesh_over_some_of_the_devices_holds_only_those():
  mesh = parallel.make_mesh(parallel.MeshConfig(), jax.devices()[2:5])
  assert mesh.shape == {'replica': 1, 'data': 3, 'mdl': 1}
  assert set(mesh.devices.flat) == set(jax.devices()[2:5])
