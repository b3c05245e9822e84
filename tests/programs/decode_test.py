import numpy as np
import pytest

from paxlike import programs
from tests.fakes import tiny_task


class Predicts(tiny_task.LinearTask):
  def decode(self, mdl_vars, batch, *, key):
    return {'predicted': batch['inputs'] @ mdl_vars['params']['kernel']}


MDL_VARS = {
  'params': {'kernel': np.array([0.5, -1.0, 2.0, 0.25], np.float32)},
  'non_trainable': {'seen': np.float32(0)},
}


class Prepares(Predicts):
  def prepare_decode(self, mdl_vars):
    return {'doubled': 2 * mdl_vars['params']['kernel']}

  def decode(self, mdl_vars, batch, *, key):
    assert 'params' in mdl_vars
    return {'predicted': batch['inputs'] @ mdl_vars['doubled']}


def make_program(num_devices, kind=Predicts):
  made = tiny_task.make_task()
  task = kind(learner=made.learner, train=made.train)
  return programs.DecodeProgram(task, tiny_task.make_partitioner(num_devices))


@pytest.mark.parametrize('num_devices', [1, 2, 4])
@pytest.mark.parametrize('batch_size', [1, 3, 4, 6])
def test_processes_get_each_row_once_in_the_order_of_the_input(
  batch_size, num_devices
):
  program = make_program(num_devices)
  for n in (1, 5, 12, 17):
    source = tiny_task.make_input(n, batch_size=batch_size, is_training=False)
    want = tiny_task.make_batch(n)['inputs'] @ MDL_VARS['params']['kernel']
    for process_count in (1, 2, 3):
      parts = [
        list(
          program.run(
            MDL_VARS,
            source,
            range(source.num_batches),
            process_index=index,
            process_count=process_count,
          )
        )
        for index in range(process_count)
      ]
      batches = list(zip(*parts, strict=True))
      ids = [
        row
        for batch in batches
        for _, rows in batch
        for row in rows['example_id']
      ]
      found = [
        row
        for batch in batches
        for _, rows in batch
        for row in rows['predicted']
      ]
      assert ids == list(range(n))
      np.testing.assert_allclose(found, want, rtol=1e-5)


def test_only_the_batches_asked_for_are_decoded():
  source = tiny_task.make_input(20, is_training=False)
  found = list(make_program(2).run(MDL_VARS, source, [0, 1, 4]))
  assert [position for position, _ in found] == [0, 1, 4]
  assert found[2][1]['example_id'].tolist() == [16, 17, 18, 19]


def test_one_compilation_for_all_batches(compiles):
  source = tiny_task.make_input(18, is_training=False)
  list(make_program(4).run(MDL_VARS, source, range(5)))
  assert compiles('decode_step') == 1


@pytest.mark.parametrize('num_devices', [1, 4])
def test_what_was_prepared_is_there_for_every_batch(num_devices, compiles):
  program = make_program(num_devices, Prepares)
  source = tiny_task.make_input(7, is_training=False)
  want = tiny_task.make_batch(7)['inputs'] @ MDL_VARS['params']['kernel']
  for scale in (1.0, 3.0):
    kernel = np.float32(scale) * MDL_VARS['params']['kernel']
    mdl_vars = {**MDL_VARS, 'params': {'kernel': kernel}}
    found = [
      row
      for _, rows in program.run(mdl_vars, source, range(source.num_batches))
      for row in rows['predicted']
    ]
    np.testing.assert_allclose(found, 2.0 * scale * want, rtol=1e-5)
  assert compiles('prepare_decode') == 1
  assert compiles('decode_step') == 1
