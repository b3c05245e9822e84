from paxlike.core import suggest


def test_the_most_alike_name_comes_first():
  known = ['learning_rate', 'learner', 'warmup_steps']
  assert suggest.nearest('lerning_rate', known)[0] == 'learning_rate'


def test_case_does_not_count():
  assert suggest.nearest('kjvtiny', ['KjvTiny']) == ['KjvTiny']


def test_a_near_last_part_is_near():
  known = ['experiments.lm.KjvTiny']
  assert suggest.nearest('KjvTinny', known) == known


def test_a_far_name_lists_what_there_is():
  assert suggest.hint('zzz', ['abc', 'def']) == 'Known: abc, def.'
  assert suggest.hint('zzz', []) == 'There is none.'


def test_a_long_list_is_cut():
  text = suggest.hint('zzz', [f'n{i}' for i in range(20)], limit=2)
  assert text == 'Known: n0, n1, and 18 more.'
