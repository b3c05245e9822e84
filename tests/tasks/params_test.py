import pytest

from paxlike import tasks
from paxlike.core import errors


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('num_train_steps', -1),
    ('save_interval_steps', 0),
    ('save_max_to_keep', 0),
    ('summary_interval_steps', 0),
    ('eval_interval_steps', -3),
    ('max_inflight_steps', 0),
    ('on_nonfinite', 'panic'),
    ('on_stall', 'ignore'),
    ('random_seed', 10**30),
    ('stall_floor_s', 0.0),
    ('follow_policy', 'some'),
  ],
)
def test_nonsense_is_refused_with_name_and_value(name, value):
  with pytest.raises(errors.ConfigError, match=f'{name} is {value!r}'):
    tasks.TrainParams(**{'num_train_steps': 10, name: value})


def test_norms_are_written_with_other_summaries_only():
  with pytest.raises(errors.ConfigError, match='multiple'):
    tasks.TrainParams(
      num_train_steps=10,
      summary_interval_steps=4,
      norm_summary_interval_steps=6,
    )
