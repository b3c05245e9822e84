import functools
import subprocess
import sys

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from paxlike import models

LM = functools.partial(
  models.TransformerLm, vocab_size=11, model_dim=8, num_layers=2, num_heads=2
)
CNN = functools.partial(
  models.CnnClassifier,
  input_shape=(4, 4, 1),
  num_classes=3,
  conv_dims=(4,),
  hidden_dim=8,
  dropout_rate=0.5,
)


def _is_axes(leaf):
  return isinstance(leaf, tuple)


@pytest.mark.parametrize('template', [LM, CNN])
def test_variables_are_plain_nested_dicts_of_arrays(template):
  mdl_vars = models.functional(template).init(jax.random.key(0))

  def check(node):
    assert type(node) is dict or isinstance(node, jax.Array)
    if type(node) is dict:
      for name, child in node.items():
        assert isinstance(name, str)
        check(child)

  assert sorted(mdl_vars) == ['non_trainable', 'params']
  check(mdl_vars)


@pytest.mark.parametrize('template', [LM, CNN])
def test_every_dimension_of_every_array_has_a_logical_name(template):
  model = models.functional(template)
  axes, shapes = model.logical_axes(), model.shapes()
  assert jax.tree.structure(axes, is_leaf=_is_axes) == jax.tree.structure(
    shapes
  )
  for names, shape in zip(
    jax.tree.leaves(axes, is_leaf=_is_axes),
    jax.tree.leaves(shapes),
    strict=True,
  ):
    assert len(names) == len(shape.shape)


def test_paths_read_like_the_attributes():
  mdl_vars = models.functional(LM).shapes()
  kernel = mdl_vars['params']['layers']['attention']['query']['kernel']
  assert kernel.shape == (2, 2, 4, 8)


@pytest.mark.parametrize('template', [LM, CNN])
def test_shapes_are_those_of_init(template):
  model = models.functional(template)
  real = jax.eval_shape(lambda: model.init(jax.random.key(0)))
  assert model.shapes() == real


def test_init_is_a_function_of_the_key_under_jit_and_outside():
  model = models.functional(CNN)
  eager = model.init(jax.random.key(3))
  jitted = jax.jit(model.init)(jax.random.key(3))
  other = model.init(jax.random.key(4))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), eager, jitted
  )
  kernel = eager['params']['conv_0']['kernel']
  assert not np.array_equal(kernel, other['params']['conv_0']['kernel'])


def test_layers_start_different_from_each_other():
  mdl_vars = models.functional(LM).init(jax.random.key(0))
  kernel = mdl_vars['params']['layers']['mlp']['up']['kernel']
  assert not np.array_equal(kernel[0], kernel[1])


def test_apply_keeps_structure_shapes_and_dtypes_of_the_variables():
  model = models.functional(CNN)
  mdl_vars = model.init(jax.random.key(0))
  _, after = model.apply(
    mdl_vars,
    '__call__',
    jnp.ones((2, 4, 4)),
    key=jax.random.key(1),
    train=True,
  )
  same = jax.tree.map(
    lambda a, b: a.shape == b.shape and a.aval.weak_type == b.aval.weak_type,
    mdl_vars,
    after,
  )
  assert jax.tree.all(same)


def test_apply_updates_statistics_only_when_training():
  model = models.functional(CNN)
  mdl_vars = model.init(jax.random.key(0))
  images = jax.random.normal(jax.random.key(1), (4, 4, 4))
  _, evaluated = model.apply(mdl_vars, '__call__', images)
  _, trained = model.apply(
    mdl_vars, '__call__', images, key=jax.random.key(2), train=True
  )
  before = mdl_vars['non_trainable']['norm_0']['mean']
  assert np.array_equal(before, evaluated['non_trainable']['norm_0']['mean'])
  assert not np.array_equal(before, trained['non_trainable']['norm_0']['mean'])


def test_apply_does_not_change_what_it_was_given():
  model = models.functional(CNN)
  mdl_vars = model.init(jax.random.key(0))
  before = jax.tree.map(np.array, mdl_vars)
  images = jnp.ones((2, 4, 4))
  model.apply(mdl_vars, '__call__', images, key=jax.random.key(1), train=True)
  jax.tree.map(np.testing.assert_array_equal, before, mdl_vars)


def test_apply_takes_a_function_of_the_module():
  model = models.functional(LM)
  mdl_vars = model.init(jax.random.key(0))
  out, _ = model.apply(mdl_vars, lambda module, x: module.vocab_size + x, 2)
  assert out == 13


def test_a_step_that_carries_its_variables_compiles_once(compiles):
  model = models.functional(CNN)
  mdl_vars = jax.jit(model.init)(jax.random.key(0))

  @jax.jit
  def carried_step(mdl_vars, key):
    images = jnp.ones((2, 4, 4))
    _, after = model.apply(mdl_vars, '__call__', images, key=key, train=True)
    return after

  for i in range(4):
    mdl_vars = carried_step(mdl_vars, jax.random.key(i))
  assert compiles('carried_step') == 1


def test_a_built_fiddle_partial_is_a_template():
  config = fdl.Partial(
    models.MlpClassifier, input_shape=(2,), num_classes=2, hidden_dims=()
  )
  shapes = models.functional(fdl.build(config)).shapes()
  assert shapes['params']['scores']['kernel'].shape == (2, 2)


def test_a_parameter_without_logical_axes_is_refused_by_name():
  class Bare(models.Layer):
    def __init__(self, *, rngs: nnx.Rngs):
      self.weight = nnx.Param(jnp.zeros((2,)))

  with pytest.raises(TypeError, match='weight'):
    models.functional(Bare).logical_axes()


def test_axes_and_shapes_start_no_backend():
  code = (
    'import functools\n'
    'from paxlike import models\n'
    'from jax._src import xla_bridge\n'
    'model = models.functional(functools.partial(models.TransformerLm,'
    ' vocab_size=8, model_dim=8, num_layers=2, num_heads=2))\n'
    'model.logical_axes(), model.shapes()\n'
    'assert not xla_bridge._backends\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, timeout=120
  )
  assert done.returncode == 0, done.stderr


def test_naming_the_room_loads_neither_jax_nor_flax():
  code = (
    'import sys\n'
    'from paxlike import models\n'
    'assert "TransformerLm" in dir(models)\n'
    'assert not {"jax", "flax"} & set(sys.modules)\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, timeout=60
  )
  assert done.returncode == 0, done.stderr
