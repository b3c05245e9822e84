"""Which snapshot a generation goes on from."""

from paxlike.elastic import _plans
from tests.elastic import hosts as fakes


def _chosen(agents, without=frozenset()):
  sources = _plans.choose_snapshot(agents, without=set(without))
  return [(s.piece.step, s.piece.process, s.address) for s in sources]


def test_the_newest_snapshot_that_is_whole_is_chosen():
  agents = [
    fakes.agent('a', *fakes.pieces(0, 10, 20, 30)),
    fakes.agent('b', *fakes.pieces(1, 10, 20)),
    fakes.agent('c', *fakes.pieces(2, 10, 20, 30)),
  ]
  assert _chosen(agents) == [(20, 0, 'a:1'), (20, 1, 'b:1'), (20, 2, 'c:1')]


def test_a_buddys_copy_stands_in_for_a_lost_host():
  agents = [
    fakes.agent('a', *fakes.pieces(0, 20), *fakes.pieces(2, 20)),
    fakes.agent('b', *fakes.pieces(1, 20)),
  ]
  assert _chosen(agents) == [(20, 0, 'a:1'), (20, 1, 'b:1'), (20, 2, 'a:1')]


def test_pieces_of_two_generations_make_no_snapshot():
  agents = [
    fakes.agent('a', *fakes.pieces(0, 20, generation=1, count=2)),
    fakes.agent('b', *fakes.pieces(1, 20, generation=2, count=2)),
  ]
  assert _chosen(agents) == []


def test_of_one_step_the_later_generation_counts():
  agents = [
    fakes.agent(
      'a',
      *fakes.pieces(0, 20, generation=1, count=1),
      *fakes.pieces(0, 20, generation=2, count=1),
    )
  ]
  (source,) = _plans.choose_snapshot(agents, without=set())
  assert source.piece.generation == 2
