"""Phase, step and pace of one process."""

import pytest

from paxlike import sync
from tests.fakes import clock as fake_clock


@pytest.fixture
def clock():
  return fake_clock.FakeClock()


@pytest.fixture
def progress(clock):
  return sync.Progress(clock=clock)


def test_the_innermost_phase_counts(progress):
  with progress.phase('train'):
    with progress.phase('save'):
      assert progress.mark().phase == 'save'
    assert progress.mark().phase == 'train'
  assert progress.mark().phase == ''


def test_no_step_is_due_before_the_first_one(progress, clock):
  clock.advance_s(1_000.0)
  assert not progress.mark().is_timed


@pytest.mark.parametrize(
  'phase', ['compile', 'eval', 'decode', 'save', 'restore']
)
def test_no_step_is_due_while_something_long_goes_on(progress, clock, phase):
  progress.step(1)
  with progress.phase('train'), progress.phase(phase):
    assert not progress.mark().is_timed
    clock.advance_s(1_000.0)
  assert progress.mark().is_timed
  assert progress.mark().idle_s == 0.0


def test_waiting_for_input_counts_as_no_step(progress, clock):
  progress.step(1)
  with progress.phase('input'):
    clock.advance_s(50.0)
    assert progress.mark().is_timed
  assert progress.mark().idle_s == 50.0


def test_the_median_leaves_out_steps_that_saved_or_compiled(progress, clock):
  with progress.phase('compile'):
    clock.advance_s(600.0)
  progress.step(1)
  for step in range(2, 5):
    clock.advance_s(2.0)
    progress.step(step)
  with progress.phase('save'):
    clock.advance_s(300.0)
  clock.advance_s(1.0)
  progress.step(5)
  clock.advance_s(4.0)
  progress.step(6)
  assert progress.mark().median_step_s == 2.0


def test_time_is_charged_to_the_innermost_phase(progress, clock):
  clock.advance_s(1.0)
  with progress.phase('save'):
    clock.advance_s(2.0)
    with progress.phase('input'):
      clock.advance_s(4.0)
    clock.advance_s(8.0)
  assert progress.totals_s() == {'': 1.0, 'save': 10.0, 'input': 4.0}


def test_a_step_that_stands_still_is_no_time_of_steps(progress, clock):
  for step in range(4):
    clock.advance_s(0.5)
    progress.step(step)
  clock.advance_s(60.5)
  assert progress.totals_s() == {'': 2.5, 'stall': 60.0}
  progress.step(4)  # it went on
  clock.advance_s(0.5)
  progress.step(5)
  assert progress.totals_s() == {'': 3.0, 'stall': 60.0}


def test_slow_steps_do_not_stand_still(progress, clock):
  for step in range(4):
    clock.advance_s(100.0)
    progress.step(step)
  clock.advance_s(300.0)
  assert progress.totals_s() == {'': 700.0}


def test_an_evaluation_of_a_named_input_is_untimed(progress):
  progress.step(1)
  with progress.phase('eval kjv'):
    assert not progress.mark().is_timed
  assert progress.mark().is_timed


def test_an_error_is_placed_where_it_was_raised(progress):
  progress.step(3)
  try:
    with progress.phase('train'), progress.phase('input'):
      raise ValueError('boom')
  except ValueError as caught:
    error = caught
  progress.step(4)
  assert progress.place_of(error) == 'step 3, phase input'
  assert progress.place_of(KeyError()) == 'step 4, phase none'


def test_an_error_is_placed_where_its_cause_was_raised(progress):
  def save():
    try:
      with progress.phase('save'):
        raise OSError('full')
    except OSError as cause:
      raise RuntimeError('not saved') from cause

  with pytest.raises(RuntimeError) as caught:
    save()
  assert progress.place_of(caught.value) == 'phase save'


def test_steps_and_programs_are_counted_together(progress):
  progress.tick()
  progress.step(1)
  assert progress.mark().ticks == 2


def test_a_batch_is_due_in_an_evaluation_that_has_begun(progress, clock):
  progress.step(7)
  with progress.phase('eval kjv'), progress.batches() as tell:
    clock.advance_s(50.0)  # the first batch, with all that is opened for it
    assert not progress.mark().is_timed
    tell()
    clock.advance_s(2.0)
    mark = progress.mark()
    assert (mark.is_timed, mark.due, mark.idle_s) == (True, 'batch', 2.0)
    assert str(mark) == 'step 7, phase eval kjv, batch 1'
  assert progress.mark().due == 'step'
  assert progress.mark().idle_s == 0.0


def test_batches_have_a_median_of_their_own_by_phase(progress, clock):
  for _ in range(2):
    with progress.phase('eval kjv'), progress.batches() as tell:
      clock.advance_s(30.0)
      tell()
      with progress.phase('compile'):
        clock.advance_s(600.0)
      for _ in range(3):
        clock.advance_s(4.0)
        tell()
  with progress.phase('eval kjv'), progress.batches():
    assert progress.mark().is_timed
    assert progress.mark().median_step_s == 4.0
  with progress.phase('decode kjv'), progress.batches():
    assert not progress.mark().is_timed
  assert progress.mark().median_step_s == 0.0


def test_compiling_between_batches_is_not_timed(progress):
  with progress.phase('eval kjv'), progress.batches() as tell:
    tell()
    with progress.phase('compile'):
      assert not progress.mark().is_timed
    assert progress.mark().is_timed


def test_the_end_of_an_evaluation_is_not_timed(progress):
  with progress.phase('eval kjv'):
    with progress.batches() as tell:
      tell()
    assert not progress.mark().is_timed
