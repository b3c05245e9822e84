import json
import os
import socket
import threading

import pytest

from paxlike import reporting
from paxlike.core import errors
from tests.fakes import clock as fake_clock


def test_what_was_said_is_read_back_with_who_said_it_and_when(tmp_path):
  clock = fake_clock.FakeClock(1_700_000_000.5)
  reporting.write_status(
    str(tmp_path), 'train', state='failed', step=7, reason='NaN', clock=clock
  )
  assert reporting.read_status(str(tmp_path), 'train') == reporting.Status(
    state='failed',
    step=7,
    reason='NaN',
    pid=os.getpid(),
    host=socket.gethostname(),
    updated_s=1_700_000_000.5,
  )
  fields = json.loads((tmp_path / 'status/train.json').read_text())
  assert fields['state'] == 'failed'
  assert fields['step'] == 7


def test_a_job_that_never_spoke_has_no_status(tmp_path):
  assert reporting.read_status(str(tmp_path), 'train') is None


@pytest.mark.parametrize(
  ('state', 'is_over'),
  [('running', False), ('done', True), ('failed', True), ('preempted', True)],
)
def test_only_running_is_not_over(tmp_path, state, is_over):
  reporting.write_status(str(tmp_path), 'eval', state=state, step=0)
  status = reporting.read_status(str(tmp_path), 'eval')
  assert status is not None
  assert status.is_over == is_over


def test_a_state_that_does_not_exist_is_refused(tmp_path):
  with pytest.raises(ValueError, match="'finished'"):
    reporting.write_status(str(tmp_path), 'train', state='finished', step=0)


def test_a_field_of_a_later_version_is_passed_over(tmp_path):
  reporting.write_status(str(tmp_path), 'train', state='done', step=3)
  path = tmp_path / 'status/train.json'
  path.write_text(json.dumps({**json.loads(path.read_text()), 'mood': 'good'}))
  status = reporting.read_status(str(tmp_path), 'train')
  assert status is not None
  assert status.step == 3


def test_a_file_that_is_no_status_is_an_error_that_names_it(tmp_path):
  (tmp_path / 'status').mkdir()
  (tmp_path / 'status/train.json').write_text('{"state":')
  with pytest.raises(errors.ReportingError, match=r'status/train\.json'):
    reporting.read_status(str(tmp_path), 'train')


@pytest.mark.timeout(30)
def test_a_reader_never_sees_half_a_status(tmp_path):
  reporting.write_status(str(tmp_path), 'train', state='running', step=0)

  def write():
    for step in range(200):
      reporting.write_status(
        str(tmp_path), 'train', state='running', step=step, reason='x' * step
      )

  writer = threading.Thread(target=write)
  writer.start()
  steps = []
  while writer.is_alive():
    status = reporting.read_status(str(tmp_path), 'train')
    assert status is not None
    assert status.reason == 'x' * status.step
    steps.append(status.step)
  writer.join()
  assert steps == sorted(steps)
