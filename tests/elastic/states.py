"""Small states, and their snapshots in one host's memory."""

import contextlib
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from paxlike import checkpoint
from paxlike.elastic import _facts, _serving, _transfer, snapshots

SECRET = b'a secret of at least sixteen bytes'


def mesh(count: int) -> jax.sharding.Mesh:
  return jax.sharding.Mesh(np.array(jax.devices()[:count]), ('data',))


def state(mesh: jax.sharding.Mesh, value: float = 0.0):
  split = NamedSharding(mesh, PartitionSpec('data'))
  whole = NamedSharding(mesh, PartitionSpec())
  weights = np.arange(24 * 64, dtype=np.float32).reshape(24, 64) + value
  return {
    'weights': jax.device_put(jnp.array(weights), split),
    'step': jax.device_put(jnp.int32(value), whole),
    'rng': jax.random.key(3),
  }


def target(state):
  return jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding),
    state,
  )


def equal(a, b) -> bool:
  same = jax.tree.map(lambda x, y: bool((_raw(x) == _raw(y)).all()), a, b)
  return all(jax.tree.leaves(same))


def _raw(leaf):
  is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
  return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def taker(memory, generation=1, job_id='job'):
  return snapshots.Taker(
    memory.root, job_id=job_id, generation=generation, process=0, count=1
  )


def take(taker, state, step, *, items):
  taker.take(state, step, items=items)
  return taker.wait()


def restore(memory, target, step, address='127.0.0.1:9'):
  (piece,) = [piece for piece, _ in memory.pieces() if piece.step == step]
  return snapshots.Planned(
    (_facts.Source(piece=piece, address=address),),
    secret=SECRET,
    own_address='127.0.0.1:9',
    own_root=memory.root,
  ).restore(target)


@contextlib.contextmanager
def serving_host(memory):
  """Another host that gives out its memory; yields its address."""
  done = threading.Event()

  def serve(connection):
    _transfer.serve(memory, connection)
    done.set()

  yield _serving.listen('127.0.0.1:0', SECRET, serve)
  assert done.wait(10.0)


def write_late(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
  """No snapshot is made whole before the event is set, or for ten seconds."""
  may_go_on = threading.Event()
  write = checkpoint.pieces.Copy.write

  def late(copy, *args, **kwargs):
    may_go_on.wait(10.0)
    return write(copy, *args, **kwargs)

  monkeypatch.setattr(checkpoint.pieces.Copy, 'write', late)
  return may_go_on
