"""The train step on a mesh: compiled once, its state donated."""

import collections
import functools

import jax

from paxlike import parallel, tasks
from paxlike.core import typing as ptyping
from paxlike.programs import _executable, steps


class TrainProgram:
  """Runs updates, never more than a few ahead of the device.

  Attributes:
    abstract_state: Shapes, dtypes and shardings of the state.
  """

  def __init__(self, task: tasks.Task, partitioner: parallel.Partitioner):
    self._task = task
    self._partitioner = partitioner
    self._in_flight: collections.deque[jax.Array] = collections.deque()
    self.abstract_state = abstract_state(task, partitioner)
    shardings = jax.tree.map(lambda a: a.sharding, self.abstract_state)
    self._init = jax.jit(task.init_state, out_shardings=shardings)
    self._step = _executable.Executable(
      functools.partial(steps.train_step, task),
      in_shardings=(shardings, partitioner.batch_sharding),
      out_shardings=(shardings, partitioner.replicated),
      donate_argnums=0,
    )
    self._norms = jax.jit(
      steps.parameter_norms, out_shardings=partitioner.replicated
    )

  def init_state(self) -> tasks.TrainState:
    """A fresh state, each array made where it lives."""
    return self._init(self._key())

  def complete(self, state: tasks.TrainState) -> tasks.TrainState:
    """Makes fresh values for the abstract leaves of a state, and no others."""
    leaves, structure = jax.tree.flatten(state)
    missing = [
      i
      for i, leaf in enumerate(leaves)
      if isinstance(leaf, jax.ShapeDtypeStruct)
    ]

    def init_some(key: jax.Array) -> list[jax.Array]:
      fresh = jax.tree.leaves(self._task.init_state(key))
      return [fresh[i] for i in missing]

    shardings = [leaves[i].sharding for i in missing]
    made = jax.jit(init_some, out_shardings=shardings)(self._key())
    for i, value in zip(missing, made, strict=True):
      leaves[i] = value
    return jax.tree.unflatten(structure, leaves)

  def _key(self) -> jax.Array:
    seed = self._task.train.random_seed
    return jax.random.key(seed, impl='threefry2x32')

  def run(
    self, state: tasks.TrainState, batch: ptyping.PlacedBatch
  ) -> tuple[tasks.TrainState, steps.TrainOutput]:
    """Starts one update; waits only if too many are under way.

    Args:
      state: The state before; its arrays are given up.
      batch: The global batch.

    Returns:
      The state after, and what to report, both perhaps not computed yet.
    """
    state, out = self._step(state, batch)
    self._in_flight.append(out.step)
    if len(self._in_flight) > self._task.train.max_inflight_steps:
      self._in_flight.popleft().block_until_ready()
    return state, out

  def norms(self, state: tasks.TrainState) -> dict[str, jax.Array]:
    """The norm of every parameter."""
    return self._norms(state.mdl_vars['params'])


def abstract_state(
  task: tasks.Task, partitioner: parallel.Partitioner
) -> tasks.TrainState:
  """The state's shapes and where they live; touches no device."""
  key = jax.eval_shape(lambda: jax.random.key(0, impl='threefry2x32'))
  shapes = jax.eval_shape(task.init_state, key)
  shardings = partitioner.shardings(shapes, task.state_axes(shapes))
  return jax.tree.map(
    lambda shape, sharding: jax.ShapeDtypeStruct(
      shape.shape, shape.dtype, sharding=sharding
    ),
    shapes,
    shardings,
  )
