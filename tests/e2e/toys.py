"""The shipped experiments, made small, with dropout, and telling batch ids."""

import time

import fiddle as fdl
import jax.numpy as jnp

from experiments import digits, lm
from paxlike import experiment, inputs, tasks
from paxlike.core import metrics


def _with_ids(output, batch):
  """Adds a number to the metrics that tells which examples were in a batch."""
  ids = batch['example_id'].astype(jnp.float32)
  spread = jnp.arange(1, len(ids) + 1, dtype=jnp.float32)
  output.metrics['batch_ids'] = metrics.WeightedScalar(
    value=(ids * spread).sum(), weight=jnp.float32(1)
  )
  return output


class LmWithIds(tasks.LanguageModelTask):
  def loss(self, mdl_vars, batch, **options):
    return _with_ids(super().loss(mdl_vars, batch, **options), batch)


class CnnWithIds(tasks.ClassificationTask):
  def loss(self, mdl_vars, batch, **options):
    return _with_ids(super().loss(mdl_vars, batch, **options), batch)


class PacedText(inputs.TextInput):
  """Gives a batch every 40 ms, so that a kill finds the run where it aims."""

  def read(self, position, rows):
    time.sleep(0.04)
    return super().read(position, rows)


class PacedDigits(inputs.DigitsInput):
  """The same of digits."""

  def read(self, position, rows):
    time.sleep(0.04)
    return super().read(position, rows)


def _paced(inputs_p, cls):
  fdl.update_callable(inputs_p[0], cls)
  return inputs_p


def _small(task_p, cls):
  fdl.update_callable(task_p, cls)
  task_p.train.summary_interval_steps = 1
  task_p.train.save_interval_steps = 7
  task_p.train.num_train_steps = 60
  return task_p


@experiment.register
class SmallLm(lm.KjvTiny):
  NUM_LAYERS = 2
  MODEL_DIM = 32
  NUM_HEADS = 2
  SEQ_LEN = 64
  BATCH_SIZE = 4
  DROPOUT_RATE = 0.1

  def task_p(self):
    return _small(super().task_p(), LmWithIds)

  def input_p(self):
    return _paced(super().input_p(), PacedText)


@experiment.register
class SmallCnn(digits.DigitsCnn):
  BATCH_SIZE = 16

  def task_p(self):
    return _small(super().task_p(), CnnWithIds)

  def input_p(self):
    return _paced(super().input_p(), PacedDigits)
