"""JAX's coordination service as a `Store`: the one file that knows jax._src.

The client (key-value store, barriers) has no public name in JAX; everything
else of the package goes through `CoordinationStore`.
"""

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import clusters, compilation_cache, compiler, distributed
from jax._src.lib import utils  # pyright: ignore[reportPrivateImportUsage]

from paxlike.sync import _store as store_lib

_LOOK_EVERY_S = 0.01


def connect(
  address: str,
  *,
  num_processes: int,
  process_id: int,
  timeout_s: float,
  local_device_ids: Sequence[int] | None = None,
) -> 'CoordinationStore':
  """Initialises JAX for many processes and returns their common store.

  To be called when all processes are known to be about to call it: JAX ends
  the process, without a Python error, if one does not come.
  """
  # One owner of SIGTERM, and it is not JAX (_stop.py).
  jax.config.update('jax_enable_preemption_service', False)
  # Without this a dead peer is an abort on every process, with it an error
  # that can be told; ends do not wait five minutes for the dead.
  jax.config.update('jax_enable_recoverability', True)
  _log_errors_alone()
  if process_id != 0:
    wait_for_listener(address, timeout_s=timeout_s)
  jax.distributed.initialize(
    address,
    num_processes,
    process_id,
    local_device_ids=local_device_ids,
    cluster_detection_method='deactivate',
    initialization_timeout=max(1, int(timeout_s)),
    shutdown_timeout_seconds=10,
  )
  if process_id != 0:
    _keep_compiled_programs()
  return CoordinationStore(distributed.global_state.client)


def _log_errors_alone() -> None:
  """Spares logs the warnings of C++ code, unless all was asked for.

  JAX follows its Python logger, where that has a level, and then forgets the
  variable; and 1 is what it sets where nobody has.
  """
  level = int(os.environ.get('TF_CPP_MIN_LOG_LEVEL', '1'))
  utils.absl_set_min_log_level(2 if level == 1 else level)


def wait_for_listener(address: str, *, timeout_s: float) -> None:
  """Waits until somebody listens at HOST:PORT; gives up without an error.

  JAX's client that calls before process 0 listens tries again only a second
  later, and all others wait for it.
  """
  host, _, port = address.rpartition(':')
  deadline_s = time.monotonic() + timeout_s
  while time.monotonic() < deadline_s:
    try:
      where = (host.strip('[]'), int(port))
      socket.create_connection(where, timeout=timeout_s).close()
    except OSError:
      time.sleep(_LOOK_EVERY_S)
    else:
      return


def _keep_compiled_programs() -> None:
  """Lets this process write the compilation cache, as process 0 does.

  JAX lets only process 0 write, since the key of a program is the same on all.
  Not so on CPU: the key tells which process it is, so the others would never
  find anything, and compile for long while process 0 waits for them.
  (compilation_test.py::test_every_process_finds_its_programs_again)
  """

  def write(
    key: str,
    compile_s: float,
    name: str,
    backend: Any,
    executable: Any,
    host_callbacks: Sequence[Any],
  ) -> None:
    least_s = jax.config.values['jax_persistent_cache_min_compile_time_secs']
    if (
      backend.platform == 'cpu' and not host_callbacks and compile_s >= least_s
    ):
      compilation_cache.put_executable_and_time(
        key, name, executable, backend, int(compile_s)
      )

  compiler._cache_write = write  # noqa: SLF001 - there is no option for it


def is_connected() -> bool:
  """Whether JAX is already initialised for many processes."""
  return distributed.global_state.client is not None


def disconnect() -> None:
  """Leaves the service; on process 0 also ends it."""
  jax.distributed.shutdown()


def detect_with_jax(
  timeout_s: float,
) -> tuple[str, int, int] | None:
  """Address, process count and index as JAX itself finds them (TPU, GKE)."""
  found = clusters.ClusterEnv.auto_detect_unset_distributed_params(
    None, None, None, None, None, int(timeout_s)
  )
  address, num_processes, process_id, _ = found
  if address is None or num_processes is None or process_id is None:
    return None
  return address, num_processes, process_id


class CoordinationStore:
  """See `Store`."""

  def __init__(self, client: Any):
    self._client = client

  def set(self, key: str, value: bytes, *, overwrite: bool = False) -> bool:
    """See Store."""
    try:
      self._client.key_value_set_bytes(key, value, allow_overwrite=overwrite)
    except jax.errors.JaxRuntimeError as error:
      if _code(error) == 'ALREADY_EXISTS':
        return False
      raise _lost(error) from error
    return True

  def get(self, key: str, *, timeout_s: float) -> bytes:
    """See Store."""
    try:
      return self._client.blocking_key_value_get_bytes(
        key, max(1, int(timeout_s * 1e3))
      )
    except jax.errors.JaxRuntimeError as error:
      if _code(error) == 'DEADLINE_EXCEEDED':
        raise store_lib.StoreTimeoutError(
          f'{key!r} was not set within {timeout_s:.1f} s.'
        ) from error
      raise _lost(error) from error

  def try_get(self, key: str) -> bytes | None:
    """See Store."""
    try:
      return self._client.key_value_try_get_bytes(key)
    except jax.errors.JaxRuntimeError as error:
      if _code(error) == 'NOT_FOUND':
        return None
      raise _lost(error) from error

  def list(self, prefix: str) -> dict[str, bytes]:
    """See Store."""
    try:
      found = self._client.key_value_dir_get_bytes(f'{prefix}/')
    except jax.errors.JaxRuntimeError as error:
      raise _lost(error) from error
    return {key.removeprefix(f'{prefix}/'): value for key, value in found}

  def increment(self, key: str) -> int:
    """See Store."""
    try:
      return self._client.key_value_increment(key, 1)
    except jax.errors.JaxRuntimeError as error:
      raise _lost(error) from error

  def delete(self, prefix: str) -> None:
    """See Store."""
    try:
      self._client.key_value_delete(prefix)
    except jax.errors.JaxRuntimeError as error:
      raise _lost(error) from error


def _code(error: Exception) -> str:
  return str(error).partition(':')[0]


def _lost(error: Exception) -> store_lib.StoreLostError:
  return store_lib.StoreLostError(
    'The coordination service, which process 0 runs, does not answer: '
    f'{str(error).splitlines()[0]}'
  )
