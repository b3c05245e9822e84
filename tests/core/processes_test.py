import os
import socket
import subprocess
import sys

from paxlike.core import processes


def child():
  return subprocess.Popen(
    [sys.executable, '-c', 'input()'], stdin=subprocess.PIPE
  )


def test_a_process_that_was_not_waited_for_is_dead():
  with child() as process:
    assert processes.is_alive(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(process.pid)


def test_two_processes_began_at_their_own_times():
  with child() as process:
    began = processes.started(process.pid)
    assert began.isdigit()
    assert int(began) >= int(processes.started(os.getpid()))
    process.kill()
  assert processes.started(process.pid) == ''


def test_all_processes_of_a_machine_call_it_the_same():
  ask = 'from paxlike.core import processes; print(processes.machine())'
  found = subprocess.check_output([sys.executable, '-c', ask], text=True)
  assert found.strip() == processes.machine()


def test_a_killed_process_is_ending_until_it_is_waited_for():
  with child() as process:
    assert not processes.is_ending(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.is_ending(process.pid)
  assert not processes.is_ending(process.pid)


def test_who_sees_a_connection_of_the_killed_end_sees_it_ending():
  ours, theirs = socket.socketpair()
  # The memory is given back first, which takes a while; then all files close.
  code = f"""
import socket
held = bytearray(200 << 20)
socket.socket(fileno={theirs.fileno()}).sendall(b'.')
input()
"""
  with (
    ours,
    subprocess.Popen(
      [sys.executable, '-c', code],
      stdin=subprocess.PIPE,
      pass_fds=[theirs.fileno()],
    ) as process,
  ):
    theirs.close()
    assert ours.recv(1) == b'.'
    assert not processes.is_ending(process.pid)
    process.kill()
    assert ours.recv(1) == b''
    assert processes.is_ending(process.pid)
