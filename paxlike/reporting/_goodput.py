"""Where the time of a job went: useful steps over wall time, by cause."""

import collections
import dataclasses
import datetime
import textwrap
from collections.abc import Sequence
from typing import Any

from paxlike.core import errors
from paxlike.reporting import _goodput_log, _status

_BAR_CHARS = 40
_USEFUL = 'useful steps'
_LOST = 'steps done again'
_AWAY = 'not running'
_FORMING = 'forming, and not running'  # where hosts come and go
_MOST_CHARS = 100  # of the reason for a recovery
_MOST_ENDING_CHARS = 200  # of that for the end
_LEAST_S = 0.05  # less is shown as nothing
# Phase of a worker to the cause that people read.
_CAUSES = {
  'input': 'waiting for input',
  'compile': 'compiling',
  'save': 'blocked by saves',
  'snapshot': 'blocked by snapshots',
  'restore': 'building and restoring',
  'eval': 'evaluating',
  'decode': 'decoding',
  'stall': 'standing still',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
  """One time that the job had to be formed anew.

  Attributes:
    why: The fault, or the reason to change.
    num_hosts: How many hosts went on.
    steps_lost: Steps that had to be done again; None if nothing was known.
    duration_s: From the detection to the first step done; None: not yet.
  """

  why: str
  num_hosts: int
  steps_lost: int | None
  duration_s: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goodput:
  """Where the time went.

  Attributes:
    wall_s: From the first event to the last.
    seconds: By cause; they add up to `wall_s`.
    recoveries: Each time that the job was formed anew.
    ending: How it ended, in words.
  """

  wall_s: float
  seconds: dict[str, float]
  recoveries: tuple[Recovery, ...]
  ending: str

  @property
  def fraction(self) -> float:
    """Useful step time over wall time; 0.0 if no time has passed."""
    return self.seconds[_USEFUL] / self.wall_s if self.wall_s else 0.0

  def text(self) -> str:
    """For people: a bar for each cause, the recoveries, and how it ended."""
    lines = [f'goodput {self.fraction:.1%} of {self.wall_s:.1f} s']
    causes = [
      (cause, seconds)
      for cause, seconds in sorted(self.seconds.items(), key=lambda c: -c[1])
      if seconds >= _LEAST_S or cause == _USEFUL
    ]
    causes.sort(key=lambda c: c[0] != _USEFUL)  # that one first
    width = max(len(cause) for cause, _ in causes)
    for cause, seconds in causes:
      share = seconds / self.wall_s if self.wall_s else 0.0
      bar = '█' * round(share * _BAR_CHARS)
      lines.append(
        f'  {cause:<{width}} {seconds:9.1f} s {share:6.1%}  {bar}'.rstrip()
      )
    if self.recoveries:
      lines.append('formed anew, with the time from noticing to the next step')
    for recovery in self.recoveries:
      took = recovery.duration_s
      lost = recovery.steps_lost
      lines.append(
        f'  {"?" if took is None else f"{took:.1f}"} s, '
        f'{"?" if lost is None else lost} steps lost, went on with '
        f'{recovery.num_hosts}: {textwrap.shorten(recovery.why, _MOST_CHARS)}'
      )
    return '\n'.join([*lines, self.ending])


def goodput(job_log_dir: str) -> Goodput:
  """Reads the events of a job.

  Raises:
    UsageError: There are none.
  """
  try:
    events = _goodput_log.read(job_log_dir)
  except (FileNotFoundError, NotADirectoryError):
    events = []
  if not events:
    raise errors.UsageError(
      f'{_goodput_log.path(job_log_dir)} has no events. Give the job_log_dir '
      'of a training job that has begun.'
    )
  try:
    status = _status.read_status(job_log_dir, 'train')
  except errors.ReportingError:
    status = None
  return summarize(events, status)


def summarize(
  events: Sequence[dict[str, Any]], status: _status.Status | None = None
) -> Goodput:
  """Adds up the events of a job.

  Args:
    events: Oldest first.
    status: What the job last said of itself, for how it ended.
  """
  last: dict[Any, dict[str, Any]] = {}
  for event in events:
    if event.get('totals_s'):
      # Of each process that trained only its last word counts.
      last[event.get('run', 0), event.get('generation', 0)] = event
  lost = _lost_steps(events, list(last.values()))
  seconds: dict[str, float] = collections.defaultdict(float)
  seconds[_USEFUL] = 0.0
  for key, event in last.items():
    totals = dict(event['totals_s'])
    steps_s = totals.pop('', 0.0)
    done = max(1, event.get('step', 0) - max(0, event.get('first_step') or 0))
    again_s = steps_s * min(1.0, lost.get(key[1], 0) / done)
    seconds[_USEFUL] += steps_s - again_s
    seconds[_LOST] += again_s
    for phase, spent_s in totals.items():
      kind = phase.partition(' ')[0]
      seconds[_CAUSES.get(str(kind), str(kind))] += spent_s
  wall_s = events[-1]['time'] - events[0]['time']
  is_elastic = any(event['event'] == 'formed' for event in events)
  away = _FORMING if is_elastic else _AWAY
  seconds[away] = max(0.0, wall_s - sum(seconds.values()))
  return Goodput(
    wall_s=wall_s,
    seconds={cause: s for cause, s in seconds.items() if s or cause == _USEFUL},
    recoveries=_recoveries(events, lost),
    ending=_ending(events, status),
  )


def _ending(
  events: Sequence[dict[str, Any]], status: _status.Status | None
) -> str:
  """How a job ended, as far as it told."""
  step = next((e['step'] for e in reversed(events) if 'step' in e), None)
  begun_s = events[0]['time']
  for event in reversed(events):  # some words may come after the end
    if event['event'] == 'end':
      reason = event.get('reason') or _failure(status, event['time'])
      return _ended_words(step, reason)
    if event['event'] in ('start', 'formed', 'host joined'):
      begun_s = event['time']
      break
  # Process 0, whose log this is, may have been lost; another told the end.
  if status is not None and status.is_over and status.updated_s >= begun_s:
    return _ended_words(
      max(step or 0, status.step), status.reason or status.state
    )
  where = '' if step is None else f' after step {step}'
  when = datetime.datetime.fromtimestamp(events[-1]['time'], datetime.UTC)
  return (
    f'no end was told: it runs, or was killed; last heard of{where}, '
    f'{when:%Y-%m-%d %H:%M:%S} UTC'
  )


def _failure(status: _status.Status | None, ended_s: float) -> str:
  """Why the run that ended then failed, if it did."""
  if status is None or status.state != 'failed':
    return ''
  return status.reason if status.updated_s >= ended_s else ''


def _ended_words(step: int | None, reason: str) -> str:
  where = '' if step is None else f' after step {step}'
  why = textwrap.shorten(reason, _MOST_ENDING_CHARS)
  return f'ended{where}' + (f': {why}' if why else '')


def _lost_steps(
  events: Sequence[dict[str, Any]], words: Sequence[dict[str, Any]]
) -> dict[int, int]:
  """Steps of each generation that a later one did again, as far as known.

  Args:
    events: All of them.
    words: The last word of each process that trained.
  """
  begun, ended = _begun(events, words), _ended(events, words)
  lost: dict[int, int] = {}
  before = 0
  for event in events:
    if event['event'] == 'formed':
      known = event.get('steps_lost')
      # `formed` itself is told in the generation before it.
      later = min((g for g in begun if g > before), default=None)
      if known is None and later is not None:  # it went on from a checkpoint
        known = ended.get(before, 0) - begun[later]
      if known is not None:
        lost[before] = max(0, known)
    before = event.get('generation', before)
  return lost


def _begun(
  events: Sequence[dict[str, Any]], words: Sequence[dict[str, Any]]
) -> dict[int, int]:
  """The steps that each generation began with."""
  firsts = {
    event.get('generation', 0): event.get('step', 1) - 1
    for event in events
    if event['event'] == 'first step'
  }
  return firsts | {
    e.get('generation', 0): e.get('first_step') or 0 for e in words
  }


def _ended(
  events: Sequence[dict[str, Any]], words: Sequence[dict[str, Any]]
) -> dict[int, int]:
  """The last step of each generation that all hosts had done."""
  found = {e.get('generation', 0): e.get('step', 0) for e in words}
  for event in events:
    if event['event'] == 'fault' and event.get('step', -1) >= 0:
      found[event.get('generation', 0)] = event['step']
  return found


def _recoveries(
  events: Sequence[dict[str, Any]], steps_lost: dict[int, int]
) -> tuple[Recovery, ...]:
  found: list[Recovery] = []
  before = 0
  why = ''
  lost: list[str] = []
  for event in events:
    kind = event['event']
    if kind == 'fault':
      why = str(event.get('what', ''))
    elif kind == 'drain':
      why = str(event.get('reason', ''))
    elif kind == 'host lost':
      lost.append(f'{event.get("agent")} was lost: {event.get("how")}')
    elif kind == 'formed' and why:
      found.append(
        Recovery(
          # Survivors complain first, and of nothing but its silence.
          why='; '.join(lost) or why,
          num_hosts=event.get('n', 0),
          steps_lost=steps_lost.get(before),
          duration_s=None,
        )
      )
      why, lost = '', []
    elif kind == 'first step' and found and found[-1].duration_s is None:
      found[-1] = dataclasses.replace(
        found[-1], duration_s=event.get('since_detected_s')
      )
    before = event.get('generation', before)
  return tuple(found)
