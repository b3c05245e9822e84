import jax.numpy as jnp
import numpy as np

from paxlike.models import _attention


def _seen(queries, keys, **kwargs):
  mask = _attention.visible(jnp.array([queries]), jnp.array([keys]), **kwargs)
  return np.asarray(mask[0]).astype(int).tolist()


def test_a_query_sees_itself_and_what_is_before():
  assert _seen([0, 1, 2], [0, 1, 2]) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_a_window_counts_the_query_itself():
  assert _seen([5], [2, 3, 4, 5, 6], window=3) == [[0, 1, 1, 1, 0]]


def test_nobody_sees_padding_and_padding_sees_nobody():
  assert _seen([-1, 0], [-1, 0]) == [[0, 0], [0, 1]]


def test_the_slot_of_a_key_does_not_matter():
  assert _seen([2], [-1, 2, 0, -1, 1, 3]) == [[0, 1, 1, 0, 1, 0]]


def test_segments_do_not_see_each_other():
  segments = jnp.array([[1, 1, 2, 2]])
  assert _seen(
    [0, 1, 0, 1],
    [0, 1, 0, 1],
    query_segments=segments,
    key_segments=segments,
  ) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_a_query_that_sees_nobody_gives_finite_numbers():
  shape = (1, 1, 1, 4)
  out = _attention._attend(
    jnp.ones(shape),
    jnp.ones(shape),
    jnp.ones(shape),
    jnp.zeros((1, 1, 1), bool),
  )
  assert np.isfinite(out).all()
