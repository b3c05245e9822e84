"""Starting again with other values, and starting what cannot be started."""

import pytest

from paxlike import reporting
from tests.e2e import program

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def train(job_log_dir, *more):
  return program.run(
    '--exp=DigitsMlp', '--mode=train', f'--job_log_dir={job_log_dir}', *more
  )


def test_a_value_that_was_changed_is_told_and_training_goes_on(tmp_path):
  assert train(tmp_path, '--set=NUM_TRAIN_STEPS=2').returncode == 0
  done = train(tmp_path, '--set=NUM_TRAIN_STEPS=4', '--set=LEARNING_RATE=0.25')
  assert done.returncode == 0, done.stderr
  (line,) = [
    line for line in done.stderr.splitlines() if 'The config is not' in line
  ]
  assert f'kept as {tmp_path}/config/train.1.txt' in line
  assert 'task_p.train.num_train_steps: 2 -> 4' in line
  assert '-> 0.25' in line
  assert (tmp_path / 'config' / 'train.1.json').exists()
  again = train(tmp_path, '--set=NUM_TRAIN_STEPS=4', '--set=LEARNING_RATE=0.25')
  assert again.returncode == 0
  assert 'The config is not' not in again.stderr


def test_a_model_that_was_changed_is_told_with_the_mismatch_and_changes_nothing(
  tmp_path,
):
  assert train(tmp_path, '--set=NUM_TRAIN_STEPS=2').returncode == 0
  files = sorted(tmp_path.rglob('*'))
  config = (tmp_path / 'config' / 'train.txt').read_text()
  status = reporting.read_status(str(tmp_path), 'train')
  done = train(tmp_path, '--set=NUM_TRAIN_STEPS=2', '--set=HIDDEN_DIMS=(32,)')
  assert done.returncode == 2
  assert done.stderr.count('hidden_dims: (128,) -> (32,)') == 1
  assert 'does not fit' in done.stderr
  assert 'Traceback' not in done.stderr
  assert sorted(tmp_path.rglob('*')) == files
  assert (tmp_path / 'config' / 'train.txt').read_text() == config
  found = reporting.read_status(str(tmp_path), 'train')
  assert (found.state, found.step) == (status.state, status.step)


@pytest.mark.parametrize(
  'wrong',
  [
    ('--set=mesh_p.data=7',),
    ('--restore_checkpoint_step=7',),
    ('--restore_checkpoint_dir=/no/such/place',),
    ('--set=task_p.learner.num_micro_batches=5',),
    ('--set=train_input_p.batch_size=-1',),
  ],
)
def test_wrong_use_of_a_new_directory_makes_none(tmp_path, wrong):
  done = train(tmp_path / 'new', '--set=NUM_TRAIN_STEPS=2', *wrong)
  assert done.returncode == 2, done.stderr
  assert 'Traceback' not in done.stderr
  assert not (tmp_path / 'new').exists()


def test_a_checkpoint_of_another_model_makes_no_job(tmp_path):
  assert train(tmp_path / 'old', '--set=NUM_TRAIN_STEPS=2').returncode == 0
  done = train(
    tmp_path / 'new',
    '--set=NUM_TRAIN_STEPS=2',
    '--set=HIDDEN_DIMS=(32,)',
    f'--restore_checkpoint_dir={tmp_path}/old/checkpoints',
  )
  assert done.returncode == 2, done.stderr
  assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize('mode', ['eval', 'decode'])
def test_wrong_use_beside_a_training_leaves_no_word_of_the_job(tmp_path, mode):
  assert train(tmp_path, '--set=NUM_TRAIN_STEPS=2').returncode == 0
  before = sorted(tmp_path.rglob('*'))
  for wrong in ('--set=mesh_p.data=7', '--restore_checkpoint_step=7'):
    done = program.run(
      '--exp=DigitsMlp', f'--mode={mode}', f'--job_log_dir={tmp_path}', wrong
    )
    assert done.returncode == 2, done.stderr
    assert sorted(tmp_path.rglob('*')) == before
