"""The coordination service as a dictionary, for processes that are threads."""

import collections
import threading

from paxlike.sync import _store as store_lib
from tests.fakes import clock as fake_clock


class Service:
  """What all clients share; counts the messages that each sends."""

  def __init__(self, *, clock: fake_clock.FastClock | None = None):
    self.clock = clock or fake_clock.FastClock()
    self.lock = threading.Lock()
    self.values: dict[str, bytes] = {}
    self.waiting: dict[str, threading.Event] = {}
    self.calls: collections.Counter[int] = collections.Counter()
    self.lost = False

  def client(self, process_index: int) -> 'Client':
    """A store for one process."""
    return Client(self, process_index)

  def die(self) -> None:
    """From now on every call fails, those under way too."""
    with self.lock:
      self.lost = True
      for event in self.waiting.values():
        event.set()


class Client:
  """A Store of one process."""

  def __init__(self, service: Service, process_index: int):
    self._service = service
    self._index = process_index

  def set(self, key: str, value: bytes, *, overwrite: bool = False) -> bool:
    with self._call() as service:
      if key in service.values and not overwrite:
        return False
      service.values[key] = bytes(value)
      if event := service.waiting.pop(key, None):
        event.set()
      return True

  def get(self, key: str, *, timeout_s: float) -> bytes:
    with self._call() as service:
      if key in service.values:
        return service.values[key]
      event = service.waiting.setdefault(key, threading.Event())
    event.wait(timeout_s / self._service.clock.factor)
    with self._service.lock:
      if self._service.lost:
        raise store_lib.StoreLostError('The fake service is gone.')
      if key in self._service.values:
        return self._service.values[key]
    raise store_lib.StoreTimeoutError(f'{key} not set within {timeout_s} s')

  def try_get(self, key: str) -> bytes | None:
    with self._call() as service:
      return service.values.get(key)

  def list(self, prefix: str) -> dict[str, bytes]:
    with self._call() as service:
      return {
        key.removeprefix(f'{prefix}/'): value
        for key, value in service.values.items()
        if key.startswith(f'{prefix}/')
      }

  def increment(self, key: str) -> int:
    with self._call() as service:
      total = int(service.values.get(key, b'0')) + 1
      service.values[key] = str(total).encode()
      return total

  def delete(self, prefix: str) -> None:
    with self._call() as service:
      for key in [
        key
        for key in service.values
        if key == prefix or key.startswith(f'{prefix}/')
      ]:
        del service.values[key]

  def _call(self) -> '_Call':
    return _Call(self._service, self._index)


class _Call:
  """Holds the service's lock for one counted message."""

  def __init__(self, service: Service, process_index: int):
    self._service = service
    self._index = process_index

  def __enter__(self) -> Service:
    self._service.lock.acquire()
    if self._service.lost:
      self._service.lock.release()
      raise store_lib.StoreLostError('The fake service is gone.')
    self._service.calls[self._index] += 1
    return self._service

  def __exit__(self, *unused: object) -> None:
    self._service.lock.release()
