"""The processes that an agent starts: one worker, one warm standby."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from paxlike.core import errors, processes
from paxlike.elastic import _facts, _messages, _serving

_HANDSHAKE_S = 120.0


class Child:
  """One process, first a standby, then perhaps a worker.

  Attributes:
    pid: Its process number.
    connection: To it, once it has started up; None before.
    is_ready: Whether it waits for a plan.
    plan: What it was given; None while it is a standby.
    is_settled: Whether it has done a step of its own.
    beat: What it said last of its progress.
    heard_s: When, monotonic.
    end: How it said that it ends, or how it ended.
    text: The error that it ended with.
    exit_status: What it ends with.
    started_s: When it was started, monotonic.
    planned_s: When it was given its plan, monotonic.
  """

  def __init__(
    self,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    setting: Mapping[str, object],
    variable: str,
    secret: bytes,
    inbox: _serving.Inbox,
  ):
    """Starts it.

    To be called from the main thread: the kernel ends children together with
    the thread that made them.
    """
    ours, theirs = socket.socketpair()
    told = {**setting, 'fd': theirs.fileno()}
    self._popen = subprocess.Popen(
      command,
      env={**env, variable: json.dumps(told)},
      pass_fds=[theirs.fileno()],
      stdin=subprocess.DEVNULL,
      start_new_session=True,
    )
    theirs.close()
    self.pid = self._popen.pid
    self.connection: _messages.Connection | None = None
    self.is_ready = False
    self.plan: _facts.Plan | None = None
    self.is_settled = False
    self.beat: dict = {}
    self.end: _facts.End | None = None
    self.text = ''
    self.exit_status = 0
    self.started_s = self.heard_s = time.monotonic()
    self.planned_s = 0.0
    threading.Thread(
      target=self._read,
      args=(ours, secret, inbox),
      name='elastic-child',
      daemon=True,
    ).start()

  def _read(
    self, sock: socket.socket, secret: bytes, inbox: _serving.Inbox
  ) -> None:
    try:
      connection = _messages.serve(sock, secret, timeout_s=_HANDSHAKE_S)
    except errors.PaxlikeError:
      sock.close()
      inbox.put(ChildEnded(self))
      return
    self.connection = connection
    with contextlib.closing(connection):
      try:
        while True:
          message, _ = connection.receive()
          inbox.put(ChildSaid(self, message))
      except errors.PaxlikeError:
        inbox.put(ChildEnded(self))

  def send(self, message: _messages.Message) -> None:
    """Tells it something; one that is gone is found out elsewhere."""
    if self.connection is not None:
      with contextlib.suppress(_messages.ClosedError):
        self.connection.send(message)

  def kill(self) -> None:
    """Ends it, stopped or not; returns when it is gone."""
    if self._popen.poll() is None:
      self._popen.kill()
    self._popen.wait()

  def wait(self, timeout_s: float) -> int | None:
    """Waits for its end; its status, None if it still lives."""
    try:
      return self._popen.wait(timeout_s)
    except subprocess.TimeoutExpired:
      return None

  def has_hung_up(self) -> bool:
    """Whether it has ended, or is about to: it closes what it holds first."""
    if self.connection is not None and self.connection.has_hung_up():
      return True
    # Its peers may have been hung up on before its agent.
    return processes.is_ending(self.pid)

  def is_alive(self) -> bool:
    """Whether the process exists."""
    return self._popen.poll() is None

  def write_stacks(self) -> None:
    """Has it write down its Python stacks."""
    if self.is_alive():
      os.kill(self.pid, signal.SIGUSR1)


@dataclasses.dataclass(frozen=True)
class ChildSaid:
  """A message of a child."""

  child: Child
  message: _messages.Message


@dataclasses.dataclass(frozen=True)
class ChildEnded:
  """The end of a child's connection, which is that of the child."""

  child: Child


def is_orphan_of(parent_pid: int | None) -> bool:
  """Whether the parent that this process cannot do without is gone."""
  return parent_pid is not None and os.getppid() != parent_pid
