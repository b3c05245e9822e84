"""The agent: one a host, it keeps a worker running and its snapshots safe.

It decides nothing: it tells the lighthouse what is true here and does what
the lighthouse wants. It imports no array library, so it starts in an instant
and nothing that goes wrong in training can reach it.
"""

import contextlib
import dataclasses
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from paxlike.core import errors
from paxlike.elastic import (
  _children,
  _copying,
  _facts,
  _host,
  _memory,
  _messages,
  _serving,
)

AGENT_VARIABLE = _host.AGENT_VARIABLE
SECRET_VARIABLE = _host.SECRET_VARIABLE
Options = _host.Options
_TICK_S = 0.05
_TELL_S = 0.25
_RETRY_S = 0.2
_LEAVE_S = 25.0
_END_S = 10.0
_NO_LIGHTHOUSE_S = 600.0
_ALONG = 'ended together with its generation'


@dataclasses.dataclass(frozen=True)
class _Linked:
  connection: _messages.Connection


@dataclasses.dataclass(frozen=True)
class _Signalled:
  number: int


def run(options: Options) -> int:
  """Serves one job on this host until it is over; returns the exit status."""
  parents = [
    parent
    for parent in (options.snapshot_dir, options.snapshot_spill_dir)
    if parent
  ]
  for parent in parents:
    _memory.sweep(parent, job_id=options.job_id)
  agent = _Agent(options)
  try:
    return agent.run()
  finally:
    agent.close()
    if _children.is_orphan_of(options.parent_pid):
      for parent in parents:  # what the launcher would have done
        _memory.remove_job(parent, job_id=options.job_id)


class _Agent:
  """The state of an agent; all of it belongs to the main thread."""

  def __init__(self, options: Options):
    self._options = options
    self._inbox: _serving.Inbox = queue.SimpleQueue()
    self._incarnation = secrets.token_hex(8)
    self._link: _messages.Connection | None = None
    self._linked_s = time.monotonic()
    self._order: _facts.Order | None = None
    self._leaving_s: float | None = None
    self._wants_stop = False
    self._ended_s: float | None = None
    self._dumped = -1
    self._asked: set[tuple[int, str]] = set()
    self._told_s = 0.0
    self._host = _host.Host(options, self._inbox, self._tell)

  # --- the loop

  def run(self) -> int:
    """Handles what happens, one thing at a time."""
    for number in (signal.SIGTERM, signal.SIGINT):
      signal.signal(number, lambda n, _: self._inbox.put(_Signalled(n)))
    threading.Thread(
      target=self._keep_linked, name='elastic-link', daemon=True
    ).start()
    while True:
      if not self._is_over():
        self._host.start_standby()
      with contextlib.suppress(queue.Empty):
        self._handle(self._inbox.get(timeout=_TICK_S))
        while True:
          self._handle(self._inbox.get_nowait())
      if _children.is_orphan_of(self._options.parent_pid):
        logging.error('The launcher is gone.')
        self._tell()
        return errors.EXIT_FAILED
      status = self._obey()
      if status is not None:
        return status
      if self._host.has_begun() or time.monotonic() - self._told_s > _TELL_S:
        self._tell()

  def close(self) -> None:
    """Ends all children and gives the memory back."""
    self._host.close()

  def _keep_linked(self) -> None:
    """Connects to the lighthouse, again and again (a thread of its own)."""
    while True:
      try:
        connection = _messages.dial(
          self._options.lighthouse, self._options.secret
        )
      except errors.PaxlikeError as error:
        logging.log_every_n_seconds(
          logging.INFO, 'No lighthouse: %s', 10, error
        )
        time.sleep(_RETRY_S)
        continue
      self._inbox.put(_Linked(connection))
      _serving.read_into(self._inbox, connection)
      connection.close()

  def _handle(self, event: Any) -> None:
    if isinstance(event, _Linked):
      self._link, self._linked_s = event.connection, time.monotonic()
      self._tell(is_first=True)
    elif isinstance(event, _Signalled):
      self._hear_signal(event.number)
    elif isinstance(event, _serving.Heard):
      self._hear_lighthouse(event)
    elif isinstance(event, _children.ChildSaid):
      self._host.hear(event.child, event.message)
    elif isinstance(event, _children.ChildEnded):
      self._host.reap(event.child)
    elif isinstance(event, _copying.Copied):
      self._host.copied(event)

  def _hear_signal(self, number: int) -> None:
    if number == signal.SIGINT:
      logging.warning('Asked to stop the job.')
      self._wants_stop = True
    elif self._leaving_s is None:
      logging.warning('Asked to leave the job.')
      self._leaving_s = time.monotonic()
    self._tell()

  def _hear_lighthouse(self, event: _serving.Heard) -> None:
    if event.message is None:
      if event.connection is self._link:
        self._link, self._linked_s = None, time.monotonic()
      return
    try:
      self._order = _facts.from_message(
        _facts.Order, event.message.get('order')
      )
    except _messages.MessageError as error:
      logging.warning('Not understood: %s', error)

  # --- what the lighthouse wants

  def _obey(self) -> int | None:
    """Brings this host closer to the order; the exit status at the end."""
    self._give_up_if_late()
    order = self._order
    if self._leaving_s is not None and (
      self._is_late_to_leave()
      or (order and self._options.name in order.released)
    ):
      return errors.EXIT_DONE
    if order is None:
      return None
    if order.wish is _facts.Wish.END:
      return self._end(order)
    generation = self._host.generation
    if order.wish is _facts.Wish.HOLD:
      if generation <= order.generation:
        self._host.end_worker(_ALONG)
    elif order.generation > generation:
      self._host.end_worker(_ALONG)
      if order.plan and self._options.name in order.plan.members:
        self._host.take_up(order.plan)
    elif order.generation == generation:
      self._pass_on(order)
    return None

  def _is_late_to_leave(self) -> bool:
    assert self._leaving_s is not None
    if time.monotonic() - self._leaving_s < _LEAVE_S:
      return False
    logging.warning('Leaving; nobody has let this host go in time.')
    return True

  def _give_up_if_late(self) -> None:
    away_s = time.monotonic() - self._linked_s
    if self._link is None and self._host.is_idle and away_s > _NO_LIGHTHOUSE_S:
      raise errors.SyncError(
        f'No lighthouse at {self._options.lighthouse} for {away_s:.0f} s.'
      )

  def _pass_on(self, order: _facts.Order) -> None:
    worker = self._host.worker
    assert worker is not None
    if order.dump and self._dumped != order.generation:
      self._dumped = order.generation
      worker.write_stacks()
    if self._options.name in order.stuck and worker.end is None:
      self._host.end_worker(
        f'was stuck and was ended: {order.reason}', end=_facts.End.KILLED
      )
      return
    if order.wish in (_facts.Wish.DRAIN, _facts.Wish.PREEMPT):
      key = (order.generation, str(order.wish))
      if key not in self._asked and worker.connection is not None:
        self._asked.add(key)
        worker.send({'wish': order.wish, 'reason': order.reason})

  def _is_over(self) -> bool:
    return self._leaving_s is not None or (
      self._order is not None and self._order.wish is _facts.Wish.END
    )

  def _end(self, order: _facts.Order) -> int | None:
    """Lets a worker that ends in good order do so, for a while."""
    now_s = time.monotonic()
    self._ended_s = self._ended_s or now_s
    is_late = now_s - self._ended_s > _END_S
    if self._host.is_ending_well and not is_late:
      return None
    if order.exit_status:
      print(f'paxlike: {order.reason}', file=sys.stderr)
    return order.exit_status

  # --- what is told

  def _tell(self, *, is_first: bool = False) -> None:
    """Tells the lighthouse all that is true here."""
    self._told_s = time.monotonic()
    if self._link is None:
      return
    if not is_first:  # others may have put pieces here meanwhile
      self._host.scan()
    message: _messages.Message = {'kind': 'agent'}
    if is_first:
      message = {
        'kind': 'hello',
        'policy': _facts.to_message(self._options.policy),
        'job_id': self._options.job_id,
        'job_log_dir': self._options.job_log_dir,
      }
    facts = self._host.facts(
      incarnation=self._incarnation,
      is_leaving=self._leaving_s is not None,
      wants_stop=self._wants_stop,
      with_plan=is_first,
    )
    message['facts'] = _facts.to_message(facts)
    if self._host.worker is not None:
      for name in ('totals_s', 'first_step'):
        message[name] = self._host.worker.beat.get(name)
    events = self._host.events
    try:
      while events:
        self._link.send({'kind': 'event', 'fields': events[0]})
        events.popleft()
      self._link.send(message)
    except _messages.ClosedError:
      self._link = None


def command_of(arguments: Sequence[str]) -> tuple[str, ...]:
  """The worker's command for the flags of a training job."""
  return (sys.executable, '-m', 'paxlike.main', *arguments)
