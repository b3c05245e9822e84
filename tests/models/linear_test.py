import functools

import jax
import numpy as np
import pytest

from paxlike import models
from paxlike.models import _linear


def linear():
  return models.functional(
    functools.partial(
      _linear.Linear,
      (3, 2),
      (4, 5),
      in_axes=('heads', 'head_dim'),
      out_axes=('embed', None),
      use_bias=True,
    )
  )


@pytest.mark.parametrize('rows', [1, 8, 64])
def test_a_turned_map_is_the_same_map(rows):
  model = linear()
  mdl_vars = model.init(jax.random.key(0))
  x = jax.random.normal(jax.random.key(1), (rows, 3, 2))
  want, _ = model.apply(mdl_vars, '__call__', x)

  def turned(module):
    module.turn()
    assert module.kernel.shape == (3, 2, 4, 5)
    return module(x)

  found, _ = model.apply(mdl_vars, turned)
  np.testing.assert_allclose(found, want, atol=1e-5)


def test_groups_of_dimensions_map_to_groups():
  model = linear()
  mdl_vars = model.init(jax.random.key(0))
  x = jax.random.normal(jax.random.key(1), (7, 3, 2))
  out, _ = model.apply(mdl_vars, '__call__', x)
  kernel = mdl_vars['params']['kernel']
  assert kernel.shape == (4, 5, 3, 2)
  np.testing.assert_allclose(
    out, np.einsum('nab,cdab->ncd', x, kernel), atol=1e-5
  )


def test_outputs_start_with_the_variance_of_the_inputs():
  model = models.functional(
    functools.partial(
      _linear.Linear, (256,), (512,), in_axes=('embed',), out_axes=('mlp',)
    )
  )
  mdl_vars = model.init(jax.random.key(0))
  x = jax.random.normal(jax.random.key(1), (64, 256))
  out, _ = model.apply(mdl_vars, '__call__', x)
  assert 0.9 < float(out.std()) < 1.1
