"""An experiment whose every number is known: all parameters equal the step.

So an evaluation tells which step it was of, and whether it was of one alone.
"""

import time

import fiddle as fdl
import jax.numpy as jnp
import numpy as np

from paxlike import experiment, inputs, tasks
from paxlike.core import metrics

NUM_TEST_EXAMPLES = 10
NUM_DECODE_EXAMPLES = 90


class CountingTask(tasks.Task):
  """Adds 1 to every parameter in every step.

  Attributes:
    decode_s: Seconds that the host takes for a batch of decode outputs.
  """

  def __init__(self, *, decode_s=0.0, **options):
    super().__init__(**options)
    self.decode_s = decode_s

  def init_vars(self, key):
    del key
    params = {name: jnp.zeros((50_000,)) for name in ('first', 'last')}
    return {'params': params, 'non_trainable': {}}

  def logical_axes(self):
    axes = {'first': ('embed',), 'last': ('mlp',)}
    return {'params': axes, 'non_trainable': {}}

  def loss(self, mdl_vars, batch, *, key, is_training):
    del key, is_training
    count = batch['example_weights'].sum()
    params = mdl_vars['params']
    all_of_them = jnp.concatenate([params['first'], params['last']])
    return tasks.StepOutput(
      loss=metrics.WeightedScalar(value=-all_of_them.sum(), weight=count),
      metrics={
        'smallest': metrics.WeightedScalar(
          value=all_of_them.min(), weight=count
        ),
        'largest': metrics.WeightedScalar(
          value=all_of_them.max(), weight=count
        ),
      },
      mdl_vars=mdl_vars,
    )

  def decode(self, mdl_vars, batch, *, key):
    del key
    rows = jnp.ones((len(batch['example_id']),))
    return {
      'smallest': rows * mdl_vars['params']['first'].min(),
      'largest': rows * mdl_vars['params']['last'].max(),
    }

  def process_decode_out(self, source, outputs):
    time.sleep(self.decode_s)
    decoded = super().process_decode_out(source, outputs)
    count = float(len(decoded.pairs))
    one = metrics.WeightedScalar(value=1.0, weight=count)
    return tasks.Decoded(
      metrics={'one': one},
      pairs=decoded.pairs,
      statistics={'count': np.asarray(len(decoded.pairs))},
    )

  def derive_decoded(self, totals, statistics):
    weight = totals['one'].weight
    return {
      'count': metrics.WeightedScalar(
        value=float(statistics['count']), weight=weight
      )
    }


class PacedInput(inputs.SyntheticClassificationInput):
  """Gives a batch every 50 ms."""

  def read(self, position, rows):
    time.sleep(0.05)
    return super().read(position, rows)


class FailingInput(PacedInput):
  """Training data of which the twenty-fifth batch cannot be read."""

  def read(self, position, rows):
    if position >= 24:
      raise ValueError('Record 48 is torn.')
    return super().read(position, rows)


class NoInput(PacedInput):
  """The training data on a machine that has none."""

  def read(self, position, rows):
    raise FileNotFoundError('There are no training data here.')

  @property
  def batch_spec(self):
    raise FileNotFoundError('There are no training data here.')


@experiment.register
class Counting(experiment.BaseExperiment):
  """Trains for a while without much to do."""

  NUM_TRAIN_STEPS = 400
  SAVE_INTERVAL_STEPS = 10
  DECODE_S = 0.0
  HAS_TRAIN_DATA = True
  IS_TRAIN_DATA_TORN = False

  def task_p(self):
    return fdl.Config(
      CountingTask,
      decode_s=self.DECODE_S,
      learner=fdl.Config(
        tasks.Learner,
        schedule=fdl.Config(tasks.Constant, value=1.0),
        optimizer=fdl.Partial(tasks.sgd),
        clip_global_norm=None,
      ),
      train=fdl.Config(
        tasks.TrainParams,
        num_train_steps=self.NUM_TRAIN_STEPS,
        save_interval_steps=self.SAVE_INTERVAL_STEPS,
        save_max_to_keep=1,
        follow_policy='all',
        follow_timeout_s=60.0,
      ),
    )

  def input_p(self):
    train = PacedInput if self.HAS_TRAIN_DATA else NoInput
    if self.IS_TRAIN_DATA_TORN:
      train = FailingInput
    return [
      self._input(train, 'train', is_training=True, batch_size=2),
      self._input(
        inputs.SyntheticClassificationInput,
        'test',
        num_examples=NUM_TEST_EXAMPLES,
      ),
    ]

  def decode_input_p(self):
    return [
      self._input(
        inputs.SyntheticClassificationInput,
        'rows',
        num_examples=NUM_DECODE_EXAMPLES,
      )
    ]

  def _input(self, cls, name, **fields):
    fields = {'batch_size': 4, 'num_classes': 2, 'shape': (1,), **fields}
    return fdl.Config(cls, name=name, **fields)
