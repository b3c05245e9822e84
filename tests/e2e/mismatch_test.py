"""What a user sees who evaluates with another model than was trained."""

import pytest

from tests.e2e import program

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_the_eval_job_says_which_lines_of_the_config_were_changed(tmp_path):
  flags = ('--exp=DigitsMlp', f'--job_log_dir={tmp_path}')
  program.run_ok(*flags, '--mode=train', '--set=NUM_TRAIN_STEPS=2')
  done = program.run(
    *flags,
    '--mode=eval',
    '--set=NUM_TRAIN_STEPS=2',
    '--set=HIDDEN_DIMS=(32,)',
  )
  assert done.returncode == 2
  assert 'task_p.model.hidden_dims: (128,) -> (32,)' in done.stderr
  assert f'{tmp_path}/config/train.json' in done.stderr
  assert 'Traceback' not in done.stderr
