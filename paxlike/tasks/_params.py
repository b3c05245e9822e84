"""The numbers of a training run that belong to no model and no input."""

import dataclasses
import datetime

from paxlike.core import errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainParams:
  """When to do what, in train steps unless a name says otherwise.

  Attributes:
    num_train_steps: Updates in the whole run.
    save_interval_steps: Updates from one checkpoint to the next; the last
      step is always saved.
    save_interval_s: Also save when so many seconds have passed since the last
      save, by the clock of process 0; None goes by steps alone.
    save_continuously: Also save as soon as the last checkpoint is durable.
    save_max_to_keep: Newest checkpoints to keep; None keeps all.
    save_keep_interval_duration: Besides those, keep one for good whenever so
      much time has passed; None keeps none.
    save_num_best: Besides those, keep so many of the best.
    save_best_metric: What is best: '<input>/<metric>' of the evaluation of
      test inputs inside training, such as 'kjv_books/loss'.
    save_best_mode: Whether 'min' or 'max' of it is best.
    summary_interval_steps: Updates between two lines of training metrics.
    norm_summary_interval_steps: Updates between two summaries of the norms of
      every parameter; None writes none. A multiple of summary_interval_steps.
    eval_interval_steps: Updates between two evaluations inside training.
    decode_interval_steps: Updates between two decodes inside training; None
      decodes only in the decode job.
    follow_policy: Which checkpoints jobs that follow the training take: 'all'
      of them in order, or always the 'latest', leaving out what came while
      they were busy. The last one is always taken.
    follow_max_held: So many checkpoints more than it keeps may training find on
      its disk for each job that takes 'all' and has still to read them.
    follow_timeout_s: Seconds that such a job waits for a training job that
      says nothing more, because it was killed or preempted.
    max_inflight_steps: Steps handed to the device before the host waits.
    random_seed: Seed of initial parameters and of dropout.
    on_nonfinite: A NaN or infinite loss or gradient: 'stop' keeps the last
      finite state, saves it, and ends the run with an error; 'skip' leaves
      that update out and goes on.
    stall_factor: A job in which no step is done for so many times its median
      step counts as stalled: all processes write their Python stacks to
      status/stacks/, and the log says which of them differ.
    stall_floor_s: But never before so many seconds.
    on_stall: 'report' does no more than that; 'stop' also ends the job.
  """

  num_train_steps: int
  save_interval_steps: int = 1000
  save_interval_s: float | None = None
  save_continuously: bool = False
  save_max_to_keep: int | None = 3
  save_keep_interval_duration: datetime.timedelta | None = None
  save_num_best: int = 0
  save_best_metric: str = ''
  save_best_mode: str = 'min'
  summary_interval_steps: int = 100
  norm_summary_interval_steps: int | None = None
  eval_interval_steps: int = 1000
  decode_interval_steps: int | None = None
  follow_policy: str = 'latest'
  follow_max_held: int = 4
  follow_timeout_s: float = 900.0
  max_inflight_steps: int = 2
  random_seed: int = 0
  on_nonfinite: str = 'stop'
  stall_factor: float = 10.0
  stall_floor_s: float = 300.0
  on_stall: str = 'report'

  def __post_init__(self) -> None:
    _check_from_0(self, 'num_train_steps', 2**31)
    _check_from_0(self, 'random_seed', 2**63)
    for name in _AT_LEAST_1:
      value = getattr(self, name)
      if value is not None and value < 1:
        advice = (
          f' For "only at the end" set it to num_train_steps '
          f'({self.num_train_steps}).'
        )
        raise errors.ConfigError(
          f'task_p.train.{name} is {value}, must be >= 1.'
          + (advice if name.endswith('_interval_steps') else '')
        )
    for name in _ABOVE_0:
      if not getattr(self, name) > 0:
        raise errors.ConfigError(
          f'task_p.train.{name} is {getattr(self, name)}, must be > 0.'
        )
    for name, allowed in _CHOICES.items():
      if getattr(self, name) not in allowed:
        raise errors.ConfigError(
          f'task_p.train.{name} is {getattr(self, name)!r}, must be one of '
          f'{", ".join(allowed)}.'
        )
    if self.save_interval_s is not None and not self.save_interval_s > 0:
      raise errors.ConfigError(
        f'task_p.train.save_interval_s is {self.save_interval_s}, must be > 0.'
      )
    norms = self.norm_summary_interval_steps
    if norms is not None and norms % self.summary_interval_steps:
      raise errors.ConfigError(
        f'task_p.train.norm_summary_interval_steps is {norms}, must be a '
        f'multiple of summary_interval_steps ({self.summary_interval_steps}).'
      )


def _check_from_0(params: TrainParams, name: str, below: int) -> None:
  value = getattr(params, name)
  if not 0 <= value < below:
    raise errors.ConfigError(
      f'task_p.train.{name} is {value}, must be >= 0 and below {below}.'
    )


_AT_LEAST_1 = (
  'save_interval_steps',
  'save_max_to_keep',
  'summary_interval_steps',
  'norm_summary_interval_steps',
  'eval_interval_steps',
  'decode_interval_steps',
  'follow_max_held',
  'max_inflight_steps',
)
_ABOVE_0 = ('follow_timeout_s', 'stall_factor', 'stall_floor_s')
_CHOICES = {
  'follow_policy': ('latest', 'all'),
  'on_nonfinite': ('stop', 'skip'),
  'on_stall': ('report', 'stop'),
  'save_best_mode': ('min', 'max'),
}
