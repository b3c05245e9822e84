import collections
import dataclasses
import glob

import numpy as np
import pytest

from paxlike import checkpoint, reporting, tasks
from paxlike.core import errors, fs, metrics
from paxlike.runners import _decoding, _restore, decode, session, train
from tests.fakes import tiny_task
from tests.fakes import world as fake_world

NUM_EXAMPLES = 22


class PredictTask(tiny_task.LinearTask):
  """Decodes each example to its prediction.

  Attributes:
    dies_at: Example at which it dies while processing; None for never.
    settings: What outputs depend on.
  """

  dies_at = None
  settings = ''
  num_processed = 0

  @property
  def decode_settings(self):
    return self.settings

  def decode(self, mdl_vars, batch, *, key):
    return {'predicted': batch['inputs'] @ mdl_vars['params']['kernel']}

  def process_decode_out(self, source, outputs):
    pairs = []
    for row, example_id in enumerate(outputs['example_id']):
      if example_id == self.dies_at:
        raise RuntimeError('no more')
      self.num_processed += 1
      value = {
        'predicted': outputs['predicted'][row],
        'nothing': None,
        'ragged': [[1] * int(example_id % 3), 'text'],
      }
      pairs.append((source.key(int(example_id)), value))
    count = float(len(pairs))
    ids = np.asarray(outputs['example_id'], np.float64)
    mean = ids.mean() if count else 0.0
    return tasks.Decoded(
      metrics={'id': metrics.WeightedScalar(value=mean, weight=count)},
      pairs=pairs,
      statistics={
        'max_histogram': np.bincount(ids.astype(int) % 3, minlength=3)
      },
    )

  def derive_decoded(self, totals, statistics):
    count = totals['id'].weight
    share = statistics['max_histogram'][0] / count
    return {'thirds': metrics.WeightedScalar(value=share, weight=count)}


def make_task(**fields):
  made = tiny_task.make_task(
    num_train_steps=4,
    save_interval_steps=2,
    save_max_to_keep=None,
    follow_policy='all',
  )
  task = PredictTask(learner=made.learner, train=made.train)
  for name, value in fields.items():
    setattr(task, name, value)
  return task


def make_source(**knobs):
  return tiny_task.make_input(
    NUM_EXAMPLES, **{'name': 'test', 'is_training': False, **knobs}
  )


@pytest.fixture(name='trained')
def _trained(tmp_path):
  train.train_and_evaluate_spmd_model(
    make_task(), tiny_task.make_input(), str(tmp_path)
  )
  return tmp_path


def decode_in(directory, task=None, source=None, **options):
  options.setdefault('decode', reporting.DecodeParams(batches_per_commit=1))
  return decode.decode_once_spmd_model(
    task or make_task(), [source or make_source()], str(directory), **options
  )


def read(directory, step=4, name='test'):
  pattern = f'{directory}/decoder_out/{name}/decoder_out_{step}_*'
  return list(reporting.read_key_values(pattern))


def line_of(directory, step=4):
  lines = reporting.read_metrics(str(directory), 'decode_test_test')
  (line,) = [line for line in lines if line['step'] == step]
  return {k: v for k, v in line.items() if k != 'wall_time'}


KEYS = [str(i) for i in range(NUM_EXAMPLES)]


def test_every_example_is_written_once_in_order_with_its_metrics(trained):
  (result,) = decode_in(trained)
  pairs = read(trained)
  assert [key for key, _ in pairs] == KEYS
  assert pairs[2][1]['ragged'] == [[1, 1], 'text']
  assert pairs[2][1]['nothing'] is None
  line = line_of(trained)
  assert line['id'] == pytest.approx(np.mean(range(NUM_EXAMPLES)))
  assert line['thirds'] == pytest.approx(8 / 22)
  assert float(result.metrics['test']['id'].weight) == NUM_EXAMPLES


def test_outputs_are_the_same_on_two_runs_and_batch_sizes(trained):
  decode_in(trained)
  first = read(trained)
  decode_in(trained, source=make_source(batch_size=5))
  for (key, value), (other_key, other) in zip(
    first, read(trained), strict=True
  ):
    assert key == other_key
    assert value['predicted'] == pytest.approx(other['predicted'], rel=1e-5)


def test_an_error_in_processing_fails_the_job(trained):
  with pytest.raises(RuntimeError, match='no more'):
    decode_in(trained, make_task(dies_at=9))
  status = reporting.read_status(str(trained), 'decode')
  assert status.state == 'failed'
  assert 'no more' in status.reason
  assert not glob.glob(f'{trained}/decoder_out/test/*shard*')


def test_a_decode_that_died_goes_on_and_its_metrics_are_of_all(trained):
  decode_in(trained)
  whole, whole_line = read(trained), line_of(trained)
  task = make_task(dies_at=9)
  with pytest.raises(RuntimeError):
    decode_in(trained, task)
  task.dies_at = None
  task.num_processed = 0
  decode_in(trained, task)
  assert read(trained) == whole
  assert line_of(trained) == whole_line
  assert task.num_processed == NUM_EXAMPLES - 8


@pytest.mark.jax_in_threads
def test_it_goes_on_at_another_number_of_processes(trained):
  decode_in(trained)
  whole, whole_line = read(trained), line_of(trained)
  with pytest.raises(RuntimeError):
    decode_in(trained, make_task(dies_at=9))

  def go_on(world):
    task = make_task()
    job = session.build('decode', task, str(trained))
    job = dataclasses.replace(job, world=world)
    params = reporting.DecodeParams(batches_per_commit=1)
    decoder = _decoding.Decoder(job, [make_source()], params)
    with _restore.reader(job, job.checkpoint_dir) as manager:
      eval_vars = _restore.restore_step(job, manager, None)
    decoder.run(eval_vars, ['test'])
    return task.num_processed

  counts = fake_world.run(3, go_on, join_timeout_s=60.0)
  assert sum(counts) == NUM_EXAMPLES - 8
  assert read(trained) == whole
  assert line_of(trained) == pytest.approx(whole_line)


def test_other_settings_begin_anew(trained):
  with pytest.raises(RuntimeError):
    decode_in(trained, make_task(dies_at=9))
  task = make_task(settings='temperature 2')
  decode_in(trained, task)
  assert task.num_processed == NUM_EXAMPLES
  assert [key for key, _ in read(trained)] == KEYS


def test_several_steps_are_decoded_with_one_compilation(trained, compiles):
  results = decode_in(trained, restore_checkpoint_step=[2, 4])
  assert [result.step for result in results] == [2, 4]
  assert read(trained, 2) != read(trained, 4)
  assert compiles('decode_step') == 1


def test_a_step_that_is_asked_for_twice_is_decoded_once(trained):
  results = decode_in(trained, restore_checkpoint_step=[4, 2, 4])
  assert [result.step for result in results] == [4, 2]


def test_a_damaged_step_keeps_none_of_the_others_from_being_decoded(
  trained, caplog
):
  (data,) = trained.glob('checkpoints/checkpoint_00000002/*.data')
  with open(data, 'r+b') as file:
    file.write(b'\xff' * 64)
  with pytest.raises(errors.CheckpointDamagedError, match=str(data)):
    decode_in(trained, restore_checkpoint_step=[2, 4])
  assert len(read(trained, 4)) == NUM_EXAMPLES
  assert not list(trained.glob('decoder_out/test/decoder_out_2_*'))


def test_a_follower_decodes_each_checkpoint_once(trained):
  assert [r.step for r in decode_in(trained, follow=True)] == [0, 2, 4]
  task = make_task()
  assert decode_in(trained, task, follow=True) == []
  assert task.num_processed == 0
  for step in (0, 2, 4):
    counts = collections.Counter(key for key, _ in read(trained, step))
    assert counts == dict.fromkeys(KEYS, 1)


def test_a_follower_goes_on_with_a_decode_that_died(trained):
  with pytest.raises(RuntimeError):
    decode_in(trained, make_task(dies_at=9), follow=True)
  task = make_task()
  assert [r.step for r in decode_in(trained, task, follow=True)] == [0, 2, 4]
  assert task.num_processed == 3 * NUM_EXAMPLES - 8


def partial(directory):
  return sorted(
    path.rpartition('/')[2]
    for path in glob.glob(f'{directory}/decoder_out/test/*.partial')
  )


def test_what_was_half_decoded_of_a_step_that_vanished_is_dropped(trained):
  with pytest.raises(RuntimeError):
    decode_in(trained, make_task(dies_at=9), follow=True)
  assert partial(trained) == ['decoder_out_0.partial']
  fs.LOCAL.remove_tree(f'{trained}/checkpoints/checkpoint_00000000')
  assert [r.step for r in decode_in(trained, follow=True)] == [2, 4]
  assert partial(trained) == []


def test_what_was_half_decoded_of_a_step_that_is_there_is_kept(trained):
  with pytest.raises(RuntimeError):
    decode_in(trained, make_task(dies_at=9), restore_checkpoint_step=2)
  task = make_task()
  task.train = dataclasses.replace(task.train, follow_policy='latest')
  assert [r.step for r in decode_in(trained, task, follow=True)] == [4]
  assert partial(trained) == ['decoder_out_2.partial']
  task.num_processed = 0
  decode_in(trained, task, restore_checkpoint_step=2)
  assert task.num_processed == NUM_EXAMPLES - 8
  assert partial(trained) == []


def test_training_that_goes_back_drops_what_it_had_half_decoded_after(
  tmp_path,
):
  made = make_task()
  made.train = dataclasses.replace(
    made.train, decode_interval_steps=3, save_interval_steps=2
  )
  made.dies_at = 9
  knobs = {
    'decode_input_p': [make_source()],
    'decode': reporting.DecodeParams(batches_per_commit=1),
    'checkpoint_p': checkpoint.CheckpointConfig(save_after_error=False),
  }
  with pytest.raises(RuntimeError, match='no more'):
    train.train_and_evaluate_spmd_model(
      made, tiny_task.make_input(), str(tmp_path), **knobs
    )
  assert partial(tmp_path) == ['decoder_out_3.partial']
  made.dies_at = None
  made.num_processed = 0
  train.train_and_evaluate_spmd_model(
    made, tiny_task.make_input(), str(tmp_path), **knobs
  )
  # Step 3 is of another run than before: none of its outputs are taken over.
  assert made.num_processed == 2 * NUM_EXAMPLES
  assert partial(tmp_path) == []


@pytest.mark.jax_in_threads
@pytest.mark.parametrize('file_format', ['tfrecord', 'array_record', 'parquet'])
def test_a_decode_that_died_goes_on_in_any_format(trained, file_format):
  params = reporting.DecodeParams(batches_per_commit=1, format=file_format)
  with pytest.raises(RuntimeError):
    decode_in(trained, make_task(dies_at=9), decode=params)

  def go_on(world):
    task = make_task()
    job = session.build('decode', task, str(trained))
    job = dataclasses.replace(job, world=world)
    decoder = _decoding.Decoder(job, [make_source()], params)
    with _restore.reader(job, job.checkpoint_dir) as manager:
      eval_vars = _restore.restore_step(job, manager, None)
    decoder.run(eval_vars, ['test'])
    return task.num_processed

  assert sum(fake_world.run(2, go_on, join_timeout_s=60.0)) == NUM_EXAMPLES - 8
  shards = glob.glob(f'{trained}/decoder_out/test/*')
  assert len(shards) == 2
  assert all(path.endswith(file_format) for path in shards)
  assert [key for key, _ in read(trained)] == KEYS


def test_two_decodes_into_one_directory_leave_each_other_alone(trained):
  for name in ('a', 'b'):
    decode_in(trained, source=make_source(name=name), restore_checkpoint_step=2)
  decode_in(trained, source=make_source(name='a'))
  for name, step in (('a', 2), ('a', 4), ('b', 2)):
    assert [key for key, _ in read(trained, step, name)] == KEYS


def test_fresh_parameters_are_never_decoded_with_by_accident(tmp_path):
  with pytest.raises(errors.CheckpointNotFoundError):
    decode_in(tmp_path)
  (result,) = decode_in(tmp_path, allow_random_init=True)
  assert result.step == 0
  assert [key for key, _ in read(tmp_path, 0)] == KEYS


def test_keys_that_are_not_unique_are_an_error(trained):
  class SameKeys(type(make_source())):
    def key(self, example_id):
      return 'the same'

  source = SameKeys(
    name='test', batch_size=4, arrays=tiny_task.make_input(6).arrays
  )
  with pytest.raises(errors.ReportingError, match="'the same' came twice"):
    decode_in(trained, source=source)
