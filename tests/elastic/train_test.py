"""The train loop as a worker's: when snapshots are taken, and of what."""

import threading

import pytest

from paxlike import elastic, runners, sync
from paxlike.elastic import _facts, _memory, snapshots
from tests.elastic import ends
from tests.fakes import tiny_task


@pytest.fixture
def trained(tmp_path, monkeypatch):
  """Trains 25 steps with a snapshot each 10; what was taken, and when."""
  memory = _memory.Memory(str(tmp_path / 'host'))
  taken = []
  take = snapshots.Taker.take

  def watched(taker, state, step, *, items, then):
    taken.append(
      (threading.current_thread(), step, int(state.step), items['input_state'])
    )
    return take(taker, state, step, items=items, then=then)

  monkeypatch.setattr(snapshots.Taker, 'take', watched)
  monkeypatch.setenv('PAXLIKE_AGENT', 'set')
  plan = _facts.Plan(generation=1, members=('a',), coordinator='127.0.0.1:9')
  with ends.worker_of(memory, plan) as (_, worker):
    monkeypatch.setattr(elastic.worker, '_worker', worker)
    with worker.running(sync.SoloWorld()):
      runners.train.train_and_evaluate_spmd_model(
        tiny_task.make_task(num_train_steps=25),
        tiny_task.make_input(),
        str(tmp_path / 'job'),
      )
  return memory, taken


def test_snapshots_are_taken_by_the_main_thread_between_steps(trained):
  _, taken = trained
  assert [step for _, step, _, _ in taken] == [10, 20]
  for thread, step, state_step, _ in taken:
    assert thread is threading.main_thread()
    assert state_step == step, 'the state is that of completed steps'


def test_a_snapshot_holds_where_its_data_go_on(trained):
  memory, taken = trained
  assert [state['position'] for *_, state in taken] == [10, 20]
  assert [piece.step for piece, _ in memory.pieces()] == [10, 20]


def test_a_worker_has_said_how_many_steps_are_done(trained):
  memory, _ = trained
  assert memory.completed_steps() == 25
