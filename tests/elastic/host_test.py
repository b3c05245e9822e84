"""What an agent makes of the end of its worker."""

import queue
import sys
import time

import pytest

from paxlike.elastic import _children, _facts, _host

_SECRET = b'a secret of at least sixteen bytes'
# Says that it is ready, then does what it is told by its argument.
_CHILD = """
import json, os, signal, socket, sys, time
from paxlike.elastic import _messages
fd = json.loads(os.environ['PAXLIKE_AGENT'])['fd']
sock = socket.socket(fileno=fd)
connection = _messages.call(sock, os.environ['PAXLIKE_SECRET'].encode())
connection.send({'kind': 'ready'})
connection.receive()
if sys.argv[1] == 'broken':
  connection.send({'kind': 'end', 'end': 'broken', 'text': 'connection reset'})
if sys.argv[1] in ('killed', 'broken'):
  # As one that was killed does, for as long as the kernel takes to end it.
  connection.close()
time.sleep(60.0)
"""
_PLAN = _facts.Plan(generation=1, members=('a',), coordinator='127.0.0.1:9')


@pytest.fixture
def start(tmp_path):
  """Starts a host whose worker does something; the host and its inbox."""
  hosts = []

  def started(what: str) -> tuple[_host.Host, queue.SimpleQueue]:
    inbox = queue.SimpleQueue()
    options = _host.Options(
      lighthouse='127.0.0.1:9',
      host='127.0.0.1',
      name='a',
      job_id='job',
      job_log_dir=str(tmp_path),
      command=(sys.executable, '-c', _CHILD, what),
      policy=_facts.Policy(),
      secret=_SECRET,
      snapshot_dir=str(tmp_path),
    )
    host = _host.Host(options, inbox, lambda: None)
    hosts.append(host)
    host.start_standby()
    said = inbox.get(timeout=30.0)
    host.hear(said.child, said.message)
    host.take_up(_PLAN)
    assert host.worker is not None
    return host, inbox

  yield started
  for host in hosts:
    host.close()


def _drain(host: _host.Host, inbox: queue.SimpleQueue) -> _facts.End | None:
  """Hears all that the worker had to say; how it ended."""
  while True:
    event = inbox.get(timeout=30.0)
    if isinstance(event, _children.ChildEnded):
      host.reap(event.child)
      return event.child.end
    host.hear(event.child, event.message)


def _wait_for_hang_up(host: _host.Host) -> None:
  deadline_s = time.monotonic() + 30.0
  while not host.worker.has_hung_up():
    assert time.monotonic() < deadline_s
    time.sleep(0.01)


def test_a_worker_that_lives_when_its_generation_ends_ends_along(start):
  host, _ = start('nothing')
  host.end_worker('ended together')
  assert host.worker.end is _facts.End.ALONG
  assert not host.worker.is_alive()


def test_a_worker_that_was_dying_already_is_not_taken_for_one_that_went_along(
  start,
):
  host, inbox = start('killed')
  _wait_for_hang_up(host)
  assert host.worker.is_alive(), 'the kernel is not done with it'
  host.end_worker('ended together')
  assert _drain(host, inbox) is _facts.End.KILLED
  assert 'SIGKILL' in host.worker.text


def test_the_last_words_of_a_worker_count_though_they_are_heard_late(start):
  host, inbox = start('broken')
  _wait_for_hang_up(host)
  host.end_worker('ended together')
  assert _drain(host, inbox) is _facts.End.BROKEN
  assert host.worker.text == 'connection reset'
