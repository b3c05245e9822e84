import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest

from paxlike import reporting
from paxlike.core import errors
from paxlike.reporting import _metrics_log
from tests.fakes import clock as fake_clock
from tests.fakes import disks
from tests.reporting import events


def write(directory, steps, *, start_step: int | None = 0) -> None:
  with reporting.SummaryWriter(
    str(directory), 'train', start_step=start_step
  ) as writer:
    for step in steps:
      writer.scalars(step, {'loss': 1 / (step + 1), 'learning_rate': 0.1})


def metric_steps(directory) -> list[int]:
  return [
    line['step'] for line in reporting.read_metrics(str(directory), 'train')
  ]


def event_steps(directory) -> list[int]:
  return [event.step for event in events.read_purged(directory, 'train')]


def test_scalars_are_an_event_and_a_line(tmp_path):
  clock = fake_clock.FakeClock(1_700_000_000.25)
  with reporting.SummaryWriter(str(tmp_path), 'train', clock=clock) as writer:
    writer.scalars(3, {'loss': np.float32(0.5), 'grad/norm': 2})
  assert (tmp_path / 'metrics/train.jsonl').read_text() == (
    '{"step": 3, "wall_time": 1700000000.25, "loss": 0.5, "grad/norm": 2}\n'
  )
  (event,) = events.read_purged(tmp_path, 'train')
  assert event.step == 3
  assert event.wall_time == 1700000000.25
  values = {value.tag: value.simple_value for value in event.summary.value}
  assert values == {'loss': 0.5, 'grad/norm': 2.0}


def test_an_event_file_begins_with_its_version(tmp_path):
  write(tmp_path, [1])
  (path,) = events.paths(tmp_path, 'train')
  assert events.read_file(path)[0].file_version == 'brain.Event:2'
  assert path.name.startswith('events.out.tfevents.')


def test_numbers_that_are_not_finite_are_strict_json_and_come_back(tmp_path):
  values = {'a': math.nan, 'b': math.inf, 'c': -math.inf}
  with reporting.SummaryWriter(str(tmp_path), 'train') as writer:
    writer.scalars(1, values)

  def refuse(constant):
    raise AssertionError(f'{constant} is no JSON')

  text = (tmp_path / 'metrics/train.jsonl').read_text()
  line = json.loads(text, parse_constant=refuse)
  assert (line['a'], line['b'], line['c']) == ('NaN', 'Infinity', '-Infinity')
  (read,) = reporting.read_metrics(str(tmp_path), 'train')
  assert math.isnan(read['a'])
  assert (read['b'], read['c']) == (math.inf, -math.inf)
  (event,) = events.read_purged(tmp_path, 'train')
  assert math.isnan(event.summary.value[0].simple_value)


@pytest.mark.parametrize('resumed_at', [1, 100, 149, 150])
def test_a_resume_says_each_step_once(tmp_path, resumed_at):
  write(tmp_path, range(1, 151))
  write(tmp_path, range(resumed_at + 1, 201), start_step=resumed_at)
  assert metric_steps(tmp_path) == list(range(1, 201))
  assert event_steps(tmp_path) == list(range(1, 201))


def test_a_resume_that_says_nothing_still_drops_what_is_undone(tmp_path):
  write(tmp_path, range(1, 151))
  write(tmp_path, [], start_step=100)
  assert metric_steps(tmp_path)[-1] == 100
  assert event_steps(tmp_path)[-1] == 100


def test_a_start_from_nothing_drops_all(tmp_path):
  write(tmp_path, range(5))
  write(tmp_path, range(3))
  assert metric_steps(tmp_path) == event_steps(tmp_path) == [0, 1, 2]


def test_without_a_start_step_everything_stays(tmp_path):
  write(tmp_path, [200])
  write(tmp_path, [100], start_step=None)
  assert metric_steps(tmp_path) == event_steps(tmp_path) == [200, 100]


def test_file_names_are_unique_and_in_order_at_one_instant(tmp_path):
  clock = fake_clock.FakeClock()
  for start in range(12):
    with reporting.SummaryWriter(
      str(tmp_path), 'train', start_step=start, clock=clock
    ) as writer:
      writer.scalars(start + 1, {'start': start})
  assert len(events.paths(tmp_path, 'train')) == 12
  assert event_steps(tmp_path) == list(range(1, 13))


def test_a_clock_that_went_back_does_not_change_the_order(tmp_path):
  clock = fake_clock.FakeClock()
  for steps, start in ((range(1, 9), 0), (range(5, 7), 4)):
    with reporting.SummaryWriter(
      str(tmp_path), 'train', start_step=start, clock=clock
    ) as writer:
      for step in steps:
        writer.scalars(step, {'loss': 0.0})
    clock.set_wall_s(clock.now_s() - 3600)
  assert event_steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_process_that_does_not_report_makes_no_file(tmp_path):
  with reporting.SummaryWriter(str(tmp_path), 'train', enabled=False) as writer:
    writer.scalars(1, {'loss': 1.0})
    writer.text(1, 'note', 'x')
    writer.flush()
  assert list(tmp_path.iterdir()) == []


def test_what_was_flushed_is_in_the_files(tmp_path):
  with reporting.SummaryWriter(str(tmp_path), 'train') as writer:
    for step in range(1, 4):
      writer.scalars(step, {'loss': 1.0})
      writer.flush()
      assert metric_steps(tmp_path) == list(range(1, step + 1))
      assert event_steps(tmp_path) == list(range(1, step + 1))


_CHATTERBOX = """
import sys
from paxlike import reporting
writer = reporting.SummaryWriter(sys.argv[1], 'train')
for step in range(1, 10**9):
  writer.scalars(step, {'loss': 0.5, 'learning_rate': 0.1})
  if step == 2000:
    writer.flush()
    print('said', flush=True)
  if step > 2000 and step % 100 == 0:
    writer.flush()
"""


@pytest.mark.timeout(60)
def test_a_killed_writer_loses_nothing_it_flushed_and_its_tail_is_left_alone(
  tmp_path,
):
  child = subprocess.Popen(
    [sys.executable, '-c', _CHATTERBOX, str(tmp_path)], stdout=subprocess.PIPE
  )
  assert child.stdout is not None
  assert child.stdout.readline() == b'said\n'
  os.kill(child.pid, signal.SIGKILL)
  child.wait(timeout=30)
  child.stdout.close()
  (torn,) = events.paths(tmp_path, 'train')
  before = torn.read_bytes()
  write(tmp_path, range(1001, 1011), start_step=1000)
  assert torn.read_bytes() == before
  assert len(events.paths(tmp_path, 'train')) == 2
  assert event_steps(tmp_path) == list(range(1, 1011))
  assert metric_steps(tmp_path) == list(range(1, 1011))


def test_a_torn_last_line_is_dropped_and_a_torn_record_tolerated(tmp_path):
  write(tmp_path, [1, 2, 3])
  metrics = tmp_path / 'metrics/train.jsonl'
  metrics.write_bytes(metrics.read_bytes()[:-10])
  (path,) = events.paths(tmp_path, 'train')
  path.write_bytes(path.read_bytes()[:-3])
  assert metric_steps(tmp_path) == event_steps(tmp_path) == [1, 2]
  write(tmp_path, [4], start_step=None)
  assert metric_steps(tmp_path) == event_steps(tmp_path) == [1, 2, 4]


def test_a_damaged_record_is_not_taken_for_a_torn_one(tmp_path):
  write(tmp_path, [1, 2, 3])
  (path,) = events.paths(tmp_path, 'train')
  content = bytearray(path.read_bytes())
  content[70] ^= 1
  path.write_bytes(content)
  with pytest.raises(errors.ReportingError, match='checksum'):
    event_steps(tmp_path)


class FullDisk:
  """A file that takes no more."""

  def write(self, data):
    raise OSError(28, 'No space left on device')

  def flush(self):
    pass

  def close(self):
    pass

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    self.close()


@pytest.mark.timeout(30)
@pytest.mark.skipif(os.geteuid() != 0, reason='only root may mount')
def test_a_failed_write_is_raised_at_the_next_call(tmp_path):
  with disks.mounted(tmp_path / 'small', size='64k') as mount:
    writer = reporting.SummaryWriter(str(mount), 'train')

    def fill():
      for step in range(1, 100_000):
        writer.scalars(step, {'loss': 0.0})

    with pytest.raises(errors.ReportingError, match='No space left'):
      fill()
    with pytest.raises(errors.ReportingError):
      writer.flush()
    writer.close()


@pytest.mark.timeout(30)
def test_a_failure_that_nobody_saw_is_raised_on_close(tmp_path, monkeypatch):
  monkeypatch.setattr(
    'paxlike.reporting._summaries._open_files',
    lambda *args, **knobs: (FullDisk(), FullDisk()),
  )
  writer = reporting.SummaryWriter(str(tmp_path), 'train')
  writer.scalars(1, {'loss': 0.0})
  with pytest.raises(errors.ReportingError, match='No space left'):
    writer.close()


def test_a_closed_writer_refuses_to_write(tmp_path):
  writer = reporting.SummaryWriter(str(tmp_path), 'train')
  writer.close()
  writer.close()
  with pytest.raises(ValueError, match='closed'):
    writer.scalars(1, {'loss': 0.0})


def test_writing_happens_on_a_thread_of_its_own(tmp_path, monkeypatch):
  threads = set()
  encode = _metrics_log.encode

  def spy(*args):
    threads.add(threading.current_thread())
    return encode(*args)

  monkeypatch.setattr(_metrics_log, 'encode', spy)
  write(tmp_path, [1, 2])
  assert threads
  assert threading.current_thread() not in threads


def test_texts_histograms_and_images_are_as_tensorboard_wants_them(tmp_path):
  buffer = np.array([1.0, 2.0, 2.0, np.nan, np.inf])
  with reporting.SummaryWriter(str(tmp_path), 'train') as writer:
    writer.text(1, 'config', '# Model')
    writer.histogram(2, 'weights', buffer)
    buffer[:] = 7
    writer.image(3, 'sample', np.array([[0.0, 0.5, 2.0]]))
  text, histogram, image = events.read_purged(tmp_path, 'train')
  assert text.summary.value[0].metadata.plugin_data.plugin_name == 'text'
  assert text.summary.value[0].tensor.string_val == [b'# Model']
  histo = histogram.summary.value[0].histo
  assert (histo.num, histo.min, histo.max, histo.sum) == (3, 1, 2, 5)
  assert sum(histo.bucket) == 3
  assert len(histo.bucket) == len(histo.bucket_limit)
  proto = image.summary.value[0].image
  assert (proto.height, proto.width, proto.colorspace) == (1, 3, 1)
  assert decode_png_rows(proto.encoded_image_string) == b'\x00\x00\x80\xff'


def decode_png_rows(png: bytes) -> bytes:
  place, data = 8, b''
  while place < len(png):
    (length,) = struct.unpack('>I', png[place : place + 4])
    if png[place + 4 : place + 8] == b'IDAT':
      data += png[place + 8 : place + 8 + length]
    place += 12 + length
  return zlib.decompress(data)


@pytest.mark.parametrize(
  'values', [[], [np.nan], [5.0], [1.0, 1.0 + 1e-16], [1.0, 1.0 + 2.3e-16]]
)
def test_a_histogram_of_next_to_nothing_is_no_failure(tmp_path, values):
  with reporting.SummaryWriter(str(tmp_path), 'train') as writer:
    writer.histogram(1, 'h', values)
  (event,) = events.read_purged(tmp_path, 'train')
  finite = np.isfinite(np.array(values, np.float64)).sum()
  assert sum(event.summary.value[0].histo.bucket) == finite


def test_an_image_of_a_wrong_shape_is_named(tmp_path):
  writer = reporting.SummaryWriter(str(tmp_path), 'train')
  with pytest.raises(ValueError, match=r"'bad'.*\(2, 2, 5\)"):
    writer.image(1, 'bad', np.zeros((2, 2, 5)))
  writer.close()


def test_reporting_imports_neither_tensorflow_nor_jax_nor_rich(tmp_path):
  code = (
    'import sys; from paxlike import reporting\n'
    'with reporting.SummaryWriter(sys.argv[1], "train") as writer:\n'
    '  writer.scalars(1, {"loss": 1.0}); writer.histogram(1, "h", [1.0])\n'
    'with reporting.ProgressLine(num_steps=3) as line: line.update(1)\n'
    'reporting.write_status(sys.argv[1], "train", state="done", step=1)\n'
    'print({"tensorflow", "jax", "flax", "rich"} & set(sys.modules))'
  )
  output = subprocess.check_output(
    [sys.executable, '-c', code, str(tmp_path)], timeout=60, text=True
  )
  assert output.strip() == 'set()'


def test_metrics_of_a_run_that_reported_nothing_are_empty(tmp_path):
  assert reporting.read_metrics(str(tmp_path), 'train') == []


def test_a_line_takes_the_place_of_the_one_of_its_step(tmp_path):
  for values in ({5: 1.0, 10: 2.0}, {5: 3.0}, {15: 4.0}):
    with reporting.SummaryWriter(
      str(tmp_path), 'eval', start_step=None, one_line_a_step=True
    ) as writer:
      for step, loss in values.items():
        writer.scalars(step, {'loss': loss}, facts={'of': 'a checkpoint'})
  lines = reporting.read_metrics(str(tmp_path), 'eval')
  assert [(line['step'], line['loss']) for line in lines] == [
    (5, 3.0),
    (10, 2.0),
    (15, 4.0),
  ]
  assert all(line['of'] == 'a checkpoint' for line in lines)
