"""Reads batches ahead on a thread of its own.

Promises: batches come in order of position, exactly as if each had been read
when asked for; `state()` tells of what was consumed, never of what was read
ahead; an exception of the reading thread is raised to the consumer in place
of the batch that it hit, and the consumer never waits for a dead thread.
"""

import collections
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from paxlike.core import errors, typing
from paxlike.inputs import _base

_JOIN_TIMEOUT_S = 5.0
_BYTES_AHEAD = 4 << 20
_FEWEST_AHEAD, _MOST_AHEAD = 2, 32


class Stream(Iterator[Any]):
  """An iterator over an input from a position on; use it as a context.

  Attributes:
    waited_s: Seconds that the consumer has waited for data so far; a training
      that is bound by its input sees it grow by the step time.
  """

  def __init__(
    self,
    source: _base.Input,
    *,
    rows: range | None = None,
    position: int = 0,
    prefetch: int | None = None,
    put: Callable[[typing.HostBatch], Any] | None = None,
  ):
    """Starts reading.

    Args:
      source: What to read.
      rows: The rows of each global batch to read; all by default.
      position: Number of the first batch; what `check_state` gave.
      prefetch: How many batches to hold ready, at least 1; None: what 4 MiB
        hold, but 2 to 32. Reading goes on when half of them are used up:
        threads that take turns at every batch cost a short step more than the
        reading itself.
      put: Called with each batch on the reading thread, such as to begin its
        transfer to the devices; must run no collective.
    """
    if prefetch is None:
      prefetch = _batches_ahead(source)
    if prefetch < 1:
      raise errors.ConfigError(f'Stream.prefetch is {prefetch}, must be >= 1.')
    self.waited_s = 0.0
    self._source = source
    self._rows = range(source.batch_size) if rows is None else rows
    self._position = position
    self._prefetch = prefetch
    self._refill_at = prefetch // 2
    self._put = put
    self._ready: collections.deque[Any] = collections.deque()
    self._error: BaseException | None = None
    self._at_end = False
    self._is_closed = False
    self._changed = threading.Condition()
    self._thread = threading.Thread(
      target=self._run, args=(position,), name=f'input {source.name}'
    )
    self._thread.daemon = True
    self._thread.start()

  def __next__(self) -> Any:
    try:
      batch = self._ready.popleft()  # mostly there, so without the lock
    except IndexError:
      self._wait()
      if not self._ready:
        raise StopIteration from None
      batch = self._ready.popleft()
    self._position += 1
    if len(self._ready) <= self._refill_at:
      with self._changed:
        self._changed.notify_all()
    return batch

  def peek(self) -> Any:
    """The next batch, which stays the next one; such as for its shapes."""
    self._wait()
    if not self._ready:
      raise errors.InputError(
        f'Input {self._source.name} has no batch at position '
        f'{self._position} to look at.'
      )
    return self._ready[0]

  def state(self) -> dict[str, Any]:
    """Where to go on after the batches consumed so far, for a checkpoint."""
    return {
      'position': self._position,
      'fingerprint': self._source.fingerprint,
    }

  def close(self) -> None:
    """Ends the reading thread; waits for it 5 s at most."""
    with self._changed:
      self._is_closed = True
      self._ready.clear()
      self._changed.notify_all()
    self._thread.join(timeout=_JOIN_TIMEOUT_S)
    if self._thread.is_alive():
      logging.warning(
        'Input %s is still reading a batch; it was left behind after %g s.',
        self._source.name,
        _JOIN_TIMEOUT_S,
      )

  def __enter__(self) -> 'Stream':
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def _wait(self) -> None:
    """Blocks until a batch is ready or there will be none."""
    started_s = time.perf_counter()
    with self._changed:
      self._changed.wait_for(
        lambda: self._ready or self._error or self._at_end or self._is_closed
      )
      self.waited_s += time.perf_counter() - started_s
      if self._is_closed:
        raise ValueError(f'The stream of input {self._source.name} is closed.')
      # Batches before the one that failed still count: every run then fails
      # at the same step, whatever the timing (stream_test.py).
      if not self._ready and self._error is not None:
        raise self._error

  def _run(self, position: int) -> None:
    try:
      num_batches = self._source.num_batches
      while num_batches is None or position < num_batches:
        if not self._has_room():
          return
        batch = self._source.read(position, self._rows)
        if self._put is not None:
          batch = self._put(batch)
        position += 1
        with self._changed:
          if not self._is_closed:
            self._ready.append(batch)
          if len(self._ready) == 1:
            self._changed.notify_all()
        # The queue alone holds it: a batch on the device is memory.
        del batch
    except BaseException as error:  # noqa: BLE001 - raised by the consumer
      self._error = error
    finally:
      with self._changed:
        self._at_end = True
        self._changed.notify_all()

  def _has_room(self) -> bool:
    """Waits for room if the queue is full; False if the stream was closed."""
    if len(self._ready) < self._prefetch:
      return not self._is_closed
    with self._changed:
      self._changed.wait_for(
        lambda: self._is_closed or len(self._ready) <= self._refill_at
      )
      return not self._is_closed


def _batches_ahead(source: _base.Input) -> int:
  specs = source.batch_spec.values()
  num_bytes = sum(math.prod(s.shape) * s.dtype.itemsize for s in specs)
  fitting = _BYTES_AHEAD // max(1, num_bytes)
  return min(max(fitting, _FEWEST_AHEAD), _MOST_AHEAD)
