import pytest

from paxlike import sync


@pytest.fixture(autouse=True)
def main_thread_only(request):
  """JAX work that another thread launches ends the test."""
  if request.node.get_closest_marker('jax_in_threads'):
    yield
    return
  with sync.assert_main_thread_only():
    yield
