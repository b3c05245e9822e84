"""One process reads a checkpoint slowly: the others wait, up to a deadline."""

import re

import pytest

from tests.multiprocess import harness, jobs

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]


def go_on(trained, job_log_dir, *flags):
  """Two steps more than `trained`, on two processes."""
  ended = jobs.run(
    'RestoreOnOne',
    'train',
    job_log_dir,
    2,
    '--set=NUM_TRAIN_STEPS=7',
    f'--restore_checkpoint_dir={trained}/checkpoints',
    *flags,
  )
  harness.assert_all_ended(ended)
  return ended


def test_a_reader_that_takes_20_s_is_waited_for(trained, tmp_path):
  ended = go_on(trained, tmp_path, '--set=checkpoint_p.timeout_s=60')
  assert [p.status for p in ended] == [0, 0], ended[1].output
  began_s = ended[0].said_s('now: restore')
  for process in ended:
    assert process.said_s('Step 5 restored from') - began_s >= 20.0
  assert (tmp_path / 'checkpoints/checkpoint_00000007').is_dir()


@pytest.mark.parametrize('reader', [0, 1])
def test_a_reader_that_outlasts_the_deadline_is_named(
  trained, tmp_path, reader
):
  ended = go_on(
    trained,
    tmp_path,
    f'--set=READER={reader}',
    '--set=READ_S=60.0',
    '--set=checkpoint_p.timeout_s=4',
  )
  began_s = ended[reader].said_s('now: restore')
  for process in ended:
    assert process.status == 1
    assert process.ended_s - began_s < 4.0 + 15.0
    text = re.sub(r'\s+', ' ', process.output)
    assert 'did not end within 4 s' in text
    assert f'1 of 2 processes did not come: {reader}.' in text
    # Where it is instead: its phase, and the line that it is in.
    assert 'phase restore' in text
    assert 'slow_jobs.py' in text
