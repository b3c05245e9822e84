"""A worker in this process, and the agent's end of its connection."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from paxlike.elastic import _facts, _memory, _messages, worker

SECRET = b'a secret of at least sixteen bytes'


@contextlib.contextmanager
def worker_of(
  memory: _memory.Memory, plan: _facts.Plan
) -> Iterator[tuple[_messages.Connection, worker.Worker]]:
  """The agent's end of the connection, and the worker of host 'a'."""
  ours, theirs = socket.socketpair()
  ends = {}
  thread = threading.Thread(
    target=lambda: ends.update(agent=_messages.serve(ours, SECRET))
  )
  thread.start()
  connection = _messages.call(theirs, SECRET)
  thread.join()
  setting = worker.Setting(
    fd=-1,
    root=memory.root,
    address='127.0.0.1:9',
    name='a',
    job_id='job',
    snapshot_steps=10,
    max_hosts=4,
    stack_dir='',
  )
  yield ends['agent'], worker.Worker(connection, setting, plan, secret=SECRET)
  connection.close()
  ends['agent'].close()
