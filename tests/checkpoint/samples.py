"""States that hold a bit of everything, and how to compare them."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax

P = jax.sharding.PartitionSpec


def mesh(*shape: int) -> jax.sharding.Mesh:
  names = ('data', 'model', 'expert')[: len(shape)]
  devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
  return jax.sharding.Mesh(
    devices, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape)
  )


def put(values: Any, on: jax.sharding.Mesh, *spec: Any) -> jax.Array:
  return jax.device_put(values, jax.sharding.NamedSharding(on, P(*spec)))


def small(step: int = 0) -> dict[str, Any]:
  """A few arrays whose values tell the step."""
  return {
    'step': jnp.int32(step),
    'w': jnp.arange(24, dtype=jnp.float32).reshape(4, 6) + step,
    'b': jnp.full((3,), step, jnp.bfloat16),
  }


def varied() -> dict[str, Any]:
  """Every kind of leaf and container, on a mesh of 4 x 2."""
  on = mesh(4, 2)
  rng = np.random.default_rng(0)
  params = {
    'w': put(rng.standard_normal((64, 32), np.float32), on, 'data', 'model'),
    'a/b': put(np.arange(8, dtype=np.float32), on, 'model'),
    'a': {'b': jnp.ones(())},
    '..': jnp.zeros((2,)),
    'ü "x"\n': jnp.zeros((1,)),
  }
  return {
    'params': params,
    'opt': optax.chain(
      optax.clip(1.0), optax.adam(1e-3), optax.masked(optax.sgd(0.1), False)
    ).init(params),
    'list': [jnp.float32(i) for i in range(12)],
    'ints': {0: jnp.zeros(1), 1: jnp.ones(1), 10: jnp.full(1, 10.0)},
    'key': jax.random.key(7),
    'keys': put(jax.random.split(jax.random.key(8), 8), on, 'data'),
    'rbg': jax.random.key(9, impl='rbg'),
    'none': None,
    'empty': {'dict': {}, 'list': [], 'tuple': ()},
    'zero': jnp.zeros((0, 3)),
    'python': {
      'int': 5,
      'big': 1 << 80,
      'float': 2.5,
      'bool': True,
      'complex': 1 + 2j,
      'text': 'a\nb',
      'raw': b'\0\xff',
    },
    'numpy': {'array': np.arange(5), 'scalar': np.int64(7)},
    'dtypes': dtypes(),
  }


def dtypes() -> dict[str, Any]:
  """An array of every dtype with random bytes."""
  rng = np.random.default_rng(1)
  names = [
    'bool',
    'int8',
    'int16',
    'int32',
    'uint8',
    'uint16',
    'uint32',
    'float16',
    'float32',
    'bfloat16',
    'complex64',
    'int4',
    'uint4',
    'int2',
    'float8_e4m3fn',
    'float8_e5m2',
    'float8_e4m3b11fnuz',
  ]
  found: dict[str, Any] = {
    name: jnp.asarray(_values(rng, name)) for name in names
  }
  for name in ('int64', 'uint64', 'float64', 'complex128'):
    found[name] = _values(rng, name)
  return found


def _values(rng: np.random.Generator, name: str) -> np.ndarray:
  dtype = np.dtype(getattr(ml_dtypes, name, name))
  if name in ('bool', 'int4', 'uint4', 'int2'):
    return rng.integers(0, 2, (3, 5)).astype(dtype)
  return np.frombuffer(rng.bytes(15 * dtype.itemsize), dtype).reshape(3, 5)


def abstract(state: Any) -> Any:
  """The same state without values."""
  return jax.tree.map(
    lambda x: (
      jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
      if isinstance(x, jax.Array)
      else x
    ),
    state,
  )


def raw(leaf: Any) -> Any:
  """What can be compared: the bytes of arrays, key data of keys."""
  if isinstance(leaf, jax.Array) and jnp.issubdtype(
    leaf.dtype, jax.dtypes.prng_key
  ):
    return str(jax.random.key_impl(leaf)), raw(jax.random.key_data(leaf))
  if hasattr(leaf, 'dtype'):
    array = np.asarray(leaf)
    return array.dtype, array.shape, array.tobytes()
  return type(leaf), leaf


def assert_equal(found: Any, expected: Any) -> None:
  """Same structure, same kinds of leaves, same bits."""
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for a, b in zip(
    jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
  ):
    assert isinstance(a, jax.Array) == isinstance(b, jax.Array)
    assert isinstance(a, np.generic) == isinstance(b, np.generic)
    assert raw(a) == raw(b)
