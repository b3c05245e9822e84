import pytest

from paxlike import sync


@pytest.fixture(autouse=True)
def main_thread_only():
  """JAX work that another thread launches ends the test."""
  with sync.assert_main_thread_only():
    yield
