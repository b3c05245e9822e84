"""Checkpoints beside Orbax and beside the bare disk, interleaved in one run.

    python -m benchmarks.checkpoint [--sections save restore ...] [--rounds 7]

Each round runs every peer in turn, in an order that moves on; what is printed
are medians of times and medians of the ratios within a round, since the
machine's speed changes from minute to minute. Peers: Orbax as it comes, Orbax
without compression, and the limit: the same bytes written with O_DIRECT and
fsync, or read, from two threads of plain system calls.
"""

# ruff: noqa: D102 (the peers all have the same few methods)

import argparse
import functools
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault('XLA_FLAGS', '--xla_force_host_platform_device_count=8')
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax
import jax.numpy as jnp
import numpy as np

from paxlike import checkpoint
from paxlike.checkpoint import _memory, _staging

_LAYERS, _WIDTH, _VOCAB = 24, 640, 8192


def _mesh(*shape: int) -> jax.sharding.Mesh:
  names = ('data', 'model')[: len(shape)]
  count = int(np.prod(shape))
  return jax.make_mesh(
    shape,
    names,
    devices=jax.devices()[:count],
    axis_types=(jax.sharding.AxisType.Auto,) * len(shape),
  )


def transformer_shapes() -> dict[str, tuple[int, ...]]:
  """Arrays of a 24-layer transformer with Adam: 1.5 GB in 152 of them."""
  d = _WIDTH
  params: dict[str, tuple[int, ...]] = {'embed': (_VOCAB, d), 'norm': (d,)}
  for layer in range(_LAYERS):
    params[f'layer_{layer}/attention'] = (4 * d, d)
    params[f'layer_{layer}/mlp'] = (8 * d, d)
  shapes: dict[str, tuple[int, ...]] = {'step': (), 'count': ()}
  for kind in ('params', 'mu', 'nu'):
    shapes |= {f'{kind}/{name}': shape for name, shape in params.items()}
  return shapes


def make_state(
  shapes: dict[str, tuple[int, ...]], mesh: jax.sharding.Mesh, axis: int = 0
) -> dict[str, jax.Array]:
  """Random float32 arrays, sharded over the whole mesh along one axis."""
  rng = np.random.default_rng(0)
  state = {}
  for name, shape in shapes.items():
    values = rng.standard_normal(shape, np.float32)
    state[name] = jax.device_put(values, sharding_of(shape, mesh, axis))
  # Memory of JAX's own, so that donation is real.
  return jax.jit(lambda s: jax.tree.map(lambda x: x + 0, s))(state)


def sharding_of(
  shape: tuple[int, ...], mesh: jax.sharding.Mesh, axis: int
) -> jax.sharding.NamedSharding:
  """Along one axis if the array has it and it divides, else replicated."""
  spec = [None] * len(shape)
  if len(shape) > axis and shape[axis] % mesh.size == 0:
    spec[axis] = mesh.axis_names
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def target_of(
  shapes: dict[str, tuple[int, ...]], mesh: jax.sharding.Mesh, axis: int = 0
) -> dict[str, jax.ShapeDtypeStruct]:
  """The abstract state, for a restore onto some mesh."""
  return {
    name: jax.ShapeDtypeStruct(
      shape, np.float32, sharding=sharding_of(shape, mesh, axis)
    )
    for name, shape in shapes.items()
  }


class Paxlike:
  """This project."""

  name = 'paxlike'

  def __init__(self, *, async_save: bool = False):
    self._config = checkpoint.CheckpointConfig(async_save=async_save)
    self._manager: checkpoint.CheckpointManager | None = None
    self._is_async = async_save

  def open(self, directory: str, state: Any) -> None:
    """Once before the first save, outside of all timings."""
    self._manager = checkpoint.CheckpointManager(
      directory,
      config=self._config,
      keep_policy=checkpoint.KeepPolicy(max_to_keep=1),
    )
    self._manager.prepare(state)

  def save(self, step: int, state: Any) -> None:
    assert self._manager is not None
    self._manager.save(step, state)

  def is_busy(self) -> bool:
    assert self._manager is not None
    return self._manager.is_saving()

  def wait(self) -> None:
    assert self._manager is not None
    self._manager.wait()

  def restore(self, directory: str, target: Any) -> Any:
    with checkpoint.CheckpointManager(directory, read_only=True) as manager:
      return manager.restore(target).state

  def close(self) -> None:
    assert self._manager is not None
    self._manager.close()


class Orbax:
  """Orbax's checkpoint manager, keeping one step as ours does."""

  def __init__(self, name: str, *, async_save: bool = False, **handler: Any):
    self.name = name
    self._is_async = async_save
    self._handler = handler
    self._manager: Any = None

  def _make(self, directory: str) -> Any:
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(
      max_to_keep=1, enable_async_checkpointing=self._is_async
    )
    return ocp.CheckpointManager(
      directory,
      options=options,
      item_handlers=ocp.PyTreeCheckpointHandler(**self._handler),
    )

  def open(self, directory: str, state: Any) -> None:
    del state
    self._manager = self._make(directory)

  def save(self, step: int, state: Any) -> None:
    import orbax.checkpoint as ocp

    self._manager.save(step, args=ocp.args.PyTreeSave(state))

  def is_busy(self) -> bool:
    return self._manager.is_saving_in_progress()

  def wait(self) -> None:
    self._manager.wait_until_finished()

  def restore(self, directory: str, target: Any) -> Any:
    import orbax.checkpoint as ocp

    manager = self._make(directory)
    try:
      return manager.restore(
        manager.latest_step(),
        args=ocp.args.PyTreeRestore(
          item=target,
          restore_args=ocp.checkpoint_utils.construct_restore_args(target),
        ),
      )
    finally:
      manager.close()

  def close(self) -> None:
    self._manager.close()


class Limit:
  """The bytes of the state and nothing else, by plain system calls."""

  name = 'limit'

  def open(self, directory: str, state: Any) -> None:
    os.makedirs(directory, exist_ok=True)
    size = sum(x.nbytes for x in jax.tree.leaves(state))
    self._size = _memory.round_up(size, 1 << 21)
    self._arena = _staging.Arena()
    self._memory = self._arena.take(self._size)
    self._memory[:] = (
      np.random.default_rng(0)
      .integers(0, 255, 1 << 21, np.uint8)
      .repeat(1)[None]
      .repeat(self._size >> 21, 0)
      .reshape(-1)
    )
    self._directory = directory

  def save(self, step: int, state: Any) -> None:
    del state
    flags = os.O_WRONLY | os.O_CREAT | os.O_DIRECT
    fd = os.open(os.path.join(self._directory, f'bytes{step}'), flags)
    os.posix_fallocate(fd, 0, self._size)
    view = memoryview(self._memory.data)
    half = self._size // 2 & ~0xFFF

    def write(first: int, last: int) -> None:
      for at in range(first, last, 16 << 20):
        os.pwrite(fd, view[at : min(at + (16 << 20), last)], at)

    other = threading.Thread(target=write, args=(half, self._size))
    other.start()
    write(0, half)
    other.join()
    os.fsync(fd)
    os.close(fd)

  def wait(self) -> None:
    pass

  def clean(self) -> None:
    for name in sorted(
      os.listdir(self._directory), key=lambda n: int(n.removeprefix('bytes'))
    )[:-1]:
      os.unlink(os.path.join(self._directory, name))

  def is_busy(self) -> bool:
    return False

  def restore(self, directory: str, target: Any) -> Any:
    """Past the page cache where the pages are not in it, else from it."""
    del target
    (name,) = os.listdir(directory)
    path = os.path.join(directory, name)
    fd = os.open(path, os.O_RDONLY)
    try:
      os.preadv(fd, [bytearray(1)], 1 << 22, os.RWF_NOWAIT)
    except BlockingIOError:
      os.close(fd)
      fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    size = _memory.round_up(os.fstat(fd).st_size, 4096)
    raw = np.empty(size + 4096, np.uint8)
    skip = -raw.ctypes.data % 4096  # O_DIRECT wants whole pages.
    out = raw[skip : skip + size]
    view = memoryview(out.data)
    half = len(view) // 2 & ~0xFFF

    def read(first: int, last: int) -> None:
      for at in range(first, last, 16 << 20):
        os.preadv(fd, [view[at : min(at + (16 << 20), last)]], at)

    other = threading.Thread(target=read, args=(half, len(view)))
    other.start()
    read(0, half)
    other.join()
    os.close(fd)
    return out

  def close(self) -> None:
    self._memory = np.empty(0, np.uint8)
    self._arena = _staging.Arena()


def peers(*, async_save: bool = False) -> list[Any]:
  """Everyone who takes part."""
  return [
    Paxlike(async_save=async_save),
    Orbax('orbax', async_save=async_save),
    Orbax('orbax, raw', async_save=async_save, use_compression=False),
    Limit(),
  ]


def forget_pages(directory: str) -> None:
  """Takes a directory's files out of the page cache."""
  os.sync()
  for parent, _, names in os.walk(directory):
    for name in names:
      fd = os.open(os.path.join(parent, name), os.O_RDONLY)
      os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
      os.close(fd)


def read_pages(directory: str) -> None:
  """Brings a directory's files into the page cache."""
  for parent, _, names in os.walk(directory):
    for name in names:
      with open(os.path.join(parent, name), 'rb', buffering=0) as f:
        while f.read(64 << 20):
          pass


class Table:
  """Times of several peers over rounds, and how they compare."""

  def __init__(self, title: str):
    self._title = title
    self._times: dict[str, list[float]] = {}

  def add(self, name: str, seconds: float) -> None:
    self._times.setdefault(name, []).append(seconds)
    print(f'  {self._title}: {name} {seconds:.3f}', file=sys.stderr, flush=True)

  def show(self) -> None:
    print(f'\n### {self._title}\n')
    print('| | median s | times ours: median (least to most) |')
    print('|---|---|---|')
    ours = self._times['paxlike']
    for name, times in self._times.items():
      ratios = sorted(t / o for t, o in zip(times, ours, strict=True))
      print(
        f'| {name} | {statistics.median(times):.3f} | '
        f'{statistics.median(ratios):.2f} ({ratios[0]:.2f} to '
        f'{ratios[-1]:.2f}) |'
      )
    sys.stdout.flush()


def turns(everyone: list[Any], rounds: int) -> Any:
  """Peers in an order that begins with another one each round."""
  for i in range(rounds):
    k = i % len(everyone)
    yield i, everyone[k:] + everyone[:k]


def timed(function: Callable[[], Any]) -> float:
  """Seconds of one call, what it returns dropped inside the time."""
  gc.collect()
  started = time.perf_counter()
  function()
  return time.perf_counter() - started


def section_save(root: str, rounds: int) -> None:
  """A durable save of the 1.5 GB state."""
  state = make_state(transformer_shapes(), _mesh(8))
  _save_rounds(root, rounds, state, 'durable save, 1.5 GB')


def section_small(root: str, rounds: int) -> None:
  """2,000 arrays of 1 KB."""
  shapes = {f'group_{i % 40}/x{i}': (256,) for i in range(2000)}
  state = make_state(shapes, _mesh(8), axis=1)
  _save_rounds(root, rounds, state, 'durable save, 2,000 arrays of 1 KB')


def section_leaves(root: str, rounds: int) -> None:
  """20,000 leaves, ours alone."""
  shapes = {f'group_{i % 40}/x{i}': (4,) for i in range(20000)}
  mesh = _mesh(8)
  sharding = sharding_of((4,), mesh, 1)
  rows = np.random.default_rng(0).standard_normal((20000, 4), np.float32)
  state = {
    name: jax.device_put(rows[i], sharding) for i, name in enumerate(shapes)
  }
  ours = Paxlike()
  ours.open(os.path.join(root, 'leaves'), state)
  save, restore = Table('save, 20,000 leaves'), Table('restore, 20,000 leaves')
  target = target_of(shapes, mesh, 1)
  for i in range(rounds):
    save.add('paxlike', timed(lambda i=i: ours.save(i, state)))
    restore.add(
      'paxlike',
      timed(lambda: ours.restore(os.path.join(root, 'leaves'), target)),
    )
  ours.close()
  save.show()
  restore.show()


def _save_rounds(root: str, rounds: int, state: Any, title: str) -> None:
  table = Table(title)
  everyone = peers()
  for peer in everyone:
    peer.open(os.path.join(root, peer.name), state)
    peer.save(0, state)
  for i, order in turns(everyone, rounds):
    for peer in order:
      os.sync()
      seconds = timed(lambda p=peer, i=i: (p.save(i + 1, state), p.wait()))
      table.add(peer.name, seconds)
      if isinstance(peer, Limit):
        peer.clean()
  for peer in everyone:
    peer.close()
  table.show()


def restore_targets() -> dict[str, Any]:
  """The abstract states that are restored, by title."""
  shapes = transformer_shapes()
  half = jax.sharding.Mesh(np.array(jax.devices()[:4]), ('data',))
  return {
    'same mesh': target_of(shapes, _mesh(8)),
    '8 to 4 devices on the other axis': target_of(shapes, half, 1),
  }


def section_restore(root: str, rounds: int) -> None:
  """Restores, cold and warm, on two meshes, each in a new process.

  A job restores once, into memory that it has not had before.
  """
  state = make_state(transformer_shapes(), _mesh(8))
  everyone = peers()
  for peer in everyone:
    peer.open(os.path.join(root, peer.name), state)
    peer.save(1, state)
    peer.wait()
    peer.close()
  del state
  for pages, ready in (('cold', forget_pages), ('warm', read_pages)):
    for mesh in restore_targets():
      table = Table(f'restore, {pages}, {mesh}')
      for _, order in turns(everyone, rounds):
        for peer in order:
          ready(os.path.join(root, peer.name))
          index = [p.name for p in everyone].index(peer.name)
          table.add(peer.name, float(_in_child(mesh, index, root)))
      table.show()


def restore_child(mesh: str, index: int, root: str) -> None:
  """One restore in this process; prints its seconds."""
  peer = peers()[index]
  target = restore_targets()[mesh]
  jax.block_until_ready(jax.device_put(np.zeros(8), jax.devices()[0]))
  if isinstance(peer, Orbax):
    import orbax.checkpoint  # noqa: F401 (imported before the clock starts)
  directory = os.path.join(root, peer.name)
  print(timed(lambda: jax.block_until_ready(peer.restore(directory, target))))


def _in_child(what: str, index: int, root: str) -> str:
  """What a process that does one thing prints last."""
  module = [sys.executable, '-m', 'benchmarks.checkpoint']
  flags = ['--child', what, '--peer', str(index), '--root', root]
  done = subprocess.run(
    [*module, *flags], check=True, capture_output=True, text=True
  )
  return done.stdout.strip().splitlines()[-1]


def section_verify(root: str, rounds: int) -> None:
  """What checking every byte adds to a restore."""
  shapes = transformer_shapes()
  mesh = _mesh(8)
  directory = os.path.join(root, 'paxlike')
  ours = Paxlike()
  ours.open(directory, state := make_state(shapes, mesh))
  ours.save(1, state)
  ours.close()
  del state
  target = target_of(shapes, mesh)
  for title, ready in (('cold', forget_pages), ('warm', read_pages)):
    table = Table(f'restore, {title}, with and without checking')
    for i in range(rounds):
      cases = [('paxlike', True), ('unchecked', False)]
      for name, verify in cases if i % 2 else reversed(cases):
        config = checkpoint.CheckpointConfig(verify=verify)
        ready(directory)
        with checkpoint.CheckpointManager(
          directory, config=config, read_only=True
        ) as manager:
          restore = functools.partial(manager.restore, target)
          table.add(
            name, timed(lambda r=restore: jax.block_until_ready(r().state))
          )
    table.show()


def section_memory(root: str, rounds: int) -> None:
  """Peak extra memory of a save and of a restore, each in its own process."""
  del rounds
  print('\n### peak memory beside the state, times the state\n')
  print('| | save | restore |')
  print('|---|---|---|')
  for index, peer in enumerate(peers()[:3]):
    cells = [_in_child(what, index, root) for what in ('save', 'restore')]
    print(f'| {peer.name} | {cells[0]} | {cells[1]} |', flush=True)


def child(what: str, index: int, root: str) -> None:
  """One save or restore; prints its peak memory in states."""
  peer = peers()[index]
  shapes = transformer_shapes()
  mesh = _mesh(8)
  directory = os.path.join(root, f'memory_{index}')
  size = sum(int(np.prod(s)) * 4 for s in shapes.values())
  if what == 'save':
    shutil.rmtree(directory, ignore_errors=True)
    state = make_state(shapes, mesh)
    gc.collect()
    before = _reset_peak()
    peer.open(directory, state)
    peer.save(1, state)
    peer.wait()
    peer.close()
    print(f'{(_peak() - before) / size:.2f}')
    return
  forget_pages(directory)
  before = _reset_peak()
  kept = peer.restore(directory, target_of(shapes, mesh))
  jax.block_until_ready(kept)
  print(f'{(_peak() - before - size) / size:.2f}')


def _reset_peak() -> int:
  with open('/proc/self/clear_refs', 'w', encoding='ascii') as f:
    f.write('5')
  return _status('VmRSS')


def _peak() -> int:
  return _status('VmHWM')


def _status(key: str) -> int:
  with open('/proc/self/status', encoding='ascii') as f:
    for line in f:
      if line.startswith(key):
        return int(line.split()[1]) * 1024
  raise KeyError(key)


@functools.partial(jax.jit, donate_argnums=0, static_argnums=2)
def _train_step(state: Any, weights: Any, loops: int) -> tuple[Any, Any]:
  def body(_: int, x: Any) -> Any:
    return jnp.tanh(x @ weights)

  out = jax.lax.fori_loop(0, loops, body, weights)
  return jax.tree.map(lambda x: x * 0.999 + 0.001, state), out


def _calibrate(state: Any, weights: Any, goal_s: float) -> tuple[Any, int]:
  loops = 4
  while True:
    for _ in range(2):
      started = time.perf_counter()
      state, out = _train_step(state, weights, loops)
      jax.block_until_ready((state, out))
      seconds = time.perf_counter() - started
    if seconds > goal_s * 0.9:
      return state, loops
    loops = max(loops + 1, int(loops * min(4.0, goal_s / seconds)))


def section_async(root: str, rounds: int) -> None:
  """What one async save of 1.5 GB costs a loop of 0.5 s steps."""
  state = make_state(transformer_shapes(), _mesh(8))
  weights = jnp.asarray(
    np.random.default_rng(0).standard_normal((1536, 1536), np.float32) / 40
  )
  state, loops = _calibrate(state, weights, 0.5)
  lost, blocked, done = (
    Table('async save, 1.5 GB: seconds of training lost'),
    Table('async save, 1.5 GB: seconds the loop stands still'),
    Table('async save, 1.5 GB: seconds until durable'),
  )
  everyone = peers(async_save=True)[:3]
  for peer in everyone:
    peer.open(os.path.join(root, f'async {peer.name}'), state)
    peer.save(0, state)
    peer.wait()
  for i, order in turns(everyone, rounds):
    for peer in order:
      os.sync()  # Nobody pays for what the one before left to the kernel.
      state, values = _one_async_save(peer, i + 1, state, weights, loops)
      for table, value in zip((lost, blocked, done), values, strict=True):
        table.add(peer.name, value)
  for peer in everyone:
    peer.close()
  for table in (lost, blocked, done):
    table.show()


def _one_async_save(
  peer: Any, step: int, state: Any, weights: Any, loops: int
) -> tuple[Any, tuple[float, float, float]]:
  def train(state: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    state, out = _train_step(state, weights, loops)
    jax.block_until_ready((state, out))
    return state, time.perf_counter() - started

  alone = []
  for _ in range(6):
    state, seconds = train(state)
    alone.append(seconds)
  usual = statistics.median(alone)
  started = time.perf_counter()
  peer.save(step, state)
  blocked = time.perf_counter() - started
  count = 0
  finished = None
  while finished is None or count < 4:
    state, _ = train(state)
    count += 1
    if finished is None and not peer.is_busy():
      finished = time.perf_counter()
  lost = time.perf_counter() - started - count * usual
  peer.wait()
  return state, (max(lost, 0.001), blocked, finished - started)


def section_busy(root: str, rounds: int) -> None:
  """A save in the background while the main thread never rests in Python."""
  state = make_state(transformer_shapes(), _mesh(8))
  everyone = peers(async_save=True)[:3]
  tables = [
    Table('background save, main thread asleep'),
    Table('background save, main thread in a Python loop'),
  ]
  for peer in everyone:
    peer.open(os.path.join(root, f'busy {peer.name}'), state)
    peer.save(0, state)
    peer.wait()
  for i, order in turns(everyone, rounds):
    for peer in order:
      for j, table in enumerate(tables):
        started = time.perf_counter()
        peer.save(2 * i + j + 1, state)
        count = 0
        while peer.is_busy():
          if j:
            count = sum(range(10_000))
          else:
            time.sleep(0.002)
        table.add(peer.name, time.perf_counter() - started)
        peer.wait()
        assert count >= 0
  for peer in everyone:
    peer.close()
  for table in tables:
    table.show()


def section_every_step(root: str, rounds: int) -> None:
  """A save of 100 MB after every step of 0.5 s."""
  shapes = {f'x{i}': (1024, 256) for i in range(96)}
  state = make_state(shapes, _mesh(8))
  weights = jnp.asarray(
    np.random.default_rng(0).standard_normal((1536, 1536), np.float32) / 40
  )
  state, loops = _calibrate(state, weights, 0.5)
  ours = Paxlike(async_save=True)
  ours.open(os.path.join(root, 'every'), state)
  print('\n### a save of 100 MB after every step of 0.5 s\n')
  step = 0
  speeds = []
  for _ in range(rounds):
    times = []
    for saves in (False, True):
      started = time.perf_counter()
      for _ in range(10):
        state, out = _train_step(state, weights, loops)
        jax.block_until_ready((state, out))
        if saves:
          step += 1
          ours.save(step, state)
      times.append(time.perf_counter() - started)
    ours.wait()
    speeds.append(times[0] / times[1])
  ours.close()
  print(
    f'{statistics.median(speeds):.3f} of the speed without saves '
    f'({min(speeds):.3f} to {max(speeds):.3f})',
    flush=True,
  )


SECTIONS = {
  'save': section_save,
  'restore': section_restore,
  'verify': section_verify,
  'small': section_small,
  'leaves': section_leaves,
  'async': section_async,
  'busy': section_busy,
  'every_step': section_every_step,
  'memory': section_memory,
}


def main() -> None:
  """Runs the sections that were asked for."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--sections', nargs='*', default=list(SECTIONS))
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--root', default='')
  parser.add_argument('--child', default='')
  parser.add_argument('--peer', type=int, default=0)
  args = parser.parse_args()
  if args.child in restore_targets():
    restore_child(args.child, args.peer, args.root)
    return
  if args.child:
    child(args.child, args.peer, args.root)
    return
  for name in args.sections:
    with tempfile.TemporaryDirectory(dir=args.root or None) as root:
      SECTIONS[name](root, args.rounds)


if __name__ == '__main__':
  main()
