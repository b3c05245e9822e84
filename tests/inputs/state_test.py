import numpy as np
import pytest

from paxlike import inputs
from paxlike.core import errors


def make(**knobs) -> inputs.ArraysInput:
  arrays = {'inputs': np.arange(10, dtype=np.float32)}
  return inputs.ArraysInput(
    **{
      'name': 'numbers',
      'batch_size': 4,
      'is_training': True,
      'arrays': arrays,
      **knobs,
    }
  )


def state_of(source: inputs.Input, position: int = 5) -> dict:
  return {'position': position, 'fingerprint': source.fingerprint}


def test_the_same_input_goes_on_at_the_position():
  assert inputs.check_state(make(), state_of(make())) == 5


def test_another_batch_size_is_refused_naming_both():
  with pytest.raises(
    errors.InputMismatchError, match='batch_size: 4 when saved, 8 now'
  ):
    inputs.check_state(make(batch_size=8), state_of(make()))


@pytest.mark.parametrize(
  ('knobs', 'named'),
  [
    ({'seed': 1}, 'seed: 0 when saved, 1 now'),
    ({'shuffle': False}, 'shuffle'),
    ({'arrays': {'inputs': np.arange(10.0) + 1}}, 'arrays'),
    ({'arrays': {'inputs': np.arange(9.0)}}, 'num_examples: 10 when saved, 9'),
  ],
)
def test_other_data_or_order_are_refused(knobs, named):
  with pytest.raises(errors.InputMismatchError, match=named):
    inputs.check_state(make(**knobs), state_of(make()))


def test_the_refusal_says_how_to_go_on_all_the_same():
  with pytest.raises(errors.InputMismatchError, match='allow_mismatch=True'):
    inputs.check_state(make(seed=1), state_of(make()))
  changed = make(seed=1, allow_mismatch=True)
  assert inputs.check_state(changed, state_of(make())) == 5


def test_a_name_or_an_evaluation_setting_is_no_part_of_the_order():
  renamed = make(name='other', eval_loop_num_batches=3)
  assert inputs.check_state(renamed, state_of(make())) == 5
