"""The three steps, as pure functions of a task, its state and a batch.

Nothing here knows of devices or files: jit and shardings are the programs'.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Key

from paxlike import tasks
from paxlike.core import errors, metrics
from paxlike.core import typing as ptyping


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainOutput:
  """What one update reports; it stays on the device until it is asked for.

  Attributes:
    step: Updates done, this one counted.
    loss: The loss before this update.
    metrics: The task's metrics before this update.
    learning_rate: The rate of this update.
    grad_norm: Global norm of the gradient, before clipping.
    is_finite: Whether loss and gradient were finite, so that it was applied.
    halted: Whether updates have stopped since one was not finite.
    per_example: The task's numbers an example.
  """

  step: ptyping.Leaf
  loss: metrics.WeightedScalar
  metrics: dict[str, metrics.WeightedScalar]
  learning_rate: ptyping.Leaf
  grad_norm: ptyping.Leaf
  is_finite: ptyping.Leaf
  halted: ptyping.Leaf
  per_example: dict[str, ptyping.Leaf]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EvalOutput:
  """What one evaluation batch adds to the totals.

  Attributes:
    metrics: The task's metrics, `loss` among them.
    statistics: The task's further sums.
    collected: The task's further rows.
    is_counted: Which rows are examples; the others are padding.
  """

  metrics: dict[str, metrics.WeightedScalar]
  statistics: dict[str, ptyping.Leaf]
  collected: dict[str, ptyping.Leaf]
  is_counted: ptyping.Leaf


def train_step(
  task: tasks.Task, state: tasks.TrainState, batch: ptyping.Batch
) -> tuple[tasks.TrainState, TrainOutput]:
  """One update.

  An update whose loss or gradient is not finite is not applied. Whether
  training then stops or leaves that batch out is `task.train.on_nonfinite`.

  Args:
    task: What to learn.
    state: The state after `state.step` updates.
    batch: The global batch of this update.

  Returns:
    The state after one more update, and what to report of it.
  """
  key = jax.random.fold_in(state.extra['rng'], state.step)
  rate = task.learner.schedule.rate(state.step, task.train.num_train_steps)
  params = state.mdl_vars['params']
  grads, out = _gradients(task, state.mdl_vars, batch, key)
  grad_norm = optax.tree.norm(grads)
  new_params, opt_states = task.learner.update(
    grads, state.opt_states, params, rate=rate, grad_norm=grad_norm
  )
  finite = jnp.isfinite(out.loss.value) & jnp.isfinite(grad_norm)
  extra = dict(state.extra)
  if task.learner.ema_decay is not None:
    extra['ema'] = _averaged(extra['ema'], new_params, task.learner.ema_decay)
  new_state = _guarded(
    state,
    tasks.TrainState(
      step=state.step + 1,
      mdl_vars={**out.mdl_vars, 'params': new_params},
      opt_states=opt_states,
      extra=extra,
    ),
    finite,
    stop=task.train.on_nonfinite == 'stop',
  )
  return new_state, TrainOutput(
    step=new_state.step,
    loss=out.loss,
    metrics=out.metrics,
    learning_rate=rate,
    grad_norm=grad_norm,
    is_finite=finite,
    halted=new_state.extra['halted'],
    per_example=out.per_example,
  )


def _averaged(
  old: ptyping.PyTree, new: ptyping.PyTree, decay: float
) -> ptyping.PyTree:
  return jax.tree.map(
    lambda o, n: (decay * o + (1 - decay) * n).astype(o.dtype), old, new
  )


def _guarded(
  old: tasks.TrainState,
  new: tasks.TrainState,
  finite: Bool[Array, ''],
  *,
  stop: bool,
) -> tasks.TrainState:
  """`new`, unless that update must not be applied.

  Args:
    old: The state before the update.
    new: The state after it.
    finite: Whether its loss and gradient were.
    stop: Whether the first one that is not finite ends all updates, so that
      the state stays that of the last good step; else only it is left out,
      and counts as a step.
  """
  halted = old.extra['halted'] | ~finite if stop else old.extra['halted']
  applied = finite & ~halted

  def pick(new: ptyping.PyTree, old: ptyping.PyTree) -> ptyping.PyTree:
    return jax.tree.map(lambda n, o: jnp.where(applied, n, o), new, old)

  extra = {**new.extra, 'halted': halted}
  if 'ema' in extra:
    extra['ema'] = pick(new.extra['ema'], old.extra['ema'])
  if not stop:
    extra['num_skipped'] = old.extra['num_skipped'] + ~finite
  return tasks.TrainState(
    step=pick(new.step, old.step) if stop else new.step,
    mdl_vars=pick(new.mdl_vars, old.mdl_vars),
    opt_states=pick(new.opt_states, old.opt_states),
    extra=extra,
  )


def _gradients(
  task: tasks.Task,
  mdl_vars: ptyping.PyTree,
  batch: ptyping.Batch,
  key: Key[Array, ''],
) -> tuple[ptyping.PyTree, tasks.StepOutput]:
  """The gradient of the batch's mean loss, in as many parts as asked for."""
  num_parts = task.learner.num_micro_batches

  def summed_loss(
    params: ptyping.PyTree, rest: ptyping.PyTree, part: Any, key: Any
  ) -> tuple[Array, tasks.StepOutput]:
    out = task.loss({**rest, 'params': params}, part, key=key, is_training=True)
    # Parts carry different weights: add up sums, divide once at the end.
    scale = out.loss.weight if num_parts > 1 else 1.0
    return jnp.asarray(out.loss.value * scale), out

  params = mdl_vars['params']
  rest = {name: v for name, v in mdl_vars.items() if name != 'params'}
  grad = jax.value_and_grad(summed_loss, has_aux=True)
  if num_parts == 1:
    (_, out), grads = grad(params, rest, batch, key)
    return grads, out

  def body(carry: Any, part: Any) -> tuple[Any, Any]:
    total, rest = carry
    index, rows = part
    (_, out), grads = grad(params, rest, rows, jax.random.fold_in(key, index))
    rest = {name: out.mdl_vars[name] for name in rest}
    out = dataclasses.replace(out, mdl_vars={})
    return (jax.tree.map(jnp.add, total, grads), rest), out

  zeros = jax.tree.map(jnp.zeros_like, params)
  parts = _split_rows(batch, num_parts)
  (total, rest), outs = jax.lax.scan(
    body, (zeros, rest), (jnp.arange(num_parts), parts)
  )
  loss = _merge(outs.loss)
  divisor = jnp.where(loss.weight == 0, 1.0, loss.weight)
  grads = jax.tree.map(lambda g: (g / divisor).astype(g.dtype), total)
  return grads, tasks.StepOutput(
    loss=loss,
    metrics={name: _merge(value) for name, value in outs.metrics.items()},
    mdl_vars={**rest, 'params': params},
    per_example={
      # Undo the split: part i holds rows i, i + num_parts, ...
      name: jnp.swapaxes(value, 0, 1).reshape(-1, *value.shape[2:])
      for name, value in outs.per_example.items()
    },
    statistics={
      name: value.sum(axis=0) for name, value in outs.statistics.items()
    },
  )


def check_micro_batches(num_parts: int, *, num_rows: int) -> None:
  """Refuses to work a batch of so many rows through in so many parts.

  Raises:
    ConfigError: They do not divide.
  """
  if num_rows % num_parts:
    legal = [n for n in range(1, num_rows + 1) if num_rows % n == 0]
    raise errors.ConfigError(
      f'learner.num_micro_batches is {num_parts}, which does not divide the '
      f'batch of {num_rows} rows (padding to the mesh included). Legal: '
      f'{legal}.'
    )


def _split_rows(batch: ptyping.Batch, num_parts: int) -> dict[str, Array]:
  """`[batch, ...]` to `[num_parts, batch / num_parts, ...]`.

  Part i takes every num_parts-th row, so that each part stays spread over all
  the devices that the batch is spread over.
  """
  rows = next(iter(batch.values())).shape[0]
  check_micro_batches(num_parts, num_rows=rows)
  return {
    name: jnp.swapaxes(
      value.reshape(rows // num_parts, num_parts, *value.shape[1:]), 0, 1
    )
    for name, value in batch.items()
  }


def _merge(stacked: metrics.WeightedScalar) -> metrics.WeightedScalar:
  """One mean of several, by their weights."""
  counted = jnp.where(stacked.weight != 0, stacked.value, 0.0)
  weight = jnp.sum(stacked.weight)
  mean = jnp.sum(counted * stacked.weight) / jnp.where(weight == 0, 1, weight)
  return metrics.WeightedScalar(value=mean, weight=weight)


def eval_step(
  task: tasks.Task, mdl_vars: ptyping.PyTree, batch: ptyping.Batch
) -> EvalOutput:
  """What one batch adds to an evaluation.

  Args:
    task: What to evaluate.
    mdl_vars: The variables, averaged ones where the learner keeps them.
    batch: A global batch; rows of weight 0 do not count.

  Returns:
    Metrics, sums and rows of this batch.
  """
  out = task.loss(mdl_vars, batch, key=None, is_training=False)
  return EvalOutput(
    metrics={**out.metrics, 'loss': out.loss},
    statistics=out.statistics,
    collected=out.collected,
    is_counted=batch['example_weights'] != 0,
  )


def decode_step(
  task: tasks.Task,
  mdl_vars: ptyping.PyTree,
  batch: ptyping.Batch,
  key: Key[Array, ''],
) -> dict[str, Array]:
  """The outputs of one batch, with which rows they belong to.

  Args:
    task: What to decode with.
    mdl_vars: The variables.
    batch: A global batch of a decode input.
    key: For sampling.

  Returns:
    What `task.decode` returned, every field `[batch, ...]`, with `example_id`
    and `example_weights`.

  Raises:
    ConfigError: A field of the task's output is not `[batch, ...]`.
  """
  rows = batch['example_id'].shape[0]
  outputs = dict(task.decode(mdl_vars, batch, key=key))
  for name, value in outputs.items():
    if value.ndim == 0 or value.shape[0] != rows:
      raise errors.ConfigError(
        f'{type(task).__name__}.decode returned {name!r} of shape '
        f'{value.shape}; every output must be [{rows}, ...], one row an '
        'example.'
      )
  outputs['example_id'] = batch['example_id']
  outputs['example_weights'] = batch['example_weights']
  return outputs


def parameter_norms(params: ptyping.PyTree) -> dict[str, Array]:
  """The L2 norm of every parameter, by its path."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): jnp.linalg.norm(
      leaf.astype(jnp.float32).ravel()
    )
    for path, leaf in jax.tree.leaves_with_path(params)
  }
