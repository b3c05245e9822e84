"""The lighthouse: one a job, it hears all agents and tells them what to do.

It is off the data path and keeps nothing that agents do not know: training
goes on while it is away, and a new one at the same address takes over. It
alone writes `status/workers.json` and `status/goodput.jsonl`.
"""

import contextlib
import dataclasses
import json
import queue
import signal
import time
from typing import Any

from absl import logging

from paxlike import reporting
from paxlike.core import errors, fs
from paxlike.elastic import _children, _facts, _membership, _messages, _serving

_TICK_S = 0.05
_REPEAT_S = 1.0
_TOTALS_S = 5.0
_LINGER_S = 15.0
# Ends that the workers have written into the status themselves.
_TOLD = (errors.EXIT_DONE, errors.EXIT_PREEMPTED)


def run(address: str, secret: bytes, *, parent_pid: int | None = None) -> int:
  """Serves one job until it is over.

  Args:
    address: Where agents reach it.
    secret: Of the job.
    parent_pid: The launcher without which the job ends; None: it has none.

  Returns:
    The job's exit status.
  """
  lighthouse = _Lighthouse(address, secret, parent_pid)
  try:
    return lighthouse.run()
  finally:
    lighthouse.close()


@dataclasses.dataclass(frozen=True)
class _Signalled:
  number: int


class _Lighthouse:
  """The state of a lighthouse; all of it belongs to the main thread."""

  def __init__(self, address: str, secret: bytes, parent_pid: int | None):
    self._inbox: _serving.Inbox = queue.SimpleQueue()
    self._names: dict[_messages.Connection, str] = {}
    self._told: dict[_messages.Connection, tuple[float, Any]] = {}
    self._membership: _membership.Membership | None = None
    self._log: _Log | None = None
    self._job: tuple[Any, ...] = ()
    self._totals: dict[str, Any] = {}
    self._totals_s = 0.0
    self._ended_s: float | None = None
    self._parent_pid = parent_pid
    self.address = _serving.listen(
      address, secret, lambda c: _serving.read_into(self._inbox, c)
    )

  def run(self) -> int:
    """Handles what happens, one thing at a time."""
    signal.signal(signal.SIGTERM, lambda n, _: self._inbox.put(_Signalled(n)))
    while True:
      with contextlib.suppress(queue.Empty):
        event = self._inbox.get(timeout=_TICK_S)
        while True:
          if isinstance(event, _Signalled):
            return errors.EXIT_FAILED
          self._hear(event)
          event = self._inbox.get_nowait()
      if _children.is_orphan_of(self._parent_pid):
        return self._end_orphaned()
      order = self._decide()
      if order is not None and order.wish is _facts.Wish.END:
        self._ended_s = self._ended_s or time.monotonic()
        is_late = time.monotonic() - self._ended_s > _LINGER_S
        if is_late or not self._are_agents_left():
          return order.exit_status

  def _are_agents_left(self) -> bool:
    """Whether any are connected, those that fell silent apart."""
    known = self._membership.agents if self._membership is not None else {}
    return any(name in known for name in self._names.values())

  def _end_orphaned(self) -> int:
    """Tells that the launcher was killed, once no worker can say otherwise."""
    deadline_s = time.monotonic() + _LINGER_S
    while self._names and time.monotonic() < deadline_s:
      with contextlib.suppress(queue.Empty):
        event = self._inbox.get(timeout=_TICK_S)
        if not isinstance(event, _Signalled):
          self._hear(event)
    if self._log is not None and self._membership is not None:
      self._write_totals()
      reason = 'the launcher was killed'
      self._log.event(
        {'event': 'end', 'exit_status': errors.EXIT_FAILED, 'reason': reason}
      )
      self._log.failed(reason, step=self._membership.done_step)
    return errors.EXIT_FAILED

  def close(self) -> None:
    """Closes the log."""
    if self._log is not None:
      self._log.close()

  def _hear(self, heard: _serving.Heard) -> None:
    connection, message = heard
    now_s = time.monotonic()
    if message is None:
      name = self._names.pop(connection, None)
      self._told.pop(connection, None)
      # An agent that is back already has another connection by now.
      if (
        name is not None
        and self._membership is not None
        and name not in self._names.values()
      ):
        self._membership.close(name, now_s=now_s)
      return
    try:
      self._hear_agent(connection, message, now_s)
    except (_messages.MessageError, errors.UsageError, TypeError) as error:
      logging.warning('Refused an agent: %s', error)
      connection.close()

  def _hear_agent(
    self,
    connection: _messages.Connection,
    message: _messages.Message,
    now_s: float,
  ) -> None:
    kind = message.get('kind')
    if kind == 'hello':
      self._welcome(message, now_s)
    elif self._membership is None or connection not in self._names:
      raise _messages.MessageError('It has not said who it is.')
    if kind == 'event':
      fields = message.get('fields')
      if self._log is not None and isinstance(fields, dict):
        self._log.event(fields)
      return
    assert self._membership is not None
    agent = _facts.from_message(_facts.Agent, message.get('facts'))
    self._names[connection] = agent.name
    self._membership.hear(agent, now_s=now_s)
    if agent.worker is not None and agent.worker.rank == 0:
      self._totals = {
        'generation': agent.worker.generation,
        'step': agent.worker.step,
        'first_step': message.get('first_step'),
        'totals_s': message.get('totals_s'),
      }

  def _welcome(self, message: _messages.Message, now_s: float) -> None:
    policy = _facts.from_message(_facts.Policy, message.get('policy'))
    job = (policy, message.get('job_id'), message.get('job_log_dir'))
    if self._membership is None:
      self._job = job
      self._membership = _membership.Membership(policy, now_s=now_s)
      self._log = _Log(str(message.get('job_log_dir')))
    elif job != self._job:
      raise errors.UsageError(
        f'It was started with {job}, the others with {self._job}.'
      )

  def _decide(self) -> _facts.Order | None:
    membership = self._membership
    if membership is None:
      return None
    now_s = time.monotonic()
    order = membership.look(now_s=now_s)
    assert self._log is not None
    for event in membership.take_events():
      if event['event'] in ('stopped together', 'fault', 'end'):
        self._write_totals()
      self._log.event(event)
      if event['event'] == 'end' and event['exit_status'] not in _TOLD:
        self._log.failed(event['reason'], step=membership.done_step)
    if order is None:
      return None
    self._send(order, now_s)
    self._log.workers(membership.workers())
    if now_s - self._totals_s > _TOTALS_S:
      self._totals_s = now_s
      self._write_totals()
    return order

  def _write_totals(self) -> None:
    if self._log is not None and self._totals.get('totals_s'):
      self._log.event({'event': 'time', **self._totals})
      self._totals = {}

  def _send(self, order: _facts.Order, now_s: float) -> None:
    for connection in list(self._names):
      told_s, told = self._told.get(connection, (0.0, None))
      if told == order and now_s - told_s < _REPEAT_S:
        continue
      self._told[connection] = (now_s, order)
      with contextlib.suppress(_messages.ClosedError):
        connection.send({'order': _facts.to_message(order)})


class _Log:
  """What the lighthouse writes down for people and for `paxlike report`."""

  def __init__(self, job_log_dir: str):
    self._job_log_dir = job_log_dir
    self._files = fs.for_path(job_log_dir)
    self._dir = fs.join(job_log_dir, 'status')
    self._files.make_dirs(self._dir)
    self._log = reporting.GoodputLog(job_log_dir)
    self._workers: list[dict[str, Any]] | None = None

  def event(self, fields: dict[str, Any]) -> None:
    """Adds one event."""
    if fields.get('event') not in ('snapshot', 'time'):
      logging.info('%s', _in_words(fields))
    self._log.event(fields)

  def failed(self, reason: str, *, step: int) -> None:
    """Tells followers of the job that nobody trains any more."""
    with contextlib.suppress(OSError):
      reporting.write_status(
        self._job_log_dir, 'train', state='failed', step=step, reason=reason
      )

  def workers(self, workers: list[tuple[_facts.Agent, _facts.Worker]]) -> None:
    """Keeps `status/workers.json` true."""
    found = [
      {
        'rank': worker.rank,
        'host': agent.host,
        'agent': agent.name,
        'pid': worker.pid,
        'generation': worker.generation,
      }
      for agent, worker in workers
      if worker.end is None
    ]
    if found == self._workers:
      return
    self._workers = found
    try:
      self._files.write_atomic(
        fs.join(self._dir, 'workers.json'),
        json.dumps(found, indent=1).encode() + b'\n',
      )
    except OSError as error:
      logging.warning('workers.json was not written: %s', error)

  def close(self) -> None:
    """Closes the log."""
    self._log.close()


def _in_words(fields: dict[str, Any]) -> str:
  rest = ', '.join(
    f'{name} {value}'
    for name, value in fields.items()
    if name not in ('event', 'generation') and value not in (None, '')
  )
  return f'generation {fields.get("generation")}: {fields["event"]}, {rest}'
