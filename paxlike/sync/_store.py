"""What the meetings need from a key-value service that all processes reach.

`_kv` gives it over JAX's coordination service, tests over a dictionary.
"""

from typing import Protocol, runtime_checkable

from paxlike.core import errors


class StoreTimeoutError(errors.SyncError):
  """The key did not appear in time."""


class StoreLostError(errors.SyncError):
  """The service does not answer any more, or was closed here."""


@runtime_checkable
class Store(Protocol):
  """Keys with byte values; each call is one message to the service."""

  def set(self, key: str, value: bytes, *, overwrite: bool = False) -> bool:
    """Sets a key; False if it was there and `overwrite` is not asked for."""
    ...

  def get(self, key: str, *, timeout_s: float) -> bytes:
    """Waits for a key to be set; raises StoreTimeoutError."""
    ...

  def try_get(self, key: str) -> bytes | None:
    """The value now, or None."""
    ...

  def list(self, prefix: str) -> dict[str, bytes]:
    """Every key under `prefix/`, without the prefix, and its value."""
    ...

  def increment(self, key: str) -> int:
    """Adds one to a counter that starts at 0 and returns the sum."""
    ...

  def delete(self, prefix: str) -> None:
    """Removes `prefix` and every key under `prefix/`."""
    ...
