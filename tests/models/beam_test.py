import itertools

import jax
import numpy as np
import pytest

from paxlike import models

VOCAB = 5
NEW = 3
PROMPTS = np.array([[1, 2, 3], [4, 0, 0]], np.int32)
LENGTHS = np.array([3, 1], np.int32)
KNOBS = {'vocab_size': VOCAB, 'num_layers': 1}


def _all_continuations(stop):
  """Every continuation of up to NEW tokens that ends where it must."""
  for length in range(1, NEW + 1):
    for tokens in itertools.product(range(VOCAB), repeat=length):
      ends = tokens[-1] == stop or length == NEW
      if ends and stop not in tokens[:-1]:
        yield tokens


def _best_by_trying_all(lm, row, stop, penalty, num_best):
  tokens = list(_all_continuations(stop))
  ids = np.zeros((len(tokens), NEW), np.int32)
  for i, continuation in enumerate(tokens):
    ids[i, : len(continuation)] = continuation
  lengths = np.array([len(t) for t in tokens], np.int32)
  scores = lm(
    models.score,
    np.tile(PROMPTS[row], (len(tokens), 1)),
    np.full(len(tokens), LENGTHS[row], np.int32),
    ids,
    lengths,
  ).log_probs
  order = np.argsort(-np.asarray(scores) / lengths**penalty)[:num_best]
  return [tokens[i] for i in order], np.asarray(scores)[order]


def _search(lm, prompts=PROMPTS, lengths=LENGTHS, **knobs):
  config = models.GenerateConfig(max_new_tokens=NEW, **knobs)
  return lm.generate(prompts, lengths, config)


def _tokens(out, row):
  return [
    tuple(ids[:length].tolist())
    for ids, length in zip(
      np.asarray(out.ids)[row], np.asarray(out.lengths)[row], strict=True
    )
  ]


@pytest.mark.parametrize('penalty', [0.0, 1.0])
def test_enough_beams_find_what_trying_all_finds(tiny_lm, penalty):
  lm = tiny_lm(**KNOBS)
  out = _search(
    lm,
    beam_size=VOCAB**NEW,
    num_samples=4,
    stop_ids=(2,),
    length_penalty=penalty,
  )
  for row in range(2):
    tokens, log_probs = _best_by_trying_all(lm, row, 2, penalty, 4)
    assert _tokens(out, row) == tokens
    np.testing.assert_allclose(out.log_probs[row], log_probs, atol=1e-4)


def test_one_beam_is_greedy(tiny_lm):
  lm = tiny_lm(**KNOBS)
  greedy, beam = _search(lm), _search(lm, beam_size=1)
  np.testing.assert_array_equal(greedy.ids, beam.ids)
  np.testing.assert_allclose(greedy.log_probs, beam.log_probs, atol=1e-4)


def test_a_row_does_not_depend_on_its_batch_or_padding(tiny_lm):
  lm = tiny_lm(**KNOBS)
  knobs = {'beam_size': 3, 'num_samples': 3, 'stop_ids': (2,)}
  batch = _search(lm, **knobs)
  for row in range(2):
    prompt = PROMPTS[row : row + 1, : LENGTHS[row]]
    alone = _search(lm, prompt, LENGTHS[row : row + 1], **knobs)
    assert _tokens(batch, row) == _tokens(alone, 0)
    np.testing.assert_allclose(
      batch.log_probs[row], alone.log_probs[0], atol=1e-4
    )


def test_limits_and_padding_rows_hold_for_beams(tiny_lm):
  lm = tiny_lm(**KNOBS)
  config = models.GenerateConfig(
    max_new_tokens=NEW, beam_size=3, num_samples=2, pad_id=4
  )
  lengths = np.array([3, 0], np.int32)
  out = lm.generate(
    PROMPTS, lengths, config, max_new_tokens=np.array([2, 3], np.int32)
  )
  assert np.asarray(out.lengths).tolist() == [[2, 2], [0, 0]]
  assert np.asarray(out.ids)[1].tolist() == [[4] * NEW] * 2
  assert np.asarray(out.log_probs)[1].tolist() == [0.0, 0.0]


def test_results_come_best_first(tiny_lm):
  lm = tiny_lm(**KNOBS)
  out = _search(lm, beam_size=4, num_samples=4, length_penalty=0.0)
  assert (np.diff(np.asarray(out.log_probs), axis=1) <= 0).all()


def test_the_search_ends_when_nothing_can_improve(tiny_lm):
  lm = tiny_lm(**KNOBS)
  config = models.GenerateConfig(
    max_new_tokens=100_000, beam_size=2, stop_ids=tuple(range(VOCAB))
  )
  # Not ending early would take minutes and be ended by the test's timeout.
  out = lm.generate(PROMPTS, LENGTHS, config)
  assert np.asarray(out.lengths).tolist() == [[1], [1]]
  assert jax.tree.all(jax.tree.map(lambda a: np.isfinite(a).all(), out))
