"""Experiments in which one phase takes seconds, and says so, to be hurt there.

An experiment's name says which phase; each writes `now: <phase>` first.
"""

import functools
import sys
import time

import fiddle as fdl
import jax

from experiments import digits
from paxlike import checkpoint, experiment, inputs, tasks
from paxlike.core import fs

_SLOW_S = 3.0


def now(phase: str, duration_s: float = _SLOW_S) -> None:
  print(f'now: {phase}', file=sys.stderr, flush=True)
  time.sleep(duration_s)


class SlowToCompile(tasks.ClassificationTask):
  """Takes seconds to trace."""

  def loss(self, mdl_vars, batch, **options):
    now('compile')
    return super().loss(mdl_vars, batch, **options)


class PacedTraining(inputs.DigitsInput):
  """Half a second a batch."""

  PHASE = 'train'

  def read(self, position, rows):
    now(self.PHASE, 0.5)
    return super().read(position, rows)


class PacedTest(PacedTraining):
  """The same, to test on."""

  PHASE = 'eval'


class SlowOnOne(inputs.DigitsInput):
  """Half a second a batch, on process 1."""

  def read(self, position, rows):
    if jax.process_index() == 1:
      now('input', 0.5)
    return super().read(position, rows)


class StuckTest(inputs.DigitsInput):
  """Never comes back from its fourth batch, on process 1."""

  def read(self, position, rows):
    if position == 3 and jax.process_index() == 1:
      now('stuck', 600.0)
    return super().read(position, rows)


def _slow(method, phase):
  @functools.wraps(method)
  def slow(*args, **kwargs):
    now(phase)
    return method(*args, **kwargs)

  return slow


def _slow_once(method, phase, duration_s):
  waits = iter([duration_s])  # one thread takes it: next() is atomic

  @functools.wraps(method)
  def slow(*args, **kwargs):
    wait_s = next(waits, None)
    if wait_s is not None:
      now(phase, wait_s)
    return method(*args, **kwargs)

  return slow


@experiment.register
class Plain(digits.DigitsMlp):
  """Nothing slow; runs until it is stopped."""

  NUM_TRAIN_STEPS = 100_000
  TEST_BATCH_SIZE = 32
  SAVE_EVERY = 1_000_000
  EVAL_EVERY = 1_000_000

  def task_p(self):
    task_p = super().task_p()
    task_p.train.save_interval_steps = self.SAVE_EVERY
    task_p.train.eval_interval_steps = self.EVAL_EVERY
    task_p.train.summary_interval_steps = 1
    return task_p


@experiment.register
class Train(Plain):
  """Says when it trains."""

  def input_p(self):
    train_p, *others = super().input_p()
    fdl.update_callable(train_p, PacedTraining)
    return [train_p, *others]


@experiment.register
class SlowInput(Plain):
  """Process 1 reads slowly."""

  def input_p(self):
    train_p, *others = super().input_p()
    fdl.update_callable(train_p, SlowOnOne)
    return [train_p, *others]


@experiment.register
class Compile(Plain):
  def task_p(self):
    task_p = super().task_p()
    fdl.update_callable(task_p, SlowToCompile)
    return task_p


@experiment.register
class Eval(Plain):
  """Its test sets are slow, in evaluation and in decoding."""

  EVAL_EVERY = 5

  def _test_p(self, name):
    test_p = super()._test_p(name)
    fdl.update_callable(test_p, PacedTest)
    return test_p


@experiment.register
class StuckEval(Plain):
  """Its test sets are stuck, in evaluation and in decoding."""

  EVAL_EVERY = 5

  def _test_p(self, name):
    test_p = super()._test_p(name)
    fdl.update_callable(test_p, StuckTest)
    return test_p


@experiment.register
class Restore(Plain):
  def task_p(self):
    manager = checkpoint.CheckpointManager
    manager.restore = _slow(manager.restore, 'restore')
    return super().task_p()


@experiment.register
class RestoreOnOne(Plain):
  """One process reads the checkpoint slowly, once."""

  READER = 0
  READ_S = 20.0

  def task_p(self):
    if f'--process_id={self.READER}' in sys.argv:
      fs.LocalFileSystem.open_read = _slow_once(
        fs.LocalFileSystem.open_read, 'restore', self.READ_S
      )
    return super().task_p()


@experiment.register
class Save(Plain):
  SAVE_EVERY = 10

  def task_p(self):
    manager = checkpoint.CheckpointManager
    manager._commit = _slow(manager._commit, 'save')
    return super().task_p()


@experiment.register
class OtherShapes(Plain):
  """Process 1 has a wider layer; its config looks the same."""

  def task_p(self):
    task_p = super().task_p()
    if '--process_id=1' in sys.argv:
      task_p.model.hidden_dims = (256,)
    return task_p
