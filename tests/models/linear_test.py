import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import models
from paxlike.models import _linear


@pytest.mark.parametrize('rows', [1, 8, 16, 17, 64])
def test_few_rows_and_many_rows_give_the_same_product(rows):
  x = jax.random.normal(jax.random.key(0), (rows, 2, 12))
  kernel = jax.random.normal(jax.random.key(1), (7, 12))
  got = _linear.contract(x, kernel, dtype=jnp.dtype('float32'))
  np.testing.assert_allclose(
    got, np.asarray(x) @ np.asarray(kernel).T, atol=1e-4
  )


def test_few_rows_keep_the_weights_on_the_left():
  kernel = jnp.zeros((7, 12))
  contract = functools.partial(
    _linear.contract, kernel=kernel, dtype=jnp.dtype('float32')
  )
  assert 'f32[7,4]' in str(jax.make_jaxpr(contract)(jnp.zeros((4, 12))))
  assert 'f32[7,64]' not in str(jax.make_jaxpr(contract)(jnp.zeros((64, 12))))


def test_groups_of_dimensions_map_to_groups():
  model = models.functional(
    functools.partial(
      _linear.Linear,
      (3, 2),
      (4, 5),
      in_axes=('heads', 'head_dim'),
      out_axes=('embed', None),
      use_bias=True,
    )
  )
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
