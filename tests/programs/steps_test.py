import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import programs, tasks
from paxlike.core import errors
from tests.fakes import tiny_task


def run(task, batches, *, num_devices=1, state=None, **sizes):
  """Trains over host batches; gives the last state and every output."""
  partitioner = tiny_task.make_partitioner(num_devices, **sizes)
  program = programs.TrainProgram(task, partitioner)
  state = program.init_state() if state is None else state
  outputs = []
  for batch in batches:
    rows = len(batch['labels'])
    state, output = program.run(state, partitioner.put_batch(batch, rows))
    outputs.append(jax.device_get(output))
  return state, outputs


def kernel(state):
  return np.asarray(state.mdl_vars['params']['kernel'])


def test_one_update_is_the_closed_form():
  task = tiny_task.make_task()
  batch = tiny_task.make_batch(8)
  start, _ = run(task, [])
  w = kernel(start)
  state, _ = run(task, [batch])
  residual = batch['inputs'] @ w - batch['labels']
  gradient = 2 * (residual[:, None] * batch['inputs']).mean(axis=0)
  np.testing.assert_allclose(kernel(state), w - 0.1 * gradient, rtol=1e-5)


def test_the_state_counts_updates():
  state, outputs = run(tiny_task.make_task(), [tiny_task.make_batch(4)] * 3)
  assert int(state.step) == 3
  assert [int(o.step) for o in outputs] == [1, 2, 3]


@pytest.mark.parametrize('num_parts', [2, 4])
def test_micro_batches_of_unequal_weight_give_the_update_of_the_whole(
  num_parts,
):
  weights = [1, 1, 1, 1, 1, 0, 0, 0]
  batch = tiny_task.make_batch(8, weights=weights)
  whole, whole_out = run(tiny_task.make_task(), [batch] * 3)
  parts, parts_out = run(
    tiny_task.make_task(learner={'num_micro_batches': num_parts}), [batch] * 3
  )
  np.testing.assert_allclose(kernel(parts), kernel(whole), rtol=1e-6)
  for a, b in zip(parts_out, whole_out, strict=True):
    np.testing.assert_allclose(a.loss.value, b.loss.value, rtol=1e-6)
    np.testing.assert_allclose(
      a.metrics['bias'].value, b.metrics['bias'].value, rtol=1e-5
    )
    assert a.loss.weight == b.loss.weight == 5
    np.testing.assert_allclose(
      a.per_example['squares'], b.per_example['squares'], rtol=1e-5
    )
  # State that a forward pass updates goes through every part.
  assert float(parts.mdl_vars['non_trainable']['seen']) == 15


def test_micro_batches_that_do_not_divide_are_refused_with_the_legal_ones():
  task = tiny_task.make_task(learner={'num_micro_batches': 3})
  with pytest.raises(errors.ConfigError, match=r'Legal: \[1, 2, 4, 8\]'):
    run(task, [tiny_task.make_batch(8)])


def test_micro_batches_do_not_advance_the_learning_rate():
  schedule = tasks.WarmupCosine(peak=0.1, warmup_steps=2)
  rates = []
  for num_parts in (1, 4):
    task = tiny_task.make_task(
      learner={'num_micro_batches': num_parts, 'schedule': schedule}
    )
    _, outputs = run(task, [tiny_task.make_batch(8)] * 4)
    rates.append([float(o.learning_rate) for o in outputs])
  assert rates[0] == rates[1]
  assert rates[0][:3] == pytest.approx([0.0, 0.05, 0.1])


def test_a_batch_of_padding_changes_nothing_and_reports_zero():
  task = tiny_task.make_task()
  start, _ = run(task, [])
  state, (output,) = run(task, [tiny_task.make_batch(4, weights=[0] * 4)])
  np.testing.assert_array_equal(kernel(state), kernel(start))
  assert (float(output.loss.value), float(output.loss.weight)) == (0, 0)
  assert bool(output.is_finite)


@pytest.mark.parametrize('num_devices', [2, 4, 8])
def test_any_mesh_and_padding_gives_the_losses_of_one_device(num_devices):
  batches = [tiny_task.make_batch(6, seed=s) for s in range(5)]
  task = tiny_task.make_task(noise=0.5)
  _, alone = run(task, batches)
  _, split = run(task, batches, num_devices=num_devices)
  np.testing.assert_allclose(
    [o.loss.value for o in split], [o.loss.value for o in alone], rtol=1e-5
  )


def nan_batch():
  batch = tiny_task.make_batch(4)
  batch['inputs'][1, 2] = np.nan
  return batch


def test_stop_keeps_the_state_of_the_last_finite_step():
  task = tiny_task.make_task(on_nonfinite='stop')
  good = tiny_task.make_batch(4)
  expected, _ = run(task, [good, good])
  state, outputs = run(task, [good, good, nan_batch(), good, good])
  np.testing.assert_array_equal(kernel(state), kernel(expected))
  assert int(state.step) == 2
  assert float(state.mdl_vars['non_trainable']['seen']) == 8
  assert [bool(o.halted) for o in outputs] == [False] * 2 + [True] * 3


def test_skip_leaves_out_that_update_only_and_counts_it():
  task = tiny_task.make_task(on_nonfinite='skip')
  good, other = tiny_task.make_batch(4), tiny_task.make_batch(4, seed=1)
  expected, _ = run(task, [good, other])
  state, outputs = run(task, [good, nan_batch(), other])
  np.testing.assert_array_equal(kernel(state), kernel(expected))
  assert int(state.step) == 3
  assert int(state.extra['num_skipped']) == 1
  assert not any(bool(o.halted) for o in outputs)


def test_averaged_parameters_follow_the_closed_form():
  task = tiny_task.make_task(learner={'ema_decay': 0.75})
  batch = tiny_task.make_batch(4)
  expected = kernel(run(task, [])[0])
  for n in (1, 2, 3):
    state, _ = run(task, [batch] * n)
    expected = 0.75 * expected + 0.25 * kernel(state)
  np.testing.assert_allclose(
    state.eval_vars['params']['kernel'], expected, rtol=1e-6
  )
  assert float(state.eval_vars['non_trainable']['seen']) == 12


def test_a_parameter_without_gradient_survives_donation():
  class Frozen(tiny_task.LinearTask):
    def init_vars(self, key):
      variables = super().init_vars(key)
      return {
        **variables,
        'params': {**variables['params'], 'frozen': jnp.full(2, 7.0)},
      }

    def logical_axes(self):
      axes = super().logical_axes()
      return {**axes, 'params': {**axes['params'], 'frozen': (None,)}}

  base = tiny_task.make_task()
  task = Frozen(learner=base.learner, train=base.train)
  state, _ = run(task, [tiny_task.make_batch(4)] * 3)
  np.testing.assert_array_equal(state.mdl_vars['params']['frozen'], 7.0)


def test_a_step_is_compiled_once_also_for_a_state_from_the_host(compiles):
  task = tiny_task.make_task()
  batch = tiny_task.make_batch(4)
  partitioner = tiny_task.make_partitioner()
  program = programs.TrainProgram(task, partitioner)
  state = program.init_state()
  key = jax.random.key_data(state.extra['rng'])
  host = jax.device_get(
    dataclasses.replace(state, extra={**state.extra, 'rng': key})
  )
  for _ in range(3):
    state, _ = program.run(state, partitioner.put_batch(batch, 4))
  extra = {**host.extra, 'rng': jax.random.wrap_key_data(host.extra['rng'])}
  restored = jax.device_put(
    dataclasses.replace(host, extra=extra),
    jax.tree.map(lambda a: a.sharding, program.abstract_state),
  )
  program.run(restored, partitioner.put_batch(batch, 4))
  assert compiles('train_step') == 1


def test_running_steps_fetches_nothing_from_the_device(fetches):
  task = tiny_task.make_task(max_inflight_steps=1)
  partitioner = tiny_task.make_partitioner()
  program = programs.TrainProgram(task, partitioner)
  state = program.init_state()
  batch = tiny_task.make_batch(4)
  before = fetches()
  for _ in range(5):
    state, _ = program.run(state, partitioner.put_batch(batch, 4))
  assert fetches() == before
  assert int(state.step) == 5
  assert fetches() == before + 1  # this test does see a copy


def test_the_host_runs_ahead_by_no_more_than_it_may(monkeypatch):
  task = tiny_task.make_task(max_inflight_steps=3)
  partitioner = tiny_task.make_partitioner()
  program = programs.TrainProgram(task, partitioner)
  state = program.init_state()
  waited = []
  monkeypatch.setattr(
    type(state.step),
    'block_until_ready',
    lambda self: waited.append(int(self)),
  )
  batch = tiny_task.make_batch(4)
  for done in range(1, 7):
    state, _ = program.run(state, partitioner.put_batch(batch, 4))
    assert len(waited) == max(0, done - 3)
  assert waited == [1, 2, 3]


def test_norms_are_named_by_the_path_of_the_parameter():
  norms = programs.steps.parameter_norms(
    {'a': {'kernel': jnp.array([3.0, 4.0])}, 'b': jnp.zeros(2)}
  )
  assert {name: float(v) for name, v in norms.items()} == {
    'a/kernel': 5.0,
    'b': 0.0,
  }


def test_a_decode_output_that_is_not_one_row_an_example_is_refused():
  class Wrong(tiny_task.LinearTask):
    def decode(self, mdl_vars, batch, *, key):
      return {'total': batch['inputs'].sum()}

  base = tiny_task.make_task()
  task = Wrong(learner=base.learner, train=base.train)
  with pytest.raises(errors.ConfigError, match=r"'total' of shape \(\)"):
    programs.steps.decode_step(
      task,
      {},
      jax.tree.map(jnp.asarray, tiny_task.make_batch(4)),
      jax.random.key(0),
    )


def test_debugging_nans_names_the_operation_and_not_a_deleted_array():
  task = tiny_task.make_task()
  good = tiny_task.make_batch(4)
  with (
    jax.debug_nans(True),
    pytest.raises(FloatingPointError, match='nan'),
  ):
    run(task, [good, nan_batch(), good])


@pytest.mark.parametrize('row', [0, 1, 2, 7])
def test_a_nan_in_one_micro_batch_leaves_out_the_whole_update(row):
  task = tiny_task.make_task(
    on_nonfinite='skip', learner={'num_micro_batches': 4}
  )
  good, bad = tiny_task.make_batch(8), tiny_task.make_batch(8, seed=1)
  bad['inputs'][row, 2] = np.nan
  expected, _ = run(task, [good, good])
  state, outputs = run(task, [good, bad, good])
  np.testing.assert_array_equal(kernel(state), kernel(expected))
  assert [bool(o.is_finite) for o in outputs] == [True, False, True]
  # Not even what the three good parts have counted.
  assert float(state.mdl_vars['non_trainable']['seen']) == 16
  assert (int(state.step), int(state.extra['num_skipped'])) == (3, 1)
