"""Only the main thread may launch JAX work; test builds enforce it.

Two threads that launch collectives do so in an order that differs between
processes, and then values are swapped silently.
"""

import contextlib
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def assert_main_thread_only() -> Iterator[None]:
  """Makes JAX raise in every thread that is started inside the block.

  Executing a compiled function raises RuntimeError there; copying to and from
  devices (`device_put`, `numpy.asarray`), tracing and compiling are allowed.
  For conftest.py: it costs nothing in the main thread.
  """
  import jax  # only tests pay for it

  start = threading.Thread.start

  def guarded_start(self: threading.Thread) -> None:
    run = self.run

    def guarded_run() -> None:
      with jax.no_execution(True):
        run()

    self.run = guarded_run
    start(self)

  threading.Thread.start = guarded_start
  try:
    yield
  finally:
    threading.Thread.start = start
