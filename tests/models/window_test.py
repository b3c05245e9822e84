"""Windows and chunks that are longer than what there is to see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import models
from tests.models import generate_test

IDS = jax.random.randint(jax.random.key(7), (2, 9), 0, 19)


# As long as the sequence, one more, and longer than any cache here.
@pytest.mark.parametrize('window', [9, 10, 1_000])
def test_a_window_longer_than_the_sequence_is_none(tiny_lm, window):
  np.testing.assert_array_equal(
    tiny_lm(window=window)('__call__', IDS), tiny_lm()('__call__', IDS)
  )


@pytest.mark.parametrize('window', [14, 1_000])
def test_a_window_longer_than_prompt_and_cache_decodes_like_none(
  tiny_lm, window
):
  prompts = generate_test._padded(generate_test.PROMPTS)
  config = models.GenerateConfig(max_new_tokens=generate_test.NEW)
  got = tiny_lm(window=window).generate(prompts, generate_test.LENGTHS, config)
  want = tiny_lm().generate(prompts, generate_test.LENGTHS, config)
  np.testing.assert_array_equal(got.ids, want.ids)
  np.testing.assert_allclose(got.log_probs, want.log_probs, atol=1e-5)


def test_a_slice_of_a_cache_that_is_longer_than_the_sequence_sees_no_more(
  tiny_lm,
):
  def last(model, ids, num_slots):
    decoder = model.decoder()
    cache = decoder.init_cache(2, num_slots=num_slots)
    positions = jnp.tile(jnp.arange(9, dtype=jnp.int32), (2, 1))
    _, cache = decoder.extend(ids[:, :8], positions[:, :8], cache)
    features, _ = decoder.extend(ids[:, 8:], positions[:, 8:], cache)
    return decoder.logits(features)[:, -1]

  lm = tiny_lm(window=4)
  want = lm('__call__', IDS)[:, -1]
  for num_slots in (9, 10, 200):

    def run(model, ids, num_slots=num_slots):
      return last(model, ids, num_slots)

    np.testing.assert_allclose(lm(run, IDS), want, atol=1e-4, rtol=1e-4)
