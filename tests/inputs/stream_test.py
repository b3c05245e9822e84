import json
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

from paxlike import inputs
from paxlike.core import errors


def make(num_examples: int = 64, **knobs) -> inputs.ArraysInput:
  arrays = {'inputs': np.arange(num_examples, dtype=np.float32)}
  return inputs.ArraysInput(
    **{
      'name': 'numbers',
      'batch_size': 4,
      'is_training': True,
      'arrays': arrays,
      **knobs,
    }
  )


class Broken(inputs.ArraysInput):
  """Fails at batch 7."""

  def read(self, position, rows):
    if position == 7:
      raise OSError('disk on fire')
    return super().read(position, rows)


class Slow(inputs.ArraysInput):
  """Waits in batch 1 until told to go on."""

  go_on = threading.Event()

  def read(self, position, rows):
    if position == 1:
      self.go_on.wait(timeout=60)
    return super().read(position, rows)


def ids_of(batches) -> list[list[int]]:
  return [batch['example_id'].tolist() for batch in batches]


def take(stream, count: int) -> list[list[int]]:
  return ids_of(next(stream) for _ in range(count))


@pytest.mark.parametrize('prefetch', [1, 2, 8])
def test_the_state_is_of_what_was_consumed(prefetch):
  source = make()
  with inputs.Stream(source, prefetch=prefetch) as stream:
    assert stream.state()['position'] == 0
    stream.peek()
    assert stream.state()['position'] == 0
    take(stream, 3)
    stream.peek()
    state = stream.state()
    expected = take(stream, 4)
  assert state == {'position': 3, 'fingerprint': source.fingerprint}
  position = inputs.check_state(make(), state)
  with inputs.Stream(make(), position=position, prefetch=prefetch) as resumed:
    assert take(resumed, 4) == expected


def test_a_peek_shows_the_next_batch_and_leaves_it():
  with inputs.Stream(make()) as stream:
    peeked = [stream.peek() for _ in range(2)]
    assert ids_of(peeked) == take(stream, 1) * 2


def test_three_resumes_give_the_batches_of_one_run():
  with inputs.Stream(make()) as stream:
    straight = take(stream, 9)
  parts, state = [], {'position': 0}
  for count in (3, 2, 4):
    with inputs.Stream(make(), position=state['position']) as stream:
      parts += take(stream, count)
      state = stream.state()
  assert parts == straight


_RESUME = """
import json, sys
from paxlike import inputs
source = inputs.SyntheticLmInput(
  name='lm', batch_size=4, seq_len=3, vocab_size=11, num_examples=9,
  is_training=True, seed=5)
state = json.loads(sys.argv[1])
position = inputs.check_state(source, state) if state else 0
with inputs.Stream(source, position=position) as stream:
  batches = [next(stream)['example_id'].tolist() for _ in range(int(sys.argv[2]))]
  print(json.dumps([batches, stream.state()]))
"""


def test_a_new_process_goes_on_where_the_old_one_was():
  def run(state, count):
    return json.loads(
      subprocess.check_output(
        [sys.executable, '-c', _RESUME, json.dumps(state), str(count)],
        timeout=60,
      )
    )

  first, state = run(None, 4)
  second, _ = run(state, 3)
  straight, _ = run(None, 7)
  assert first + second == straight


def test_a_new_stream_starts_at_the_first_batch():
  source = make(is_training=False, num_examples=10)
  passes = []
  for _ in range(2):
    with inputs.Stream(source) as stream:
      passes.append(ids_of(stream))
  assert passes[0] == passes[1]
  assert passes[0] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, -1, -1]]


def test_processes_end_an_evaluation_together():
  ends = []
  for rows in (range(3), range(3, 4)):
    with inputs.Stream(
      make(num_examples=17, is_training=False), rows=rows
    ) as stream:
      ends.append(len(list(stream)))
  assert ends == [5, 5]


@pytest.mark.timeout(20)
@pytest.mark.parametrize('prefetch', [1, 2, 8])
def test_an_exception_takes_the_place_of_the_batch_it_hit(prefetch):
  source = Broken(
    name='broken',
    batch_size=1,
    is_training=True,
    arrays={'inputs': np.zeros(64)},
  )
  with inputs.Stream(source, prefetch=prefetch) as stream:
    assert len(take(stream, 7)) == 7
    for _ in range(2):
      with pytest.raises(OSError, match='disk on fire'):
        next(stream)
    assert stream.state()['position'] == 7


@pytest.mark.timeout(20)
def test_an_exception_of_put_reaches_the_consumer():
  def put(batch):
    raise RuntimeError('device gone')

  with inputs.Stream(make(), put=put) as stream:
    with pytest.raises(RuntimeError, match='device gone'):
      next(stream)
    with pytest.raises(RuntimeError, match='device gone'):
      stream.peek()


@pytest.mark.timeout(20)
def test_an_index_error_of_a_bug_is_not_the_end_of_the_data():
  class Buggy(inputs.ArraysInput):
    def read(self, position, rows):
      return [][position]

  source = Buggy(name='buggy', batch_size=1, arrays={'inputs': np.zeros(3)})
  with inputs.Stream(source) as stream, pytest.raises(IndexError):
    list(stream)


def test_no_more_is_read_ahead_than_asked():
  positions = []
  read_3 = threading.Event()

  class Counting(inputs.ArraysInput):
    def read(self, position, rows):
      positions.append(position)
      if position == 2:
        read_3.set()
      return super().read(position, rows)

  source = Counting(
    name='counting',
    batch_size=1,
    is_training=True,
    arrays={'inputs': np.zeros(9)},
  )
  with inputs.Stream(source, prefetch=2) as stream:
    stream.peek()
    next(stream)
    assert read_3.wait(timeout=10)
  assert positions == [0, 1, 2]


def test_put_runs_on_the_reading_thread_and_gives_the_batches():
  threads = set()

  def put(batch):
    threads.add(threading.current_thread())
    return jax.device_put(batch)

  with inputs.Stream(make(), put=put) as stream:
    batch = next(stream)
  assert isinstance(batch['inputs'], jax.Array)
  assert threading.current_thread() not in threads


def test_batches_on_the_device_are_not_overwritten_by_later_ones():
  source = make()
  with inputs.Stream(source, put=jax.device_put) as stream:
    batches = [next(stream) for _ in range(12)]
  for position, batch in enumerate(batches):
    expected = source.read(position, range(4))
    np.testing.assert_array_equal(batch['inputs'], expected['inputs'])


def test_closing_ends_the_thread():
  stream = inputs.Stream(make())
  next(stream)
  stream.close()
  assert not stream._thread.is_alive()
  with pytest.raises(ValueError, match='closed'):
    next(stream)


@pytest.mark.timeout(60)
def test_closing_does_not_wait_for_ever_for_a_stuck_read(monkeypatch):
  monkeypatch.setattr('paxlike.inputs._stream._JOIN_TIMEOUT_S', 0.1)
  source = Slow(
    name='slow',
    batch_size=1,
    is_training=True,
    arrays={'inputs': np.zeros(9)},
  )
  stream = inputs.Stream(source)
  next(stream)
  stream.close()
  assert stream._thread.is_alive()
  Slow.go_on.set()
  stream._thread.join(timeout=30)
  assert not stream._thread.is_alive()


def test_nothing_to_peek_at_after_the_end_is_an_error():
  with inputs.Stream(make(num_examples=4, is_training=False)) as stream:
    next(stream)
    with pytest.raises(errors.InputError, match='position 1'):
      stream.peek()


def test_reading_nothing_ahead_is_refused():
  with pytest.raises(errors.ConfigError, match='prefetch is 0'):
    inputs.Stream(make(), prefetch=0)
