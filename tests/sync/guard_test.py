"""Only the main thread may launch JAX work."""

import threading
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import sync


def _in_thread(work):
  with futures.ThreadPoolExecutor(1) as pool:
    return pool.submit(work).result()


def test_a_background_thread_that_computes_is_refused():
  add = jax.jit(lambda x: x + 1)
  add(1.0)
  with sync.assert_main_thread_only():
    with pytest.raises(RuntimeError, match='no_execution'):
      _in_thread(lambda: add(1.0))
    with pytest.raises(RuntimeError, match='no_execution'):
      _in_thread(lambda: jnp.ones((3,)) * 2)


def test_a_background_thread_may_copy_to_and_from_devices():
  there = jnp.arange(3)
  with sync.assert_main_thread_only():
    assert _in_thread(lambda: np.asarray(there)).tolist() == [0, 1, 2]
    moved = _in_thread(lambda: jax.device_put(np.arange(2)))
  assert moved.tolist() == [0, 1]


def test_the_main_thread_is_free_and_so_are_threads_afterwards():
  with sync.assert_main_thread_only():
    assert float(jnp.ones(()) + 1) == 2.0
  start = threading.Thread.start
  assert float(_in_thread(lambda: jnp.ones(()) + 1)) == 2.0
  assert threading.Thread.start is start
