"""Who is there, and who is gone, over real sockets."""

import socket
import threading
import time
from concurrent import futures

import pytest

from paxlike.core import errors
from paxlike.sync import _lifeline, _sockets


def _address():
  with socket.socket() as sock:
    sock.bind(('127.0.0.1', 0))
    return f'127.0.0.1:{sock.getsockname()[1]}'


def _join_all(count, *, timeout_s=20.0, silence_s=60.0, absent=()):
  """Joins `count` processes as threads; a future for each."""
  address = _address()
  pool = futures.ThreadPoolExecutor(count)
  return [
    pool.submit(
      _lifeline.join,
      address,
      num_processes=count,
      process_id=index,
      timeout_s=timeout_s,
      silence_s=silence_s,
    )
    for index in range(count)
    if index not in absent
  ]


def _leave(*lines):
  """Ends all connections, process 0's last."""
  for line in reversed(lines):
    line.leave(timeout_s=5.0)


class _Losses:
  """Collects what a watch reports."""

  def __init__(self):
    self.found = []
    self.first = threading.Event()

  def __call__(self, index, what):
    self.found.append((index, what))
    self.first.set()


def _watch(line, at='step 3'):
  losses = _Losses()
  line.watch(losses, where=lambda: at)
  return losses


def test_all_learn_the_same_service_address():
  lines = [future.result(20) for future in _join_all(4)]
  addresses = {line.service_address for line in lines}
  assert len(addresses) == 1
  assert addresses.pop().startswith('127.0.0.1:')
  _leave(*lines)


def test_those_that_do_not_start_are_named_to_all_that_did():
  for future in _join_all(4, timeout_s=0.5, absent=(1, 3)):
    with pytest.raises(errors.SyncError, match=r'2 of 4 .*: 1, 3\.'):
      future.result(20)


def test_process_zero_missing_is_said_with_its_address():
  (future,) = _join_all(2, timeout_s=0.3, absent=(0,))
  with pytest.raises(errors.SyncError, match='could not be reached within'):
    future.result(20)


def test_two_processes_of_one_index_are_refused():
  address = _address()
  with futures.ThreadPoolExecutor(3) as pool:
    jobs = [
      pool.submit(
        _lifeline.join,
        address,
        num_processes=3,
        process_id=index,
        timeout_s=5.0,
      )
      for index in (0, 1, 1)
    ]
    with pytest.raises(errors.SyncError, match='started as process 1'):
      jobs[0].result(20)


def test_other_counts_are_refused():
  address = _address()
  with futures.ThreadPoolExecutor(2) as pool:
    jobs = [
      pool.submit(
        _lifeline.join,
        address,
        num_processes=count,
        process_id=index,
        timeout_s=5.0,
      )
      for index, count in ((0, 3), (1, 2))
    ]
    for job in jobs:
      with pytest.raises(errors.SyncError, match='as 1 of 2, process 0 as'):
        job.result(20)


def test_a_stranger_on_the_port_does_not_disturb():
  address = _address()
  host, port = _sockets.split_address(address)
  with futures.ThreadPoolExecutor(2) as pool:
    hub = pool.submit(
      _lifeline.join, address, num_processes=2, process_id=0, timeout_s=20.0
    )
    with _connected(host, port) as stranger:
      stranger.sendall(b'GET / HTTP/1.1\r\n\r\n')
      spoke = pool.submit(
        _lifeline.join, address, num_processes=2, process_id=1, timeout_s=20.0
      )
      assert hub.result(20).service_address == spoke.result(20).service_address
  _leave(hub.result(), spoke.result())


def _connected(host, port):
  for _ in range(100):
    try:
      return socket.create_connection((host, port))
    except OSError:
      threading.Event().wait(0.02)
  raise TimeoutError


def test_a_death_is_known_at_once_with_where_it_was():
  hub, one, two = (future.result(20) for future in _join_all(3))
  losses = _watch(hub)
  one.watch(lambda *unused: None, where=lambda: 'step 9, phase train')
  for _ in range(100):
    if hub.last_heard(1):
      break
    threading.Event().wait(0.02)
  one.cut()
  assert losses.first.wait(5.0)
  ((index, what),) = losses.found
  assert index == 1
  assert 'ended without saying why' in what
  assert 'step 9, phase train' in what
  _leave(hub, one, two)


def test_the_death_of_process_zero_is_known_to_all():
  hub, one, two = (future.result(20) for future in _join_all(3))
  watches = [_watch(one), _watch(two)]
  hub.cut()
  for losses in watches:
    assert losses.first.wait(5.0)
    assert losses.found[0][0] == 0
  _leave(hub, one, two)


def test_goodbye_is_no_loss():
  hub, one = (future.result(20) for future in _join_all(2))
  losses = _watch(hub)
  _watch(one)
  _leave(hub, one)
  assert losses.found == []


def test_a_silent_process_is_lost_when_its_time_is_over():
  hub, one = (future.result(20) for future in _join_all(2, silence_s=0.3))
  losses = _watch(hub)  # `one` is connected, but nobody beats for it.
  assert losses.first.wait(5.0)
  assert 'silent' in losses.found[0][1]
  _leave(hub, one)


def test_process_0_that_dies_with_words_unread_has_ended_too():
  with socket.create_server(('127.0.0.1', 0)) as server:
    address = f'127.0.0.1:{server.getsockname()[1]}'
    pool = futures.ThreadPoolExecutor(1)
    joining = pool.submit(
      _lifeline.join, address, num_processes=2, process_id=1, timeout_s=20.0
    )
    hub, _ = server.accept()
    hub.recv(4096)
    hub.sendall(b'{"service_port": 1}\n')
    spoke = joining.result(20)
    losses = _watch(spoke)
    while not hub.recv(1, socket.MSG_PEEK):  # its first beat, never read
      pass
    hub.close()
    assert losses.first.wait(10)
  assert [index for index, _ in losses.found] == [0]
  assert losses.found[0][1].startswith(_lifeline.ENDED)


def test_where_a_process_is_is_known_within_half_a_second():
  hub, spoke = (job.result(20) for job in _join_all(2))
  at = ['phase compile']
  _watch(hub)
  spoke.watch(_Losses(), where=lambda: at[0])
  for place, within_s in (('phase compile', 5.0), ('step 1', 0.5)):
    at[0] = place
    deadline_s = time.monotonic() + within_s
    while hub.last_heard(1) != place:
      assert time.monotonic() < deadline_s
      threading.Event().wait(0.01)
  _leave(hub, spoke)
