"""An experiment whose steps take long enough to be interrupted."""

import dataclasses
import json
import os
import pathlib
import time

import fiddle as fdl
import jax

from experiments import lm
from paxlike import experiment, inputs
from paxlike.core import typing
from tests.e2e import toys


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SlowInput(inputs.SyntheticLmInput):
  """Synthetic text, at most one batch each `pause_s` seconds.

  Attributes:
    pause_s: How long one batch takes.
    hang_at: Where process 1 hangs, once in the life of the job; -1: nowhere.
    hang_mark: A file that says that it has.
    fail_from: From where on `fail_on` cannot read; -1: it always can.
    fail_on: The host whose disk is broken.
  """

  pause_s: float = 0.0
  hang_at: int = -1
  hang_mark: str = ''
  fail_from: int = -1
  fail_on: str = ''

  def read(self, position: int, rows: range) -> typing.HostBatch:
    time.sleep(self.pause_s)
    if position == self.hang_at and jax.process_index() == 1:
      mark = pathlib.Path(self.hang_mark)
      if not mark.exists():
        mark.touch()
        time.sleep(10_000.0)
    if 0 <= self.fail_from <= position and self.fail_on == _host():
      raise OSError('the disk of this host is broken')
    return super().read(position, rows)


def _host() -> str:
  """The name of this process's agent; '' without one."""
  return json.loads(os.environ.get('PAXLIKE_AGENT', '{}')).get('name', '')


@experiment.register
class Slow(lm.ByteLm):
  """As small as can be; every step tells its loss and its batch."""

  MODEL_DIM = 32
  NUM_LAYERS = 1
  NUM_HEADS = 2
  SEQ_LEN = 32
  BATCH_SIZE = 12
  NUM_TRAIN_STEPS = 100
  WARMUP_STEPS = 10
  DROPOUT_RATE = 0.1
  PAUSE_S = 0.02
  HANG_AT = -1
  HANG_MARK = ''
  FAIL_FROM = -1
  FAIL_ON = ''

  def task_p(self) -> fdl.Config:
    task_p = super().task_p()
    fdl.update_callable(task_p, toys.LmWithIds)
    task_p.train.summary_interval_steps = 1
    task_p.train.save_interval_steps = 1_000
    task_p.train.eval_interval_steps = 1_000
    return task_p

  def input_p(self) -> list[fdl.Config]:
    return [
      fdl.Config(
        SlowInput,
        name='slow',
        is_training=True,
        batch_size=self.BATCH_SIZE,
        seq_len=self.SEQ_LEN,
        vocab_size=256,
        pause_s=self.PAUSE_S,
        hang_at=self.HANG_AT,
        hang_mark=self.HANG_MARK,
        fail_from=self.FAIL_FROM,
        fail_on=self.FAIL_ON,
      )
    ]
