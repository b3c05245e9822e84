import fiddle as fdl
import jax.numpy as jnp
import pytest
from flax import nnx

from paxlike import models
from paxlike.core import errors
from paxlike.models import _layer


class Scale(models.Layer):
  def __init__(self, dim: int, *, start: float = 1.0, rngs: nnx.Rngs):
    self.scale = nnx.Param(jnp.full((dim,), start), logical_axes=('embed',))


def test_fiddle_refuses_an_argument_that_the_constructor_lacks():
  template = fdl.Partial(Scale, dim=3)
  with pytest.raises(AttributeError, match='begin'):
    template.begin = 2.0


def test_fiddle_sees_the_defaults_of_the_constructor():
  assert fdl.Partial(Scale, dim=3).start == 1.0


def test_every_public_model_shows_its_signature():
  for model in (
    models.TransformerLm,
    models.MlpClassifier,
    models.CnnClassifier,
  ):
    with pytest.raises(AttributeError, match='num_layer_typo'):
      fdl.Partial(model).num_layer_typo = 1


def test_a_choice_that_is_none_is_refused_with_the_list():
  with pytest.raises(errors.ConfigError, match=r"X.kind is 'c', .* a, b"):
    _layer.require_choice('X', ('a', 'b'), kind='c')


@pytest.mark.parametrize('rate', [-0.1, 1.0, float('nan')])
def test_a_rate_outside_its_range_is_refused(rate):
  with pytest.raises(errors.ConfigError, match=r'X\.rate'):
    _layer.require_fraction('X', rate=rate)
