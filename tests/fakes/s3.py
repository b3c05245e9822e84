"""A real server of the S3 protocol on this machine."""

import contextlib
import itertools
import socket
from collections.abc import Iterator

import fsspec
import pytest
from moto import server as moto_server

from paxlike.core import _object_store

_numbers = itertools.count()


@contextlib.contextmanager
def bucket() -> Iterator[str]:
  """Serves an empty bucket; gives its address, s3://..."""
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    port = probe.getsockname()[1]
  server = moto_server.ThreadedMotoServer('127.0.0.1', port)
  server.start()
  # All servers of one process serve the same buckets.
  name = f'bucket-{port}-{next(_numbers)}'
  kind = fsspec.get_filesystem_class('s3')

  def forget() -> None:
    # Clients remember the endpoint of whoever asked first.
    kind.clear_instance_cache()
    _object_store.for_scheme.cache_clear()

  try:
    with pytest.MonkeyPatch.context() as patch:
      patch.setenv('AWS_ENDPOINT_URL', f'http://127.0.0.1:{port}')
      patch.setenv('AWS_ACCESS_KEY_ID', 'test')
      patch.setenv('AWS_SECRET_ACCESS_KEY', 'test')
      patch.setenv('AWS_DEFAULT_REGION', 'us-east-1')
      patch.delenv('AWS_PROFILE', raising=False)
      forget()
      fsspec.filesystem('s3', use_listings_cache=False).mkdir(name)
      yield f's3://{name}'
  finally:
    forget()
    server.stop()
