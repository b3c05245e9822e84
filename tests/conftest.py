"""Eight virtual devices, checked shapes, and a count of compilations."""

import collections
import os
from collections.abc import Callable, Iterator

# Before anything imports jax: the backend reads these once.
os.environ['XLA_FLAGS'] = (
  os.environ.get('XLA_FLAGS', '') + ' --xla_force_host_platform_device_count=8'
)
os.environ['JAX_PLATFORMS'] = 'cpu'

import jax
import pytest
from absl import logging
from jaxtyping import install_import_hook

install_import_hook('paxlike', 'beartype.beartype')


@pytest.fixture(autouse=True)
def plain_logging() -> Iterator[None]:
  """Every test logs as if it were the first one of its process."""
  logger = logging.get_absl_logger()
  before = logger.level, logger.propagate, list(logger.handlers)
  yield
  logger.setLevel(before[0])
  logger.propagate = before[1]
  logger.handlers[:] = before[2]


@pytest.fixture
def compiles() -> Iterator[Callable[[str], int]]:
  """How often a function of that name was compiled during the test."""
  counts: collections.Counter[str] = collections.Counter()

  def listen(event: str, duration_s: float, **facts: str | int) -> None:
    del duration_s
    if event == '/jax/core/compile/backend_compile_duration':
      counts[str(facts.get('fun_name', ''))] += 1

  jax.monitoring.register_event_duration_secs_listener(listen)
  yield lambda name: counts[f'jit({name})']
  jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
  """How many arrays were copied from the device to the host so far.

  On this backend the transfer guard of JAX lets every such copy pass.
  """
  count = 0
  array = type(jax.numpy.zeros(()))
  original = array._value

  def value(self: jax.Array) -> object:
    nonlocal count
    count += 1
    return original.fget(self)

  monkeypatch.setattr(array, '_value', property(value))
  return lambda: count
