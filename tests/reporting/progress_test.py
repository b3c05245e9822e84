import contextlib
import io
import os
import pty
import sys

import pytest
from absl import logging

from paxlike import reporting
from tests.fakes import clock as fake_clock


@pytest.fixture
def lines(monkeypatch) -> list[str]:
  said: list[str] = []
  monkeypatch.setattr(
    logging, 'info', lambda message, *args: said.append(message % args)
  )
  return said


def run(num_steps: int, step_s: float, **knobs) -> None:
  clock = fake_clock.FakeClock()
  with reporting.ProgressLine(
    num_steps=num_steps, stream=io.StringIO(), clock=clock, **knobs
  ) as line:
    for step in range(1, num_steps + 1):
      clock.advance_s(step_s)
      line.update(step, loss=2.5, last_checkpoint=step // 100 * 100)


@pytest.mark.parametrize('step_s', [0.001, 0.1, 1.0, 10.0])
def test_300_steps_are_few_lines_whatever_their_speed(lines, step_s):
  run(300, step_s)
  assert 2 <= len(lines) <= 40
  assert lines[-1].startswith('step 300/300')


def test_a_long_run_is_not_silent_for_more_than_five_minutes(lines):
  run(10_000_000 // 1000, 30.0)
  assert len(lines) == pytest.approx(10_000 * 30 / 300, rel=0.02)


def test_a_line_says_speed_tokens_time_left_and_checkpoint(lines):
  run(2000, 0.5, tokens_per_step=1000)
  middle = lines[len(lines) // 2]
  assert 'loss 2.5' in middle
  assert '2 steps/s' in middle
  assert '2,000 tokens/s' in middle
  assert ' left' in middle
  assert 'checkpoint' in middle


def test_the_compile_is_no_part_of_the_speed(lines):
  clock = fake_clock.FakeClock()
  line = reporting.ProgressLine(
    num_steps=100, stream=io.StringIO(), clock=clock
  )
  clock.advance_s(60.0)
  line.update(1)
  assert 'steps/s' not in line.text()
  for step in range(2, 12):
    clock.advance_s(1.0)
    line.update(step)
  line.close()
  assert '1 steps/s' in line.text()
  assert '1:29 left' in line.text()


def test_a_resumed_run_counts_its_own_steps_alone(lines):
  clock = fake_clock.FakeClock()
  line = reporting.ProgressLine(
    num_steps=1000, start_step=900, stream=io.StringIO(), clock=clock
  )
  for step in range(901, 921):
    clock.advance_s(1.0)
    line.update(step)
  line.close()
  assert 'step 920/1000' in line.text()
  assert '1 steps/s · 1:20 left' in line.text()


def test_a_loss_that_was_not_fetched_keeps_the_one_before(lines):
  line = reporting.ProgressLine(num_steps=9, stream=io.StringIO())
  line.update(1, loss=3.0, last_checkpoint=1)
  line.update(2)
  assert 'loss 3 ' in line.text()
  assert line.text().endswith('checkpoint 1')
  line.close()


def test_a_process_that_does_not_report_is_silent(lines):
  run(300, 1.0, enabled=False)
  assert lines == []


def read_all(descriptor: int) -> str:
  content = b''
  # Linux says the end of a terminal by an error.
  with contextlib.suppress(OSError), open(descriptor, 'rb', 0) as terminal:
    while part := terminal.read(4096):
      content += part
  return content.decode()


def test_on_a_terminal_the_line_is_live_and_the_log_stays_above():
  ours, theirs = pty.openpty()
  handler = logging.get_absl_handler().python_handler
  stream_before = handler.stream
  with os.fdopen(theirs, 'w') as terminal:
    clock = fake_clock.FakeClock()
    with reporting.ProgressLine(
      num_steps=10, stream=terminal, clock=clock
    ) as line:
      assert handler.stream is sys.stderr
      for step in range(1, 5):
        clock.advance_s(1.0)
        line.update(step, loss=0.5)
    assert handler.stream is stream_before
  drawn = read_all(ours)
  assert 'step 4/10' in drawn
  assert '\x1b[2K' in drawn  # Drawn over, not line after line.
