import jax
import numpy as np
import pytest

from paxlike import models
from tests.models import reference

PROMPTS = np.array([[3, 1, 4, 1], [5, 9, 0, 0], [2, 0, 0, 0]], np.int32)
LENGTHS = np.array([4, 2, 1], np.int32)
NEW_IDS = np.array([[2, 6, 5], [3, 5, 0], [8, 0, 0]], np.int32)
NEW_LENGTHS = np.array([3, 2, 0], np.int32)


def _by_numpy(lm, row):
  prompt = PROMPTS[row, : LENGTHS[row]]
  new = NEW_IDS[row, : NEW_LENGTHS[row]]
  logits = reference.logits(
    lm.mdl_vars['params'], np.concatenate([prompt, new])
  )
  log_probs = np.asarray(jax.nn.log_softmax(logits, axis=-1))
  first = len(prompt) - 1
  return [log_probs[first + i, token] for i, token in enumerate(new)]


def _left(ids, lengths):
  out = np.zeros_like(ids)
  for row, length in enumerate(lengths):
    out[row, ids.shape[1] - length :] = ids[row, :length]
  return out


@pytest.mark.parametrize('side', ['right', 'left'])
def test_scores_are_the_log_probs_of_each_continuation_alone(tiny_lm, side):
  lm = tiny_lm()
  prompts = PROMPTS if side == 'right' else _left(PROMPTS, LENGTHS)
  got = lm(models.score, prompts, LENGTHS, NEW_IDS, NEW_LENGTHS, padding=side)
  for row in range(3):
    want = _by_numpy(lm, row)
    real = np.asarray(got.token_log_probs)[row, : len(want)]
    np.testing.assert_allclose(real, want, atol=1e-3)
    assert np.isclose(got.log_probs[row], sum(want), atol=1e-3)
    assert not np.asarray(got.token_log_probs)[row, len(want) :].any()


def test_what_greedy_decoding_gives_is_greedy_and_nothing_else(tiny_lm):
  lm = tiny_lm()
  config = models.GenerateConfig(max_new_tokens=3)
  out = lm.generate(PROMPTS, LENGTHS, config)
  ids, lengths = np.asarray(out.ids)[:, 0], np.asarray(out.lengths)[:, 0]
  same = lm(models.score, PROMPTS, LENGTHS, ids, lengths)
  changed = ids.copy()
  changed[:, 1] = (changed[:, 1] + 1) % 19
  other = lm(models.score, PROMPTS, LENGTHS, changed, lengths)
  assert np.asarray(same.is_greedy).tolist() == [True] * 3
  assert np.asarray(other.is_greedy).tolist() == [False] * 3
