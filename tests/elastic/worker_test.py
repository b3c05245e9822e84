"""What a worker tells its agent, and in which order it does things."""

import dataclasses
import json
import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest

from paxlike import checkpoint, sync
from paxlike.core import errors
from paxlike.elastic import _facts, _memory, snapshots, worker
from tests.chaos import harness
from tests.elastic import ends, states


@pytest.fixture
def memory(tmp_path):
  return _memory.Memory(str(tmp_path / 'host'))


_PLAN = _facts.Plan(generation=1, members=('a',), coordinator='127.0.0.1:5000')


@pytest.fixture
def agent_and_worker(memory):
  """The agent's end of the connection, and the only worker of a job."""
  with ends.worker_of(memory, _PLAN) as made:
    yield made


@pytest.fixture
def with_buddy(memory):
  """The same, as one of two hosts: its snapshots are copied to the other."""
  plan = dataclasses.replace(
    _PLAN, members=('a', 'b'), buddies=('127.0.0.1:8', '127.0.0.1:9')
  )
  with ends.worker_of(memory, plan) as made:
    yield made


def _next(agent, kind):
  while True:
    message, _ = agent.receive()
    if message['kind'] == kind:
      return message


def _state(step):
  return {'step': jnp.int32(step)}


def test_a_snapshot_is_taken_at_its_interval_only(agent_and_worker, memory):
  _, made = agent_and_worker
  with made.running(sync.SoloWorld()):
    made.begin(_state(0), 0)
    for step in range(1, 32):
      made.after_step(_state(step), step, {})
  assert [piece.step for piece, _ in memory.pieces()] == [10, 20, 30]


def test_a_step_counts_as_done_only_after_its_snapshot(
  agent_and_worker, memory, monkeypatch
):
  _, made = agent_and_worker
  with made.running(sync.SoloWorld()):
    made.begin(_state(0), 0)
    made.after_step(_state(9), 9, {})
    monkeypatch.setattr(made._taker, 'take', _killed)
    with pytest.raises(KeyboardInterrupt):
      made.after_step(_state(10), 10, {})
  assert memory.completed_steps() == 9


def test_the_loop_goes_on_while_a_snapshot_is_made_whole_but_counts_no_step(
  agent_and_worker, memory, monkeypatch
):
  agent, made = agent_and_worker
  may_go_on = states.write_late(monkeypatch)
  with made.running(sync.SoloWorld()):
    made.begin(_state(0), 0)
    made.after_step(_state(9), 9, {})
    made.after_step(_state(10), 10, {})
    assert memory.completed_steps() == 9
    thread = threading.Thread(target=made.after_step, args=(_state(11), 11, {}))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive(), 'nor does a later step count before it'
    assert memory.completed_steps() == 9
    may_go_on.set()
    thread.join(10.0)
    assert memory.completed_steps() == 11
  assert [piece.step for piece, _ in memory.pieces()] == [10]
  assert _next(agent, 'snapshot')['step'] == 10


def test_a_snapshot_that_fails_in_the_background_ends_the_worker(
  agent_and_worker, memory, monkeypatch
):
  _, made = agent_and_worker

  def full(*args, **kwargs):
    raise OSError('no space left')

  monkeypatch.setattr(checkpoint.pieces.Copy, 'write', full)
  with made.running(sync.SoloWorld()):
    made.begin(_state(0), 0)
    made.after_step(_state(10), 10, {})
    with pytest.raises(OSError, match='no space left'):
      made.after_step(_state(11), 11, {})
  assert memory.completed_steps() == 0


def test_a_snapshot_waits_until_the_one_before_it_is_copied(with_buddy, memory):
  agent, made = with_buddy
  taken = []
  with made.running(sync.SoloWorld()):
    made.begin(_state(0), 0)

    def train():
      for step in (10, 11, 20, 21):
        made.after_step(_state(step), step, {})
        taken.append(step)

    thread = threading.Thread(target=train)
    thread.start()
    assert _next(agent, 'snapshot')['step'] == 10
    thread.join(0.5)
    assert taken == [10, 11], 'steps go on, the next snapshot does not'
    made.hear({'kind': 'copied', 'step': 0})
    thread.join(0.1)
    assert taken == [10, 11], 'that was an earlier one'
    made.hear({'kind': 'copied', 'step': 10})
    thread.join(10.0)
    assert taken == [10, 11, 20, 21]


def test_without_a_buddy_no_snapshot_waits(agent_and_worker, memory):
  _, made = agent_and_worker
  with made.running(sync.SoloWorld()):
    made.begin(_state(0), 0)
    for step in (10, 20, 30):
      made.after_step(_state(step), step, {})
  assert len(memory.pieces()) == 3


def test_room_for_snapshots_is_looked_for_before_the_first_step(
  agent_and_worker, memory, monkeypatch
):
  _, made = agent_and_worker
  monkeypatch.setattr(_memory, 'budget_bytes', lambda *args, **kwargs: 10)
  with (
    pytest.raises(errors.ConfigError, match='Snapshots need'),
    made.running(sync.SoloWorld()),
  ):
    made.begin(_state(0), 0)
  assert memory.completed_steps() == -1


def _killed(*args, **kwargs):
  raise KeyboardInterrupt


def test_a_change_of_hosts_stops_with_a_snapshot_of_that_step(
  agent_and_worker, memory
):
  agent, made = agent_and_worker
  world = sync.SoloWorld()
  with made.running(world):
    made.begin(_state(0), 0)
    made.hear({'wish': 'drain', 'reason': 'host b joins'})
    assert world.stop.poll()
    with pytest.raises(worker.DrainedError) as caught:
      made.stop(_state(13), 13, {'position': 13})
  made.tell_end(caught.value)
  assert [piece.step for piece, _ in memory.pieces()] == [13]
  assert _next(agent, 'end')['end'] == _facts.End.DRAINED


def test_a_request_that_comes_before_the_world_is_not_lost(agent_and_worker):
  _, made = agent_and_worker
  made.hear({'wish': 'drain', 'reason': 'host b joins'})
  world = sync.SoloWorld()
  with made.running(world):
    assert world.stop.poll()


def test_a_stop_of_the_job_is_left_to_the_train_loop(agent_and_worker, memory):
  _, made = agent_and_worker
  world = sync.SoloWorld()
  with made.running(world):
    made.hear({'wish': 'preempt', 'reason': 'asked to stop'})
    assert world.stop.poll()
    made.stop(_state(13), 13, {})
  assert memory.pieces() == []


def test_how_it_ends_is_told_once(agent_and_worker):
  agent, made = agent_and_worker
  made.tell_end(errors.NonFiniteLossError('NaN'))
  made.tell_end(None)
  message = _next(agent, 'end')
  assert (message['end'], message['exit_status']) == (_facts.End.FATAL, 1)
  assert 'NaN' in message['text']


@pytest.mark.parametrize(
  ('error', 'end'),
  [
    (None, 'finished'),
    (errors.PreemptedError('x'), 'preempted'),
    (worker.DrainedError('x'), 'drained'),
    (snapshots.UnreadableError('x'), 'damaged'),
    (errors.NonFiniteLossError('x'), 'fatal'),
    (errors.ConfigError('x'), 'fatal'),
    (errors.SaveError('x'), 'fatal'),
    (errors.PeerFailedError('x'), 'broken'),
    (errors.BarrierTimeoutError('x'), 'broken'),
    (worker.HostCountError('x'), 'broken'),
    (jax.errors.JaxRuntimeError('Connection reset by peer'), 'broken'),
    (RuntimeError('x'), 'crashed'),
    (OSError('x'), 'crashed'),
  ],
)
def test_errors_are_told_apart_by_their_class(error, end):
  assert worker._end_of(error) == end


def test_a_save_that_lost_a_peer_is_no_fault_of_the_disk():
  error = errors.SaveError('x')
  error.__cause__ = errors.BarrierTimeoutError('y')
  assert worker._end_of(error) == 'broken'


def test_an_illegal_number_of_hosts_is_told_with_the_legal_ones(
  agent_and_worker,
):
  agent, made = agent_and_worker
  with pytest.raises(worker.HostCountError) as caught:
    made.check_hosts((2, 4))
  made.tell_end(caught.value)
  assert _next(agent, 'end')['legal_hosts'] == [2, 4]


# --- what is loaded


def _loaded(code: str) -> list[str]:
  """Modules that are loaded after some code has run in a new process."""
  done = subprocess.run(
    [
      sys.executable,
      '-c',
      f'{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))',
    ],
    cwd=harness.ROOT,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=True,
    timeout=120,
  )
  return json.loads(done.stdout.splitlines()[-1])


def test_a_plain_run_loads_nothing_of_this_room(tmp_path):
  modules = _loaded(
    'from paxlike import runners\n'
    'from tests.fakes import tiny_task\n'
    'runners.train.train_and_evaluate_spmd_model(\n'
    '  tiny_task.make_task(num_train_steps=2), tiny_task.make_input(),\n'
    f'  {str(tmp_path)!r})'
  )
  assert 'paxlike.runners.train' in modules
  assert [m for m in modules if m.startswith('paxlike.elastic')] == []


def test_agents_and_lighthouses_load_no_array_library():
  modules = _loaded(
    'from paxlike import elastic, reporting\n'
    'from paxlike.cli import agent, lighthouse, _launch_elastic\n'
    'elastic.agent, elastic.lighthouse, elastic.local\n'
    'reporting.write_status, reporting.GoodputLog'
  )
  assert 'paxlike.elastic.agent' in modules
  assert not {'jax', 'flax', 'optax'} & set(modules)
