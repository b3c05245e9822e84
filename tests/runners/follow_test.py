import contextlib
import dataclasses
import errno
import glob
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from paxlike import checkpoint, reporting
from paxlike.core import errors, fs
from paxlike.runners import (
  _follow,
  _journal,
  _restore,
  _watch,
  session,
  train,
)
from tests.fakes import faulty_fs, tiny_task
from tests.fakes import world as fake_world

# What four steps of training leave: the state before the first one too.
STEPS = [0, 1, 2, 3, 4]


class ScriptedClock:
  """Time that passes in sleeps alone; something may happen in each.

  Attributes:
    slept_s: Seconds slept so far.
  """

  def __init__(self, *events):
    self.slept_s = 0.0
    self._events = list(events)

  def now_s(self):
    return time.time()

  def monotonic_s(self):
    return self.slept_s

  def sleep_s(self, duration_s):
    self.slept_s += duration_s
    if self._events:
      self._events.pop(0)()


def nothing():
  """An event that is none."""


def make_task(num_train_steps=4, **knobs):
  return tiny_task.make_task(
    num_train_steps=num_train_steps,
    **{
      'save_interval_steps': 1,
      'save_max_to_keep': None,
      'follow_policy': 'all',
      'follow_timeout_s': 100.0,
      **knobs,
    },
  )


def train_in(directory, num_train_steps=4, **knobs):
  train.train_and_evaluate_spmd_model(
    make_task(num_train_steps, **knobs),
    tiny_task.make_input(),
    str(directory),
  )


def say(directory, state, step=4, **fields):
  reporting.write_status(
    str(directory), 'train', state=state, step=step, **fields
  )


def say_of_a_dead_process(directory, step):
  """Training says 'running' in the name of a process that has ended."""
  say(directory, 'running', step)
  with subprocess.Popen([sys.executable, '-c', '']) as process:
    pass
  path = directory / 'status' / 'train.json'
  status = json.loads(path.read_text())
  path.write_text(json.dumps({**status, 'pid': process.pid}))


def write_line(directory, step, saved_s, name='test'):
  with reporting.SummaryWriter(
    str(directory),
    f'eval_test_{name}',
    start_step=None,
    one_line_a_step=True,
  ) as writer:
    writer.scalars(step, {'loss': 0.0}, facts={_journal.SAVED_S: saved_s})


def follow(directory, clock=None, *, world=None, **knobs):
  """Follows to the end, writing a line of metrics for each checkpoint."""
  job = session.build('eval', make_task(**knobs), str(directory))
  if world is not None:
    job = dataclasses.replace(job, world=world)
  journal = _journal.Journal(str(directory), 'eval_test', ['test'])
  taken = []
  for due in _follow.follow(job, journal, clock=clock or ScriptedClock()):
    step, saved_s = due.eval_vars.step, due.eval_vars.saved_s
    taken.append(step)
    if job.is_writer:
      write_line(directory, step, saved_s)
    journal.mark('test', step, saved_s)
  return taken


def damage(directory, step):
  (path,) = glob.glob(f'{directory}/checkpoints/*{step:08d}/*.data')
  with open(path, 'r+b') as file:
    file.write(b'\xff' * 64)


def test_every_checkpoint_is_taken_once_in_order(tmp_path):
  train_in(tmp_path)
  assert follow(tmp_path) == STEPS
  assert follow(tmp_path) == []


def test_the_policy_latest_takes_the_newest_alone(tmp_path):
  train_in(tmp_path)
  assert follow(tmp_path, follow_policy='latest') == [4]
  assert follow(tmp_path, follow_policy='latest') == []


def test_the_last_step_is_taken_though_off_the_interval(tmp_path):
  train_in(tmp_path, 5, save_interval_steps=3)
  assert follow(tmp_path, num_train_steps=5) == [0, 3, 5]


def test_a_follower_that_was_there_first_takes_what_comes(tmp_path):
  clock = ScriptedClock(nothing, nothing, lambda: train_in(tmp_path))
  assert follow(tmp_path, clock) == STEPS
  assert clock.slept_s <= 2.0


def test_a_preempted_training_is_waited_for(tmp_path):
  train_in(tmp_path, 2)
  say(tmp_path, 'preempted', 2)
  clock = ScriptedClock(*[nothing] * 60, lambda: train_in(tmp_path))
  assert follow(tmp_path, clock) == STEPS


def test_a_training_that_vanished_ends_the_follower_after_the_deadline(
  tmp_path,
):
  train_in(tmp_path, 2)
  say(tmp_path, 'running', 2)
  clock = ScriptedClock()
  with pytest.raises(errors.FollowedJobError, match='vanished without a word'):
    follow(tmp_path, clock)
  assert 100 <= clock.slept_s < 110
  assert follow_lines(tmp_path) == [0, 1, 2]


def test_a_training_whose_process_is_gone_is_waited_for_a_minute_alone(
  tmp_path, caplog
):
  train_in(tmp_path, 2)
  say_of_a_dead_process(tmp_path, 2)
  clock = ScriptedClock()
  caplog.set_level('INFO')
  with pytest.raises(errors.FollowedJobError, match='vanished without a word'):
    follow(tmp_path, clock, follow_timeout_s=900.0)
  assert 60 <= clock.slept_s < 70
  assert follow_lines(tmp_path) == [0, 1, 2]
  (line,) = (t for t in caplog.messages if 'is gone' in t)
  assert 'waiting 60 s, until ' in line


def test_no_wait_for_a_process_that_is_gone_is_longer_than_was_asked_for(
  tmp_path,
):
  train_in(tmp_path, 2)
  say_of_a_dead_process(tmp_path, 2)
  clock = ScriptedClock()
  with pytest.raises(errors.FollowedJobError, match='not changed for 3 s'):
    follow(tmp_path, clock, follow_timeout_s=3.0)
  assert 3 <= clock.slept_s < 5


def test_a_training_that_was_killed_and_started_again_is_followed_on(tmp_path):
  train_in(tmp_path, 2)
  say_of_a_dead_process(tmp_path, 2)
  clock = ScriptedClock(*[nothing] * 100, lambda: train_in(tmp_path))
  assert follow(tmp_path, clock) == STEPS


def test_steps_that_training_forgets_and_makes_again_are_taken_again(tmp_path):
  train_in(tmp_path)
  say(tmp_path, 'running', 4)

  def forget():
    directory = str(tmp_path / 'checkpoints')
    with checkpoint.CheckpointManager(directory) as manager:
      manager.forget_above(2)
      assert manager.steps() == [0, 1, 2]

  # The follower looks while they are gone, and after they have come back.
  clock = ScriptedClock(forget, nothing, lambda: train_in(tmp_path))
  assert follow(tmp_path, clock) == [*STEPS, 3, 4]
  assert follow_lines(tmp_path) == STEPS


def test_a_process_of_another_host_is_waited_for_as_long_as_was_asked_for(
  tmp_path,
):
  train_in(tmp_path, 2)
  say_of_a_dead_process(tmp_path, 2)
  path = tmp_path / 'status' / 'train.json'
  status = json.loads(path.read_text())
  path.write_text(json.dumps({**status, 'host': 'another'}))
  clock = ScriptedClock()
  with pytest.raises(errors.FollowedJobError, match='on another vanished'):
    follow(tmp_path, clock)
  assert 100 <= clock.slept_s < 110


def test_a_step_that_was_saved_since_the_last_word_is_the_one_it_stopped_at(
  tmp_path, caplog
):
  train_in(tmp_path, 3)
  caplog.set_level('INFO')
  say_of_a_dead_process(tmp_path, 1)
  with pytest.raises(errors.FollowedJobError, match='stopped at step 3'):
    follow(tmp_path)
  say(tmp_path, 'failed', 1, reason='NaN')
  with pytest.raises(errors.FollowedJobError, match='failed after step 3: NaN'):
    follow(tmp_path)
  assert any('failed at step 3' in text for text in caplog.messages)
  assert not any('step 1;' in text for text in caplog.messages)


def test_a_step_without_a_checkpoint_is_the_one_that_it_stopped_at(tmp_path):
  train_in(tmp_path, 2)
  say(tmp_path, 'failed', 3, reason='NaN')
  with pytest.raises(errors.FollowedJobError, match='failed after step 3: NaN'):
    follow(tmp_path)


def idle_lines(caplog):
  return [t for t in caplog.messages if 'nothing to do' in t]


def test_a_follower_that_finds_all_done_says_so(tmp_path, caplog):
  train_in(tmp_path)
  caplog.set_level('INFO')
  assert follow(tmp_path) == STEPS
  assert not idle_lines(caplog)
  assert follow(tmp_path) == []
  assert idle_lines(caplog) == [
    'Step 4 is evaluated already (metrics/eval_test_test.jsonl) and training '
    'is done: nothing to do. To do it again: --nofollow.'
  ]


def test_a_training_that_left_no_checkpoint_is_said_to_have_left_none(
  tmp_path, caplog
):
  say(tmp_path, 'done', 4)
  caplog.set_level('INFO')
  assert follow(tmp_path) == []
  (line,) = idle_lines(caplog)
  assert f'no checkpoint in {tmp_path}' in line


def follow_lines(directory):
  lines = reporting.read_metrics(str(directory), 'eval_test_test')
  return [line['step'] for line in lines]


def test_a_training_that_says_something_now_and_then_is_waited_for(tmp_path):
  def speak():
    say(tmp_path, 'running', 1)

  say(tmp_path, 'running', 1)
  # It speaks every 75 s and is done after 225.
  quiet = [nothing] * round(75 / _watch.LOCAL_POLL_S)
  clock = ScriptedClock(
    *quiet, speak, *quiet, speak, *quiet, lambda: train_in(tmp_path)
  )
  assert follow(tmp_path, clock) == STEPS


def test_a_directory_that_no_training_ever_wrote_to_says_what_to_do(tmp_path):
  with pytest.raises(errors.FollowedJobError, match='--nofollow'):
    follow(tmp_path)


def test_a_training_that_failed_ends_the_follower_when_all_is_taken(tmp_path):
  train_in(tmp_path, 2)
  say(tmp_path, 'running', 2)
  clock = ScriptedClock(nothing, lambda: say(tmp_path, 'failed', reason='NaN'))
  with pytest.raises(errors.FollowedJobError, match=r'failed after .* NaN'):
    follow(tmp_path, clock)
  assert follow_lines(tmp_path) == [0, 1, 2]
  assert clock.slept_s <= 2.0


def test_a_failure_of_yesterday_is_not_that_of_the_run_just_starting(tmp_path):
  train_in(tmp_path, 2)
  say(tmp_path, 'failed', 2, reason='yesterday')
  clock = ScriptedClock(*[nothing] * 10, lambda: train_in(tmp_path))
  assert follow(tmp_path, clock) == STEPS


def test_a_damaged_checkpoint_is_passed_over(tmp_path, caplog):
  train_in(tmp_path)
  damage(tmp_path, 2)
  assert follow(tmp_path) == [0, 1, 3, 4]
  assert any(
    'Step 2 is DAMAGED' in record.getMessage() for record in caplog.records
  )


def test_a_damaged_last_checkpoint_is_an_error_once_all_else_is_taken(tmp_path):
  train_in(tmp_path)
  damage(tmp_path, 4)
  with pytest.raises(errors.FollowedJobError, match=r'step 4 .* is damaged'):
    follow(tmp_path)
  assert follow_lines(tmp_path) == [0, 1, 2, 3]


def test_a_read_that_fails_once_is_tried_again(tmp_path, monkeypatch):
  train_in(tmp_path)
  restore = checkpoint.CheckpointManager.restore
  failures = [errors.CheckpointError('connection reset')] * 2

  def flaky(manager, target=None, *, step=None, **options):
    if step == 2 and failures:
      raise failures.pop()
    return restore(manager, target, step=step, **options)

  monkeypatch.setattr(checkpoint.CheckpointManager, 'restore', flaky)
  assert follow(tmp_path) == STEPS
  assert not failures


@pytest.mark.parametrize(
  ('method', 'name'),
  [
    ('list_dir', 'checkpoints'),
    ('read_bytes', 'checkpoints.pb'),
    ('read_bytes', 'train.json'),
    ('read_bytes', 'MANIFEST'),
    ('exists', 'MANIFEST'),
    ('open_read', '.data'),
    ('read_bytes', '.index'),
    ('read_into', '.data'),
  ],
)
def test_an_input_error_of_the_disk_that_passes_is_survived(
  tmp_path, monkeypatch, method, name
):
  train_in(tmp_path)
  hits = []

  def picks(number, call):
    if call.method != method or not call.path.endswith(name):
      return False
    hits.append(number)
    # The first one and a later one.
    return len(hits) in (1, 4)

  faulty = faulty_fs.FaultyFileSystem(
    faulty_fs.FailWhen(picks, lambda: OSError(errno.EIO, 'Input/output error'))
  )
  monkeypatch.setattr(fs, 'for_path', lambda path: faulty)
  assert follow(tmp_path) == STEPS
  assert hits


def test_a_disk_that_cannot_be_read_for_long_ends_the_job(
  tmp_path, monkeypatch
):
  train_in(tmp_path)
  directory = str(tmp_path / 'checkpoints')
  is_broken = []

  def picks(number, call):
    return bool(is_broken) and call.path == directory

  faulty = faulty_fs.FaultyFileSystem(
    faulty_fs.FailWhen(picks, lambda: OSError(errno.EIO, 'Input/output error'))
  )
  monkeypatch.setattr(fs, 'for_path', lambda path: faulty)
  clock = ScriptedClock()
  follower = take(tmp_path, clock=clock)
  for _ in STEPS:
    next(follower)
  is_broken.append(True)
  with pytest.raises(errors.CheckpointError, match='cannot be read for 3'):
    next(follower)
  assert clock.slept_s < 40.0


def test_a_read_that_always_fails_ends_the_job_and_is_not_marked(
  tmp_path, monkeypatch
):
  train_in(tmp_path)
  restore = checkpoint.CheckpointManager.restore

  def broken(manager, target=None, *, step=None, **options):
    if step == 2:
      raise errors.CheckpointError('connection reset')
    return restore(manager, target, step=step, **options)

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint.CheckpointManager, 'restore', broken)
    with pytest.raises(errors.CheckpointError, match='connection reset'):
      follow(tmp_path)
  assert follow(tmp_path) == [2, 3, 4]


def test_a_step_that_is_swept_before_it_is_read_is_left_out(
  tmp_path, monkeypatch
):
  train_in(tmp_path)
  restore = checkpoint.CheckpointManager.restore

  def late(manager, target=None, *, step=None, **options):
    if step == 2:
      fs.LOCAL.remove_tree(f'{tmp_path}/checkpoints/checkpoint_00000002')
    return restore(manager, target, step=step, **options)

  monkeypatch.setattr(checkpoint.CheckpointManager, 'restore', late)
  assert follow(tmp_path) == [0, 1, 3, 4]


def test_reading_needs_no_permission_to_write_there(tmp_path, monkeypatch):
  train_in(tmp_path)
  refused = []
  write_new = fs.LocalFileSystem.write_new

  def guarded(self, path, data):
    if f'{os.sep}checkpoints{os.sep}' in path:
      refused.append(path)
      raise PermissionError(path)
    write_new(self, path, data)

  monkeypatch.setattr(fs.LocalFileSystem, 'write_new', guarded)
  before = sorted(os.walk(tmp_path / 'checkpoints'))
  assert follow(tmp_path) == STEPS
  assert sorted(os.walk(tmp_path / 'checkpoints')) == before
  assert all('lease_' in path or 'follower_' in path for path in refused)


def test_results_of_training_that_was_started_over_are_not_taken_for_new(
  tmp_path,
):
  train_in(tmp_path)
  assert follow(tmp_path) == STEPS
  fs.LOCAL.remove_tree(f'{tmp_path}/checkpoints')
  train_in(tmp_path, 3)
  assert follow(tmp_path, num_train_steps=3) == [0, 1, 2, 3]


def test_processes_follow_the_same_steps(tmp_path):
  train_in(tmp_path)
  taken = fake_world.run(
    2, lambda world: follow(tmp_path, world=world), join_timeout_s=60.0
  )
  assert taken == [STEPS] * 2


def test_a_process_whose_listing_lags_takes_what_process_0_has_seen(
  tmp_path, monkeypatch
):
  train_in(tmp_path)
  list_dir = fs.LocalFileSystem.list_dir
  late = threading.local()

  def lagging(self, path):
    names = list_dir(self, path)
    if getattr(late, 'is_it', False) and path.endswith('checkpoints'):
      return [name for name in names if not name.endswith(('2', '3', '4'))]
    return names

  monkeypatch.setattr(fs.LocalFileSystem, 'list_dir', lagging)

  def job(world):
    late.is_it = world.process_index == 1
    world.gather('lag', b'')
    return follow(tmp_path, world=world)

  taken = fake_world.run(2, job, join_timeout_s=60.0)
  assert taken == [STEPS] * 2


def test_a_follower_that_is_asked_to_stop_ends_as_preempted(tmp_path):
  job = session.build('eval', make_task(), str(tmp_path))
  journal = _journal.Journal(str(tmp_path), 'eval_test', ['test'])
  world = type(job.world)()
  job = dataclasses.replace(job, world=world)
  clock = ScriptedClock(nothing, lambda: world.stop.ask('SIGTERM'))
  with pytest.raises(errors.PreemptedError):
    list(_follow.follow(job, journal, clock=clock))
  assert clock.slept_s <= 2.0


def train_on_while_reading(monkeypatch, directory):
  """At the first data file that is opened, training goes on to step 6.

  It keeps one checkpoint, so all but the last and those leased are swept.
  """
  open_read = fs.LocalFileSystem.open_read
  hits = []

  def opened(self, path):
    if not hits and path.endswith('.data'):
      hits.append(path)
      train_in(directory, 6, save_max_to_keep=1)
    return open_read(self, path)

  monkeypatch.setattr(fs.LocalFileSystem, 'open_read', opened)
  return hits


def test_a_step_being_read_outlives_the_sweep(tmp_path, monkeypatch):
  train_in(tmp_path, 2, save_max_to_keep=1)
  # Training itself restores first, unhooked.
  say(tmp_path, 'running', 2)
  job = session.build('eval', make_task(6), str(tmp_path))
  with _restore.reader(job, job.checkpoint_dir) as manager:
    before = _restore.restore_step(job, manager, 2).mdl_vars
  hits = train_on_while_reading(monkeypatch, tmp_path)
  found = list(take(tmp_path, num_train_steps=6))
  assert hits
  steps = [step for step, _ in found]
  assert (steps[0], steps[-1]) == (2, 6)
  np.testing.assert_array_equal(
    found[0][1]['params']['kernel'], before['params']['kernel']
  )


def test_without_a_lease_a_step_that_is_swept_is_left_out(
  tmp_path, monkeypatch
):
  train_in(tmp_path, 2, save_max_to_keep=1)
  say(tmp_path, 'running', 2)
  write_new = fs.LocalFileSystem.write_new

  def guarded(self, path, data):
    if f'{os.sep}lease_' in path or f'{os.sep}.follower_' in path:
      raise PermissionError(path)
    write_new(self, path, data)

  monkeypatch.setattr(fs.LocalFileSystem, 'write_new', guarded)
  hits = train_on_while_reading(monkeypatch, tmp_path)
  assert follow(tmp_path, num_train_steps=6) == [6]
  assert hits


def wish(directory):
  """What the follower holds, as the trainer reads it; None if nothing."""
  paths = glob.glob(f'{directory}/checkpoints/follower_eval_*')
  return json.loads(pathlib.Path(*paths).read_bytes()) if paths else None


def test_what_comes_during_the_work_is_held_and_taken_in_order(tmp_path):
  keep_one = {'save_max_to_keep': 1}
  train_in(tmp_path, 2, **keep_one)
  say(tmp_path, 'running', 2)
  taken = []
  for step, _ in take(tmp_path, num_train_steps=5):
    taken.append(step)
    if step == 2:
      # At once, with no look in between.
      for newer in (3, 4, 5):
        train_in(tmp_path, newer, **keep_one)
      say(tmp_path, 'done', 5)
  assert taken == [2, 3, 4, 5]
  assert wish(tmp_path) is None


def test_what_comes_while_nothing_is_due_is_held_as_well(tmp_path):
  keep_one = {'save_max_to_keep': 1}
  train_in(tmp_path, 1, **keep_one)
  say(tmp_path, 'running', 1)

  def train_on():
    assert wish(tmp_path)['after_step'] == 1
    for newer in (2, 3):
      train_in(tmp_path, newer, **keep_one)
    say(tmp_path, 'done', 3)

  clock = ScriptedClock(nothing, train_on)
  assert follow(tmp_path, clock, num_train_steps=3) == [1, 2, 3]


def test_no_more_steps_are_held_than_was_asked_for(tmp_path):
  keep_one = {'save_max_to_keep': 1}
  train_in(tmp_path, 2, **keep_one)
  say(tmp_path, 'running', 2)
  taken = []
  for step, _ in take(tmp_path, num_train_steps=7, follow_max_held=2):
    taken.append(step)
    if step == 2:
      for newer in range(3, 8):
        train_in(tmp_path, newer, **keep_one)
      say(tmp_path, 'done', 7)
  # The one at work and the next were held; the newest is always there.
  assert taken == [2, 3, 7]


def test_a_step_that_goes_while_others_are_before_it_is_told(tmp_path, caplog):
  train_in(tmp_path)
  with caplog.at_level('WARNING'):
    for step, _ in take(tmp_path, follow_max_held=2):
      if step == 0:
        fs.LOCAL.remove_tree(f'{tmp_path}/checkpoints/checkpoint_00000003')
  pattern = 'Step 3 was swept before it could be taken: [23] others waited'
  assert re.search(pattern, caplog.text)
  assert 'follow_max_held' in caplog.text
  assert caplog.text.count('was swept') == 1


def test_a_step_at_work_on_which_the_follower_died_is_there_when_it_is_back(
  tmp_path,
):
  train_in(tmp_path, 2, save_max_to_keep=1)
  say(tmp_path, 'running', 2)
  dying = take(tmp_path, num_train_steps=4)
  assert next(dying)[0] == 2
  # It ends before it has marked the step.
  dying.close()
  for step in (3, 4):
    train_in(tmp_path, step, save_max_to_keep=1)
  assert follow(tmp_path) == [2, 3, 4]


def test_the_policy_latest_holds_nothing_back_while_it_works(tmp_path):
  train_in(tmp_path, 2, save_max_to_keep=1)
  for _ in take(tmp_path, num_train_steps=2, follow_policy='latest'):
    assert wish(tmp_path) is None


def take(directory, clock=None, **knobs):
  """Steps and variables of a whole following."""
  job = session.build('eval', make_task(**knobs), str(directory))
  journal = _journal.Journal(str(directory), 'eval_test', ['test'])
  follower = _follow.follow(job, journal, clock=clock or ScriptedClock())
  with contextlib.closing(follower):
    for due in follower:
      yield due.eval_vars.step, due.eval_vars.mdl_vars
      journal.mark('test', due.eval_vars.step, due.eval_vars.saved_s)
