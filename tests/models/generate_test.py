import jax
import numpy as np
import pytest

from paxlike import models
from paxlike.core import errors

NEW = 6
WIDTH = 8
# Lengths 1, the middle, one less than the most and the most.
LENGTHS = np.array([1, 4, 7, 8], np.int32)
PROMPTS = [
  np.asarray(jax.random.randint(jax.random.key(i), (length,), 0, 19))
  for i, length in enumerate(LENGTHS)
]


def _padded(prompts, *, side='right', fill=0, width=WIDTH):
  out = np.full((len(prompts), width), fill, np.int32)
  for row, prompt in enumerate(prompts):
    start = width - len(prompt) if side == 'left' else 0
    out[row, start : start + len(prompt)] = prompt
  return out


def _teacher_forced(lm, prompt, num_new):
  """Greedy by the whole forward pass over everything so far, each time."""
  ids = np.zeros((1, WIDTH + NEW), np.int32)
  ids[0, : len(prompt)] = prompt
  end = len(prompt)
  for _ in range(num_new):
    # What follows is zeros, which a causal model does not see.
    ids[0, end] = int(lm('__call__', ids)[0, end - 1].argmax())
    end += 1
  return ids[0, len(prompt) : end].tolist()


def _continuations(out, sample=0):
  return [
    ids[sample, : lengths[sample]].tolist()
    for ids, lengths in zip(
      np.asarray(out.ids), np.asarray(out.lengths), strict=True
    )
  ]


@pytest.mark.parametrize('window', [None, 4])
@pytest.mark.parametrize('side', ['right', 'left'])
def test_a_ragged_batch_gives_the_teacher_forced_tokens(tiny_lm, window, side):
  lm = tiny_lm(window=window)
  config = models.GenerateConfig(max_new_tokens=NEW, padding=side)
  out = lm.generate(_padded(PROMPTS, side=side), LENGTHS, config)
  want = [_teacher_forced(lm, prompt, NEW) for prompt in PROMPTS]
  assert _continuations(out) == want
  assert len({tuple(row) for row in want}) > 1


@pytest.mark.parametrize('window', [1, 4, 9])
def test_a_window_is_as_wide_at_any_length_as_in_the_full_forward(
  tiny_lm, window
):
  # Shorter than a window of 4, as long, one more, and beyond two of them.
  lengths = np.array([3, 4, 5, 9], np.int32)
  prompts = [
    np.asarray(jax.random.randint(jax.random.key(20 + i), (length,), 0, 19))
    for i, length in enumerate(lengths)
  ]
  lm = tiny_lm(window=window)
  config = models.GenerateConfig(max_new_tokens=5)
  out = lm.generate(_padded(prompts, width=9), lengths, config)
  want = [_teacher_forced(lm, prompt, 5) for prompt in prompts]
  assert _continuations(out) == want


@pytest.mark.parametrize('length', [300, 5_000])
def test_far_positions_decode_in_bfloat16_as_their_full_forward(
  tiny_lm, length
):
  lm = tiny_lm(num_layers=1, compute_dtype='bfloat16', window=64)
  key = jax.random.key(3)
  prompts = np.asarray(jax.random.randint(key, (1, length), 0, 19))
  lengths = np.array([length], np.int32)
  out = lm.generate(prompts, lengths, models.GenerateConfig(max_new_tokens=4))
  scores = lm(models.score, prompts, lengths, out.ids[:, 0], out.lengths[:, 0])
  np.testing.assert_allclose(out.log_probs[:, 0], scores.log_probs, atol=0.3)


def test_bfloat16_log_probs_are_those_of_its_own_full_forward(tiny_lm):
  lm = tiny_lm(compute_dtype='bfloat16')
  config = models.GenerateConfig(max_new_tokens=NEW)
  prompts = _padded(PROMPTS)
  out = lm.generate(prompts, LENGTHS, config)
  scores = lm(models.score, prompts, LENGTHS, out.ids[:, 0], out.lengths[:, 0])
  np.testing.assert_allclose(out.log_probs[:, 0], scores.log_probs, atol=0.3)


def test_padding_content_and_amount_change_nothing(tiny_lm):
  lm = tiny_lm()
  config = models.GenerateConfig(
    max_new_tokens=NEW, temperature=1.0, num_samples=2
  )
  key = jax.random.key(0)
  base = lm.generate(_padded(PROMPTS), LENGTHS, config, key=key)
  other = lm.generate(_padded(PROMPTS, fill=9), LENGTHS, config, key=key)
  wide = lm.generate(_padded(PROMPTS, width=11), LENGTHS, config, key=key)
  np.testing.assert_array_equal(base.ids, other.ids)
  np.testing.assert_array_equal(base.log_probs, other.log_probs)
  np.testing.assert_array_equal(base.ids, wide.ids)


def test_draws_depend_on_the_example_and_not_on_the_batch(tiny_lm):
  lm = tiny_lm()
  config = models.GenerateConfig(
    max_new_tokens=NEW, temperature=1.0, top_k=9, num_samples=3
  )
  key, example_ids = jax.random.key(4), np.array([10, 11, 12, 13], np.int32)
  prompts = _padded(PROMPTS)
  whole = lm.generate(
    prompts, LENGTHS, config, key=key, example_ids=example_ids
  )
  order = np.array([2, 0])
  part = lm.generate(
    prompts[order],
    LENGTHS[order],
    config,
    key=key,
    example_ids=example_ids[order],
  )
  np.testing.assert_array_equal(whole.ids[order], part.ids)


def test_samples_of_one_prompt_differ_and_replay(tiny_lm):
  lm = tiny_lm()
  config = models.GenerateConfig(
    max_new_tokens=NEW, temperature=1.0, num_samples=3
  )
  prompts = _padded(PROMPTS)
  first, again, other = (
    np.asarray(lm.generate(prompts, LENGTHS, config, key=key).ids)
    for key in (jax.random.key(0), jax.random.key(0), jax.random.key(1))
  )
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)
  assert len({tuple(row) for row in first[0]}) > 1


def test_sampling_without_a_key_is_refused(tiny_lm):
  config = models.GenerateConfig(max_new_tokens=NEW, temperature=0.5)
  with pytest.raises(errors.ConfigError, match=r'temperature 0\.5 needs key='):
    tiny_lm().generate(_padded(PROMPTS), LENGTHS, config)


def _greedy(lm, **knobs):
  config = models.GenerateConfig(max_new_tokens=NEW, **knobs)
  return lm.generate(_padded(PROMPTS), LENGTHS, config)


def test_a_stop_id_is_kept_and_ends_the_row(tiny_lm):
  lm = tiny_lm()
  free = _continuations(_greedy(lm))
  stop = free[0][2]
  out = _greedy(lm, stop_ids=(stop,), pad_id=18)
  for row, tokens in enumerate(free):
    end = tokens.index(stop) + 1 if stop in tokens else NEW
    assert _continuations(out)[row] == tokens[:end]
    assert np.asarray(out.ids)[row, 0, end:].tolist() == [18] * (NEW - end)


def test_a_pad_id_that_is_the_stop_id_leaves_the_lengths_right(tiny_lm):
  lm = tiny_lm()
  stop = _continuations(_greedy(lm))[0][2]
  out = _greedy(lm, stop_ids=(stop,), pad_id=stop)
  other = _greedy(lm, stop_ids=(stop,), pad_id=0)
  np.testing.assert_array_equal(out.lengths, other.lengths)
  assert _continuations(out) == _continuations(other)


def test_a_stop_id_inside_the_prompt_does_not_stop(tiny_lm):
  lm = tiny_lm()
  inside = set(PROMPTS[3].tolist()) - set(_continuations(_greedy(lm))[3])
  out = _greedy(lm, stop_ids=tuple(sorted(inside)))
  assert inside
  assert np.asarray(out.lengths)[3, 0] == NEW


def test_each_row_has_its_own_limit_and_padding_rows_get_nothing(tiny_lm):
  lm = tiny_lm()
  config = models.GenerateConfig(max_new_tokens=NEW, pad_id=3)
  lengths = LENGTHS.copy()
  lengths[2] = 0
  out = lm.generate(
    _padded(PROMPTS),
    lengths,
    config,
    max_new_tokens=np.array([2, 99, 5, 0], np.int32),
  )
  free = _continuations(_greedy(lm))
  assert np.asarray(out.lengths)[:, 0].tolist() == [2, NEW, 0, 0]
  assert _continuations(out)[:2] == [free[0][:2], free[1]]
  assert np.asarray(out.ids)[2:].tolist() == [[[3] * NEW]] * 2
  assert np.asarray(out.log_probs)[2:].tolist() == [[0.0], [0.0]]


def test_log_probs_are_those_of_the_model_whatever_the_temperature(tiny_lm):
  lm = tiny_lm()
  config = models.GenerateConfig(max_new_tokens=NEW, temperature=2.0, top_p=0.9)
  prompts = _padded(PROMPTS)
  out = lm.generate(prompts, LENGTHS, config, key=jax.random.key(2))
  scores = lm(models.score, prompts, LENGTHS, out.ids[:, 0], out.lengths[:, 0])
  np.testing.assert_allclose(out.log_probs[:, 0], scores.log_probs, atol=1e-3)


def test_the_loop_ends_when_every_row_is_done(tiny_lm):
  lm = tiny_lm()
  stop = tuple(range(19))
  config = models.GenerateConfig(max_new_tokens=200_000, stop_ids=stop)
  # Not ending early would take minutes and be ended by the test's timeout.
  out = lm.generate(_padded(PROMPTS), LENGTHS, config)
  assert np.asarray(out.lengths).tolist() == [[1]] * 4


def test_generate_compiles_once_for_a_shape(tiny_lm, compiles):
  lm = tiny_lm()
  config = models.GenerateConfig(max_new_tokens=2)

  @jax.jit
  def decode_batch(mdl_vars, ids, lengths):
    return lm.functional.apply(
      mdl_vars, models.generate, ids, lengths, config=config
    )[0]

  for shift in range(3):
    decode_batch(lm.mdl_vars, (_padded(PROMPTS) + shift) % 19, LENGTHS)
  assert compiles('decode_batch') == 1


def test_generate_over_a_mesh_gives_the_same_tokens(tiny_lm):
  lm = tiny_lm()
  config = models.GenerateConfig(
    max_new_tokens=NEW, temperature=1.0, num_samples=2
  )
  key = jax.random.key(0)
  prompts = _padded(PROMPTS)
  want = lm.generate(prompts, LENGTHS, config, key=key)
  mesh = jax.make_mesh(
    (4,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  rows = jax.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  got = lm.generate(
    jax.device_put(prompts, rows),
    jax.device_put(LENGTHS, rows),
    config,
    key=key,
  )
  np.testing.assert_array_equal(got.ids, want.ids)


@pytest.mark.parametrize(
  ('knobs', 'message'),
  [
    ({'max_new_tokens': 0}, 'max_new_tokens is 0'),
    ({'max_new_tokens': 2, 'num_samples': 0}, 'num_samples is 0'),
    ({'max_new_tokens': 2, 'num_samples': 2}, 'all would be the same'),
    ({'max_new_tokens': 2, 'stop_ids': (3, -1)}, r'stop_ids are \(3, -1\)'),
    ({'max_new_tokens': 2, 'pad_id': -1}, 'pad_id is -1'),
    ({'max_new_tokens': 2, 'beam_size': 1, 'num_samples': 2}, 'beam_size is 1'),
    ({'max_new_tokens': 2, 'length_penalty': -1.0}, 'length_penalty is -1'),
    ({'max_new_tokens': 2, 'padding': 'both'}, "padding is 'both'"),
    ({'max_new_tokens': 2, 'top_p': 0.0}, 'top_p is 0'),
  ],
)
def test_nonsense_is_refused_when_built(knobs, message):
  with pytest.raises(errors.ConfigError, match=message):
    models.GenerateConfig(**knobs)


def test_prompts_longer_than_the_window_decode_as_the_full_forward(tiny_lm):
  lm = tiny_lm(window=4)
  prompt = np.asarray(jax.random.randint(jax.random.key(9), (12,), 0, 19))
  config = models.GenerateConfig(max_new_tokens=2)
  out = lm.generate(prompt[None], np.array([12], np.int32), config)
  assert _continuations(out) == [_teacher_forced(lm, prompt, 2)]


@pytest.mark.parametrize('beam_size', [None, 2])
@pytest.mark.parametrize('tie_embeddings', [True, False])
def test_a_decoder_made_before_gives_what_the_model_gives(
  tiny_lm, tie_embeddings, beam_size
):
  lm = tiny_lm(tie_embeddings=tie_embeddings, compute_dtype='bfloat16')
  config = models.GenerateConfig(max_new_tokens=NEW, beam_size=beam_size)
  prompts = _padded(PROMPTS)
  want = lm.generate(prompts, LENGTHS, config)
  decoder = jax.jit(lambda v: lm.functional.apply(v, 'decoder')[0])(lm.mdl_vars)
  found = jax.jit(
    lambda decoder, *prompt: models.generate(decoder, *prompt, config=config)
  )(decoder, prompts, LENGTHS)
  np.testing.assert_array_equal(found.ids, want.ids)
  np.testing.assert_array_equal(found.lengths, want.lengths)
  np.testing.assert_allclose(found.log_probs, want.log_probs, rtol=1e-6)
