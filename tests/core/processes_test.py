import os
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
