"""Where the time went: every second once, and causes that a person knows."""

import pytest

from paxlike import reporting
from paxlike.cli import report
from paxlike.core import errors
from tests.fakes import clock as fake_clock


def _write(job_log_dir, *events):
  log = reporting.GoodputLog(str(job_log_dir))
  for event in events:
    log.event(event)
  log.close()


def _time(time, step, generation=0, first_step=0, **totals_s):
  return {
    'time': time,
    'event': 'time',
    'generation': generation,
    'step': step,
    'first_step': first_step,
    'totals_s': {k.replace('steps', ''): v for k, v in totals_s.items()},
  }


_ONE_FAULT = (
  {'time': 0.0, 'event': 'host joined', 'generation': 0},
  {'time': 10.0, 'event': 'formed', 'generation': 1, 'n': 3},
  _time(12.0, 1, 1, steps=1.0, compile=1.0),
  _time(60.0, 40, 1, steps=40.0, compile=5.0, save=2.0, input=3.0),
  {'time': 60.0, 'event': 'fault', 'generation': 1, 'what': 'host1 died'},
  {
    'time': 61.0,
    'event': 'formed',
    'generation': 1,
    'n': 2,
    'steps_lost': 10,
  },
  {
    'time': 62.5,
    'event': 'first step',
    'generation': 2,
    'since_detected_s': 2.5,
  },
  _time(100.0, 60, 2, 30, steps=30.0, restore=1.0, **{'eval kjv': 5.0}),
)


def test_the_causes_add_up_to_the_wall_time(tmp_path):
  _write(tmp_path, *_ONE_FAULT)
  found = reporting.goodput(str(tmp_path))
  assert found.wall_s == 100.0
  assert sum(found.seconds.values()) == pytest.approx(100.0)


def test_steps_that_were_done_again_are_not_useful(tmp_path):
  _write(tmp_path, *_ONE_FAULT)
  found = reporting.goodput(str(tmp_path))
  assert found.seconds['steps done again'] == pytest.approx(10.0)
  assert found.seconds['useful steps'] == pytest.approx(60.0)
  assert found.fraction == pytest.approx(0.6)


def test_steps_done_again_from_a_checkpoint_are_not_useful_either(tmp_path):
  events = [{**event} for event in _ONE_FAULT]
  (formed,) = [event for event in events if 'steps_lost' in event]
  known, formed['steps_lost'] = formed['steps_lost'], None
  assert known == 10
  _write(tmp_path, *events)
  found = reporting.goodput(str(tmp_path))
  assert found.seconds['steps done again'] == pytest.approx(10.0)


def test_a_recovery_from_a_checkpoint_tells_how_many_steps_it_lost(tmp_path):
  events = [{**event} for event in _ONE_FAULT]
  for event in events:
    if 'steps_lost' in event:
      event['steps_lost'] = None  # no snapshot was whole
    if event['event'] == 'fault':
      event['step'] = 42  # more than was told with the last times
  _write(tmp_path, *events)
  found = reporting.goodput(str(tmp_path))
  assert found.recoveries[0].steps_lost == 12
  assert '12 steps lost' in found.text()


def test_steps_lost_are_known_from_the_first_step_on(tmp_path):
  events = [{**event} for event in _ONE_FAULT[:-1]]
  for event in events:
    if 'steps_lost' in event:
      event['steps_lost'] = None
  events[-1]['step'] = 31
  _write(tmp_path, *events)
  assert reporting.goodput(str(tmp_path)).recoveries[0].steps_lost == 10
  _write(tmp_path / 'forming', *events[:-1])
  (forming,) = reporting.goodput(str(tmp_path / 'forming')).recoveries
  assert forming.steps_lost is None, 'nobody knows yet'


def test_a_recovery_tells_why_with_how_many_and_how_long(tmp_path):
  _write(tmp_path, *_ONE_FAULT)
  (recovery,) = reporting.goodput(str(tmp_path)).recoveries
  assert recovery.why == 'host1 died'
  assert recovery.num_hosts == 2
  assert recovery.steps_lost == 10
  assert recovery.duration_s == 2.5


def test_a_lost_host_is_the_reason_whatever_the_survivors_say(tmp_path):
  lost = {'time': 60.5, 'event': 'host lost', 'agent': 'host1', 'how': 'x'}
  events = sorted((*_ONE_FAULT, lost), key=lambda event: event['time'])
  _write(tmp_path, *events)
  (recovery,) = reporting.goodput(str(tmp_path)).recoveries
  assert recovery.why == 'host1 was lost: x'


def test_a_long_reason_takes_one_line(tmp_path):
  what = 'UNKNOWN: all-reduce failed\n' * 50
  events = [
    {**event, 'what': what} if event['event'] == 'fault' else event
    for event in _ONE_FAULT
  ]
  _write(tmp_path, *events)
  lines = reporting.goodput(str(tmp_path)).text().splitlines()
  (line,) = [line for line in lines if 'UNKNOWN' in line]
  assert len(line) < 160


def test_a_job_that_was_started_twice_counts_both_runs(tmp_path):
  for run, begin in ((1.0, 0.0), (2.0, 50.0)):
    _write(
      tmp_path,
      {'time': begin, 'event': 'start', 'run': run},
      {
        'time': begin + 40.0,
        'event': 'end',
        'run': run,
        'step': 10,
        'totals_s': {'': 30.0, 'compile': 10.0},
      },
    )
  found = reporting.goodput(str(tmp_path))
  assert found.seconds['useful steps'] == 60.0
  assert found.seconds['compiling'] == 20.0
  assert found.seconds['not running'] == 10.0
  assert found.ending == 'ended after step 10'


def test_a_torn_last_line_is_left_out(tmp_path):
  _write(tmp_path, *_ONE_FAULT)
  with open(tmp_path / 'status' / 'goodput.jsonl', 'ab') as file:
    file.write(b'{"time": 1e9, "eve')
  assert reporting.goodput(str(tmp_path)).wall_s == 100.0


def test_a_directory_without_events_is_wrong_use(tmp_path):
  with pytest.raises(errors.UsageError, match='has no events'):
    reporting.goodput(str(tmp_path))


def test_the_report_shows_a_bar_for_each_cause(tmp_path, capsys):
  _write(tmp_path, *_ONE_FAULT)
  assert report.main([str(tmp_path)]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == 'goodput 60.0% of 100.0 s'
  (useful,) = [line for line in lines if 'useful steps' in line]
  assert useful.endswith('█' * 24)
  assert any('host1 died' in line for line in lines)


def test_only_an_elastic_job_is_said_to_form(tmp_path):
  plain, elastic = tmp_path / 'plain', tmp_path / 'elastic'
  _write(plain, {'time': 0.0, 'event': 'start', 'run': 1.0}, _time(90.0, 3))
  _write(elastic, *_ONE_FAULT)
  assert 'forming' not in reporting.goodput(str(plain)).text()
  assert 'forming, and not running' in reporting.goodput(str(elastic)).text()


def test_a_killed_job_is_not_said_to_have_ended(tmp_path):
  _write(
    tmp_path,
    {'time': 0.0, 'event': 'start', 'run': 1.0},
    _time(90.0, 812, steps=90.0),
  )
  assert reporting.goodput(str(tmp_path)).text().splitlines()[-1] == (
    'no end was told: it runs, or was killed; last heard of after step 812, '
    '1970-01-01 00:01:30 UTC'
  )


def _ending_beside_status(job_log_dir, *events):
  """How a job ended of which the status says so at second 70."""
  _write(job_log_dir, *events)
  reporting.write_status(
    str(job_log_dir),
    'train',
    state='failed',
    step=9,
    reason='PeerFailedError: Process 0 ended without saying why',
    clock=fake_clock.FakeClock(start_s=70.0),
  )
  return reporting.goodput(str(job_log_dir)).ending


_START = {'time': 0.0, 'event': 'start', 'run': 1.0}


def test_an_end_that_another_process_told_is_told(tmp_path):
  assert _ending_beside_status(tmp_path, _START, _time(60.0, 8)) == (
    'ended after step 9: PeerFailedError: Process 0 ended without saying why'
  )


def test_a_failure_is_told_with_its_reason(tmp_path):
  end = _time(69.0, 9) | {'event': 'end'}
  assert _ending_beside_status(tmp_path, _START, end) == (
    'ended after step 9: PeerFailedError: Process 0 ended without saying why'
  )


def test_the_failure_of_an_earlier_run_is_not_that_of_this_one(tmp_path):
  again = {'time': 80.0, 'event': 'start', 'run': 81.0}
  told = _ending_beside_status(tmp_path, _START, again, _time(90.0, 12))
  assert told.startswith('no end was told')


def test_the_end_of_an_elastic_job_is_told_with_its_reason(tmp_path):
  end = {'time': 101.0, 'event': 'end', 'reason': 'all steps are done'}
  _write(tmp_path, *_ONE_FAULT, end, _time(102.0, 60, 2))
  last = reporting.goodput(str(tmp_path)).text().splitlines()[-1]
  assert last == 'ended after step 60: all steps are done'


def test_what_took_no_time_is_left_out_and_the_longest_comes_first(tmp_path):
  _write(
    tmp_path,
    {'time': 0.0, 'event': 'start', 'run': 1.0},
    _time(90.0, 3, steps=2.0, save=0.01, input=30.0, compile=58.0),
  )
  lines = reporting.goodput(str(tmp_path)).text().splitlines()
  assert [line.split('  ')[1] for line in lines[1:-1]] == [
    'useful steps',
    'compiling',
    'waiting for input',
  ]


def test_the_report_is_json_for_programs(tmp_path, capsys):
  import json

  _write(tmp_path, *_ONE_FAULT)
  assert report.main([str(tmp_path), '--json']) == 0
  told = json.loads(capsys.readouterr().out)
  assert told['goodput'] == pytest.approx(0.6)
  assert told['recoveries'][0]['steps_lost'] == 10


def test_a_disk_that_cannot_be_written_ends_nothing(tmp_path):
  (tmp_path / 'status').write_text('a file in the way')
  log = reporting.GoodputLog(str(tmp_path))
  log.event({'event': 'start'})
  log.close()
  assert (tmp_path / 'status').read_text() == 'a file in the way'
