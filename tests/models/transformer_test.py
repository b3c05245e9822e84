import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import models
from paxlike.core import errors
from tests.models import reference, tiny

BASE = {
  'vocab_size': 19,
  'model_dim': 16,
  'num_layers': 2,
  'num_heads': 4,
}
IDS = jax.random.randint(jax.random.key(5), (2, 9), 0, 19)


def _shapes(**knobs):
  template = functools.partial(models.TransformerLm, **{**BASE, **knobs})
  return models.functional(template).shapes()


@pytest.mark.parametrize('window', [None, 1, 4, 20])
def test_logits_are_those_of_the_model_written_in_numpy(tiny_lm, window):
  lm = tiny_lm(window=window)
  got = lm('__call__', IDS)
  for row in range(2):
    want = reference.logits(lm.mdl_vars['params'], IDS[row], window=window)
    np.testing.assert_allclose(got[row], want, atol=2e-4, rtol=2e-4)


def test_attention_in_chunks_is_exact(tiny_lm):
  ids = jax.random.randint(jax.random.key(6), (1, 300), 0, 19)
  lm = tiny_lm(num_layers=1)
  want = reference.logits(lm.mdl_vars['params'], ids[0])
  np.testing.assert_allclose(lm('__call__', ids)[0], want, atol=1e-3, rtol=1e-3)


def test_a_token_changes_nothing_before_it(tiny_lm):
  lm = tiny_lm()
  other = IDS.at[:, 5].set((IDS[:, 5] + 1) % 19)
  before, after = lm('__call__', IDS), lm('__call__', other)
  np.testing.assert_array_equal(before[:, :5], after[:, :5])
  assert not np.array_equal(before[:, 5:], after[:, 5:])


def test_packed_examples_score_as_if_alone(tiny_lm):
  lm = tiny_lm()
  packed = jnp.concatenate([IDS[0, :4], IDS[1, :5]])[None]
  segments = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2, 2]])
  positions = jnp.array([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
  got = lm('__call__', packed, segment_ids=segments, positions=positions)[0]
  alone = lm('__call__', IDS)
  np.testing.assert_allclose(got[:4], alone[0, :4], atol=1e-4)
  np.testing.assert_allclose(got[4:], alone[1, :5], atol=1e-4)


@pytest.mark.parametrize('window', [None, 3])
def test_padding_content_on_either_side_never_matters(tiny_lm, window):
  lm = tiny_lm(window=window)
  alone = lm('__call__', IDS)[0]
  for pad in (0, 7):
    fill = jnp.full((1, 2), pad)
    ids = jnp.concatenate([fill, IDS[:1], fill], axis=1)
    positions = jnp.array([[-1, -1, *range(9), -1, -1]])
    got = lm('__call__', ids, positions=positions)[0]
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[2:11], alone, atol=1e-4)


def test_the_last_queries_of_a_window_see_nothing_of_the_padding_after_them(
  tiny_lm,
):
  # Long enough that queries attend in chunks: the last one is half padding.
  lm = tiny_lm(window=64, num_layers=1)
  ids = jax.random.randint(jax.random.key(8), (1, 300), 0, 19)
  positions = jnp.arange(300).at[280:].set(-1)[None]
  padded = [
    lm('__call__', ids.at[:, 280:].set(pad), positions=positions)[0, :280]
    for pad in (0, 7)
  ]
  np.testing.assert_array_equal(*padded)
  alone = lm('__call__', ids[:, :280])[0]
  np.testing.assert_allclose(padded[0], alone, atol=1e-4)
  # Nor is there any context to the right among the real ones.
  other = ids.at[:, 200].set((ids[:, 200] + 1) % 19)
  after = lm('__call__', other, positions=positions)[0, :200]
  np.testing.assert_array_equal(padded[0][:200], after)


def _loss_and_grads(**knobs):
  model = models.functional(
    functools.partial(models.TransformerLm, **{**BASE, **knobs})
  )
  params = tiny.draw(model)['params']

  def loss(params):
    mdl_vars = {'params': params, 'non_trainable': {}}
    return jnp.square(model.apply(mdl_vars, '__call__', IDS)[0]).mean()

  return jax.jit(jax.value_and_grad(loss))(params)


def test_remat_changes_no_loss_and_no_gradient():
  want = _loss_and_grads(remat='none')
  for remat in ('elementwise', 'attention', 'full'):
    got = _loss_and_grads(remat=remat)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4),
      got,
      want,
    )


def test_every_parameter_gets_a_gradient():
  _, grads = _loss_and_grads(
    norm='layer', gated=False, use_bias=True, tie_embeddings=False
  )
  # Softmax does not see what is added to every score of a query.
  del grads['layers']['attention']['key']['bias']
  for leaf in jax.tree.leaves(grads):
    assert np.abs(leaf).max() > 1e-6


def test_bfloat16_keeps_parameters_and_logits_in_float32(tiny_lm):
  lm = tiny_lm(compute_dtype='bfloat16')
  dtypes = {leaf.dtype for leaf in jax.tree.leaves(lm.mdl_vars)}
  logits = lm('__call__', IDS)
  assert dtypes == {jnp.dtype('float32')}
  assert logits.dtype == jnp.float32
  exact = tiny_lm()('__call__', IDS)
  assert np.abs(logits - exact).mean() < 0.05 * np.abs(exact).mean()


def test_dropout_replays_from_its_key_and_needs_one(tiny_lm):
  lm = tiny_lm(dropout_rate=0.5)
  train = functools.partial(
    lm.functional.apply, lm.mdl_vars, '__call__', IDS, train=True
  )
  first, again, other = (
    train(key=jax.random.key(seed))[0] for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)
  with pytest.raises(errors.ConfigError, match='key'):
    train()


def test_dropout_is_off_outside_of_training(tiny_lm):
  lm = tiny_lm(dropout_rate=0.5)
  np.testing.assert_allclose(
    lm('__call__', IDS, key=jax.random.key(1)),
    tiny_lm()('__call__', IDS),
    rtol=1e-6,
  )


def test_defaults_of_widths_follow_the_model_dim():
  params = _shapes(model_dim=24, num_heads=3)['params']
  layers = params['layers']
  assert layers['attention']['key']['kernel'].shape == (2, 3, 8, 24)
  assert layers['mlp']['up']['kernel'].shape == (2, 64, 24)
  plain = _shapes(gated=False)['params']['layers']['mlp']
  assert plain['up']['kernel'].shape == (2, 64, 16)
  assert 'gate' not in plain


@pytest.mark.parametrize(
  ('knobs', 'message'),
  [
    ({'vocab_size': 0}, 'vocab_size is 0'),
    ({'num_layers': 0}, 'num_layers is 0'),
    ({'model_dim': 18}, 'model_dim 18 is no multiple of num_heads 4'),
    ({'num_kv_heads': 3}, 'num_heads 4 is no multiple of num_kv_heads 3'),
    ({'head_dim': 3}, 'head_dim is 3, must be even'),
    ({'window': 0}, 'window is 0'),
    ({'norm': 'batch'}, "norm is 'batch', must be one of rms, layer"),
    ({'activation': 'tanh'}, 'must be one of silu, gelu, relu'),
    ({'remat': 'some'}, 'must be one of none, elementwise'),
    ({'compute_dtype': 'float16'}, 'must be one of float32, bfloat16'),
    ({'dropout_rate': 1.0}, 'dropout_rate is 1.0'),
  ],
)
def test_nonsense_is_refused_by_name_when_built(knobs, message):
  with pytest.raises(errors.ConfigError, match=message):
    _shapes(**knobs)


def test_activation_sharding_changes_no_number(tiny_lm):
  mesh = jax.make_mesh(
    (2,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  want = tiny_lm()('__call__', IDS)
  with jax.set_mesh(mesh):
    got = tiny_lm(activation_sharding=('data', None, None))('__call__', IDS)
  np.testing.assert_allclose(got, want, atol=1e-5)
