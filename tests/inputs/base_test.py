import itertools

import fiddle as fdl
import numpy as np
import pytest

from paxlike import inputs
from paxlike.core import errors
from tests.contracts import input_contract


def make(num_examples: int = 10, **knobs) -> inputs.ArraysInput:
  arrays = {'inputs': np.arange(num_examples, dtype=np.float32)}
  return inputs.ArraysInput(
    **{'name': 'numbers', 'batch_size': 4, 'arrays': arrays, **knobs}
  )


@pytest.mark.parametrize('num_processes', [1, 2, 3, 4])
def test_every_count_and_batch_size_gives_each_example_once(num_processes):
  for num, batch_size in itertools.product(range(1, 18), range(1, 9)):
    source = make(num, batch_size=batch_size)
    batches = [
      input_contract.read_by_processes(source, position, num_processes)
      for position in range(source.num_batches)
    ]
    rows = {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}
    real = rows['example_weights'] == 1
    assert rows['example_id'][real].tolist() == list(range(num))
    assert rows['inputs'][real].tolist() == list(range(num))
    # A weighted mean over batches and processes is the exact mean.
    assert (rows['inputs'] * rows['example_weights']).sum() / real.sum() == (
      (num - 1) / 2
    )


def test_training_epochs_follow_each_other_without_a_gap():
  for num, batch_size in itertools.product(range(1, 18), range(1, 9)):
    source = make(num, batch_size=batch_size, is_training=True)
    positions = range(-(-3 * num // batch_size))
    batches = [source.read(p, range(batch_size)) for p in positions]
    ids = np.concatenate([b['example_id'] for b in batches])[: 3 * num]
    for epoch in np.split(ids, 3):
      assert sorted(epoch.tolist()) == list(range(num))
    assert all(b['example_weights'].all() for b in batches)


def test_the_global_order_is_that_of_any_process_count():
  source = make(17, batch_size=8, is_training=True, seed=3)
  orders = [
    [
      input_contract.read_by_processes(source, p, num)['example_id'].tolist()
      for p in range(20)
    ]
    for num in (1, 2, 4)
  ]
  assert orders[0] == orders[1] == orders[2]


def test_a_seed_is_an_order():
  first = [make(seed=s, is_training=True).read(0, range(4)) for s in (0, 0, 1)]
  ids = [batch['example_id'].tolist() for batch in first]
  assert ids[0] == ids[1] != ids[2]


def test_without_shuffle_training_is_in_the_order_of_the_data():
  source = make(3, is_training=True, shuffle=False)
  ids = [source.read(p, range(4))['example_id'].tolist() for p in range(2)]
  assert ids == [[0, 1, 2, 0], [1, 2, 0, 1]]


@pytest.mark.parametrize(
  ('knobs', 'num_batches'),
  [
    ({}, 3),
    ({'reset_for_eval': True}, 3),
    ({'eval_loop_num_batches': 2}, 2),
    ({'eval_loop_num_batches': 7}, 3),
    ({'eval_loop_num_batches': 2, 'reset_for_eval': True}, 3),
    ({'is_training': True}, None),
    ({'is_training': True, 'eval_loop_num_batches': 2}, None),
  ],
)
def test_one_rule_says_how_long_an_evaluation_is(knobs, num_batches):
  assert make(10, **knobs).num_batches == num_batches


def test_a_shorter_evaluation_has_the_first_batches():
  source = make(10, eval_loop_num_batches=2)
  with inputs.Stream(source) as stream:
    ids = [batch['example_id'].tolist() for batch in stream]
  assert ids == [[0, 1, 2, 3], [4, 5, 6, 7]]


def make_endless(**knobs) -> inputs.Input:
  return inputs.SyntheticLmInput(
    name='endless', batch_size=2, seq_len=3, vocab_size=5, **knobs
  )


def test_evaluating_an_endless_input_needs_a_number_of_batches():
  for knobs in ({}, {'eval_loop_num_batches': 2, 'reset_for_eval': True}):
    with pytest.raises(errors.ConfigError, match='eval_loop_num_batches'):
      make_endless(**knobs)
  assert make_endless(eval_loop_num_batches=2).num_batches == 2
  assert make_endless(is_training=True).num_batches is None


def test_an_empty_evaluation_has_no_batch():
  assert make(0).num_batches == 0
  with inputs.Stream(make(0)) as stream:
    assert list(stream) == []


def test_training_without_examples_is_an_error_that_names_the_input():
  with pytest.raises(errors.InputError, match='numbers has no examples'):
    make(0, is_training=True).read(0, range(4))


def test_rows_outside_of_the_batch_are_refused():
  for rows in (range(3, 5), range(-1, 2), range(0, 4, 2)):
    with pytest.raises(ValueError, match='batch of 4'):
      make().read(0, rows)
  with pytest.raises(ValueError, match='negative'):
    make().read(-1, range(4))


def test_a_process_may_have_no_rows():
  batch = make().read(0, range(2, 2))
  assert {name: len(array) for name, array in batch.items()} == {
    'inputs': 0,
    'example_weights': 0,
    'example_id': 0,
  }


def test_a_config_is_built_without_the_data():
  config = fdl.Config(
    inputs.TextInput,
    name='text',
    batch_size=2,
    seq_len=8,
    files='/no/such/file',
  )
  config.batch_size = 3
  source = fdl.build(config)
  assert source.batch_spec['ids'].shape == (3, 8)
  with pytest.raises(errors.InputError, match='/no/such/file'):
    source.read(0, range(3))


def test_a_misspelt_knob_is_refused_by_the_config():
  with pytest.raises(TypeError, match='batch_sise'):
    fdl.Config(inputs.DigitsInput, batch_sise=3)
