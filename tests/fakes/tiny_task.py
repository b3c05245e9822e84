"""A linear model as a task: closed-form numbers, compiled in no time."""

import jax
import jax.numpy as jnp
import numpy as np

from paxlike import inputs, parallel, tasks
from paxlike.core import metrics


class LinearTask(tasks.Task):
  """Fits `labels` by a weighted sum of `inputs`, in mean squared error."""

  def __init__(self, *, dim=4, noise=0.0, **kwargs):
    super().__init__(**kwargs)
    self.dim = dim
    self.noise = noise

  def init_vars(self, key):
    kernel = jax.random.normal(key, (self.dim,))
    seen = jnp.zeros((), jnp.float32)
    return {'params': {'kernel': kernel}, 'non_trainable': {'seen': seen}}

  def logical_axes(self):
    return {'params': {'kernel': ('embed',)}, 'non_trainable': {'seen': ()}}

  def loss(self, mdl_vars, batch, *, key, is_training):
    weights = batch['example_weights']
    predicted = batch['inputs'] @ mdl_vars['params']['kernel']
    if is_training and self.noise:
      predicted += self.noise * jax.random.normal(key, predicted.shape)
    squares = (predicted - batch['labels']) ** 2
    seen = mdl_vars['non_trainable']['seen']
    if is_training:
      seen = seen + weights.sum()
    return tasks.StepOutput(
      loss=metrics.weighted_mean(squares, weights),
      metrics={'bias': metrics.weighted_mean(predicted, weights)},
      mdl_vars={**mdl_vars, 'non_trainable': {'seen': seen}},
      per_example={'squares': squares},
      statistics={'count': weights.sum()},
    )


def make_task(*, dim=4, noise=0.0, learner=None, **train):
  """A LinearTask with plain gradient descent at rate 0.1."""
  options = {'optimizer': tasks.sgd, 'clip_global_norm': None}
  schedule = tasks.Constant(value=0.1)
  return LinearTask(
    dim=dim,
    noise=noise,
    learner=tasks.Learner(
      **{'schedule': schedule, **options, **(learner or {})}
    ),
    train=tasks.TrainParams(**{'num_train_steps': 100, **train}),
  )


def make_partitioner(num_devices=1, **sizes):
  """A partitioner over the first devices."""
  config = parallel.MeshConfig(**sizes)
  mesh = parallel.make_mesh(config, jax.devices()[:num_devices])
  return parallel.Partitioner(mesh, config.rules)


def make_batch(rows, *, dim=4, seed=0, weights=None):
  """A host batch of `rows` random examples."""
  rng = np.random.default_rng(seed)
  inputs = rng.normal(size=(rows, dim)).astype(np.float32)
  ones = np.ones(rows, np.float32)
  weights = ones if weights is None else np.asarray(weights, np.float32)
  return {
    'inputs': inputs,
    'labels': inputs.sum(axis=1),
    'example_weights': weights,
    'example_id': np.arange(rows, dtype=np.int32),
  }


def make_input(rows=20, *, dim=4, **options):
  """An input of `rows` examples, batches of 4; for training by default."""
  batch = make_batch(rows, dim=dim)
  arrays = {name: batch[name] for name in ('inputs', 'labels')}
  options = {'name': 'tiny', 'batch_size': 4, 'is_training': True, **options}
  return inputs.ArraysInput(arrays=arrays, **options)
