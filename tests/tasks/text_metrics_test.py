import functools
import operator

import pytest
import sacrebleu

from paxlike.core import errors
from paxlike.tasks import _text_metrics as text_metrics

TEXTS = [
  ('the cat sat on the mat', 'the cat sat on a mat'),
  ('', 'a reference and nothing decoded'),
  ('In the beginning God created .', 'In the beginning God made the heaven.'),
  ('something else entirely here', 'not the same thing at all, no'),
  ('the same words in a row', 'the same words in a row'),
]


@pytest.mark.parametrize('name', ['bleu', 'chrf'])
@pytest.mark.parametrize('size', [1, 2, 5])
def test_merged_counts_give_the_score_of_the_whole_corpus(name, size):
  parts = [TEXTS[i : i + size] for i in range(0, len(TEXTS), size)]
  counts = functools.reduce(
    operator.add,
    (text_metrics.statistics([name], part)[name] for part in parts),
  )
  metric = {'bleu': sacrebleu.BLEU, 'chrf': sacrebleu.CHRF}[name]()
  decoded, targets = zip(*TEXTS, strict=True)
  want = metric.corpus_score(decoded, [targets]).score
  assert text_metrics.score(name, counts) == pytest.approx(want, abs=1e-12)
  assert want > 10


def test_an_unknown_metric_is_refused():
  with pytest.raises(errors.ConfigError, match=r"'rouge'.*bleu"):
    text_metrics.check(['rouge'])
