"""Where sequences begin and end, when one id means both."""

import jax
import numpy as np

from paxlike import models

NEW = 6
BOTH = 6  # the id that begins a sequence and ends it


def prompts():
  """Rows that begin with the id at which generating stops."""
  ids = np.array(jax.random.randint(jax.random.key(5), (4, 5), 4, 19))
  ids[:, 0] = BOTH
  return ids


def test_an_id_that_begins_and_ends_sequences_stops_at_the_end_alone(tiny_lm):
  lm, lengths = tiny_lm(), np.array([1, 2, 4, 5], np.int32)
  free = lm.generate(
    prompts(), lengths, models.GenerateConfig(max_new_tokens=NEW)
  )
  out = lm.generate(
    prompts(),
    lengths,
    models.GenerateConfig(max_new_tokens=NEW, stop_ids=(BOTH,), pad_id=BOTH),
  )
  assert np.asarray(out.lengths)[:, 0].tolist() == [3, 3, 5, 1]
  for row in range(4):
    tokens = np.asarray(free.ids)[row, 0].tolist()
    end = tokens.index(BOTH) + 1
    assert np.asarray(out.ids)[row, 0].tolist() == (
      tokens[:end] + [BOTH] * (NEW - end)
    )


def test_the_stop_id_counts_in_the_log_prob_and_what_pads_does_not(tiny_lm):
  lm, lengths = tiny_lm(), np.full(4, 5, np.int32)
  free = lm.generate(
    prompts(), lengths, models.GenerateConfig(max_new_tokens=NEW)
  )
  # What the first row says third is what ends it.
  stop = int(np.asarray(free.ids)[0, 0, 2])
  out = lm.generate(
    prompts(),
    lengths,
    models.GenerateConfig(max_new_tokens=NEW, stop_ids=(stop,), pad_id=stop),
  )
  scores = lm(
    models.score, prompts(), lengths, out.ids[:, 0], out.lengths[:, 0]
  )
  assert np.asarray(out.lengths)[0, 0] <= 3
  np.testing.assert_allclose(out.log_probs[:, 0], scores.log_probs, atol=1e-3)
  for row, length in enumerate(np.asarray(out.lengths)[:, 0]):
    tokens = np.asarray(scores.token_log_probs)[row]
    assert (tokens[:length] < 0).all()
    assert (tokens[length:] == 0).all()
