import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike.models import _attention

IDS = jax.random.randint(jax.random.key(7), (2, 9), 0, 19)
NUM_SLOTS = 12
POSITIONS = jnp.tile(jnp.arange(9, dtype=jnp.int32), (2, 1))


@functools.lru_cache
def _in_pieces(pieces):
  """Takes the tokens in by so many at a time."""

  def run(model, ids, positions):
    decoder = model.decoder()
    cache = decoder.init_cache(ids.shape[0], num_slots=NUM_SLOTS)
    outs, start = [], 0
    for size in pieces:
      end = start + size
      features, cache = decoder.extend(
        ids[:, start:end], positions[:, start:end], cache
      )
      outs.append(decoder.logits(features))
      start = end
    return jnp.concatenate(outs, axis=1), cache

  return run


def _prefilled(model, ids, positions):
  decoder = model.decoder()
  features, cache = decoder.prefill(ids, positions, num_slots=NUM_SLOTS)
  return decoder.logits(features), cache


@pytest.mark.parametrize(
  'knobs',
  [
    {},
    {'window': 3},
    {'norm': 'layer', 'gated': False, 'use_bias': True},
    {'tie_embeddings': False, 'num_kv_heads': 1},
  ],
)
@pytest.mark.parametrize('pieces', [(9,), (4, 1, 3, 1)])
def test_any_split_into_calls_gives_the_full_forward(tiny_lm, knobs, pieces):
  lm = tiny_lm(**knobs)
  want = lm('__call__', IDS)
  got, _ = lm(_in_pieces(pieces), IDS, POSITIONS)
  np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


def test_prefill_is_causal_and_leaves_the_cache_that_extend_would(tiny_lm):
  lm = tiny_lm()
  logits, cache = lm(_prefilled, IDS, POSITIONS)
  np.testing.assert_allclose(logits, lm('__call__', IDS), atol=1e-4, rtol=1e-4)
  _, extended = lm(_in_pieces((9,)), IDS, POSITIONS)
  assert jax.tree.structure(cache) == jax.tree.structure(extended)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), cache, extended
  )


def test_extend_keeps_the_avals_of_the_cache(tiny_lm):
  lm = tiny_lm(compute_dtype='bfloat16')

  def carry(model):
    decoder = model.decoder()
    before = decoder.init_cache(2, num_slots=5)
    _, after = decoder.extend(IDS[:, :1], POSITIONS[:, :1], before)
    return before, after

  def avals(tree):
    return [(a.shape, a.dtype, a.weak_type) for a in jax.tree.leaves(tree)]

  before, after = jax.eval_shape(
    lambda: lm.functional.apply(lm.mdl_vars, carry)[0]
  )
  assert jax.tree.structure(before) == jax.tree.structure(after)
  assert avals(before) == avals(after)


def test_a_row_emptied_for_another_sequence_gives_what_a_fresh_one_gives(
  tiny_lm,
):
  lm = tiny_lm()

  def reuse(model, ids):
    decoder = model.decoder()
    cache = decoder.init_cache(2, num_slots=14)
    _, cache = decoder.extend(ids, POSITIONS, cache)
    cache = cache.forget(jnp.array([False, True]))
    features, _ = decoder.extend(
      ids[::-1, :4], jnp.array([[9, 10, 11, 12], [0, 1, 2, 3]]), cache
    )
    return decoder.logits(features)

  got = lm(reuse, IDS)
  fresh = lm('__call__', IDS)
  np.testing.assert_allclose(got[1], fresh[0, :4], atol=1e-4)
  went_on = lm('__call__', jnp.concatenate([IDS[:1], IDS[1:, :4]], axis=1))
  np.testing.assert_allclose(got[0], went_on[0, 9:], atol=1e-4)


@pytest.mark.parametrize('length', [300, 5_000])
def test_positions_stay_exact_in_bfloat16(tiny_lm, length):
  lm = tiny_lm(num_layers=1, compute_dtype='bfloat16', window=64)
  ids = jax.random.randint(jax.random.key(1), (1, length + 1), 0, 19)
  positions = jnp.arange(length + 1, dtype=jnp.int32)[None]

  def last(model, ids):
    decoder = model.decoder()
    _, cache = decoder.prefill(
      ids[:, :length], positions[:, :length], num_slots=length + 1
    )
    features, _ = decoder.extend(ids[:, length:], positions[:, length:], cache)
    return decoder.logits(features)[0, -1]

  def last_alone(model, ids):
    # With a window of 64 the last token sees 64 positions, wherever it is.
    return model(ids[:, -64:])[0, -1]

  got, want = lm(last, ids), lm(last_alone, ids)
  np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())


@pytest.mark.parametrize('position', [256, 257, 4_999])
def test_the_angle_of_a_position_is_that_of_float64(position):
  turn = _attention.rotation(
    jnp.array([[position]], jnp.int32), head_dim=8, base=10_000.0
  )
  angle = position * 10_000.0 ** (-np.arange(4) / 4)
  np.testing.assert_allclose(turn.cos[0, 0], np.cos(angle), atol=1e-3)
  np.testing.assert_allclose(turn.sin[0, 0], np.sin(angle), atol=1e-3)


def test_the_decoder_turns_and_casts_matrices_and_leaves_norms_alone(tiny_lm):
  lm = tiny_lm(compute_dtype='bfloat16', norm='layer', use_bias=True)

  def dtypes(model):
    before = model.layers.attention.out.kernel.shape
    block = model.decoder().blocks[0]
    assert block.attention.out.kernel.shape == (*before[2:], before[1])
    assert model.layers.attention.out.kernel.shape == before
    assert block.mlp.up.kernel.dtype == jnp.bfloat16
    assert block.mlp.up.bias.dtype == jnp.float32
    assert block.mlp_norm.scale.dtype == jnp.float32
    return jnp.zeros(())

  lm(dtypes)
