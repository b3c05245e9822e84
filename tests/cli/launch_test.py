"""Several processes on one machine, started and ended as one."""

import os
import signal
import subprocess
import sys
import time

import pytest

from paxlike.cli import launch
from paxlike.core import errors


def _python(code, count=3):
  return [f'--local={count}', '--', sys.executable, '-c', code]


def test_each_process_learns_its_place_and_its_lines_say_whose_they_are(capfd):
  code = (
    'import os; print(os.environ["JAX_PROCESS_ID"], '
    'os.environ["JAX_NUM_PROCESSES"], os.environ["JAX_COORDINATOR_ADDRESS"])'
  )
  assert launch.main(_python(code)) == 0
  lines = sorted(capfd.readouterr().out.splitlines())
  assert [line.split()[:3] for line in lines] == [
    ['[0]', '0', '3'],
    ['[1]', '1', '3'],
    ['[2]', '2', '3'],
  ]
  addresses = {line.split()[3] for line in lines}
  assert len(addresses) == 1
  assert addresses.pop().startswith('127.0.0.1:')


def test_both_streams_stay_apart(capfd):
  code = 'import sys; print("out"); print("err", file=sys.stderr)'
  assert launch.main(_python(code, count=1)) == 0
  captured = capfd.readouterr()
  assert captured.out == '[0] out\n'
  assert captured.err == '[0] err\n'


def test_the_status_is_that_of_the_first_to_fail(capfd, monkeypatch):
  monkeypatch.setattr(launch, '_GRACE_S', 0.3)
  code = (
    'import os, sys, time; '
    'sys.exit(3) if os.environ["JAX_PROCESS_ID"] == "1" else time.sleep(60)'
  )
  started_s = time.monotonic()
  assert launch.main(_python(code)) == 3
  assert time.monotonic() - started_s < 20.0
  errors_said = capfd.readouterr().err
  assert 'process 1 ended with status 3' in errors_said
  assert 'ending processes [0, 2]' in errors_said


def test_wrong_use_is_told_apart_from_what_it_does_to_the_others():
  code = (
    'import os, sys, time\n'
    'if os.environ["JAX_PROCESS_ID"] == "1": sys.exit(1)\n'
    'time.sleep(0.5); sys.exit(2 if os.environ["JAX_PROCESS_ID"] == "0" else 1)'
  )
  assert launch.main(_python(code)) == 2


def test_a_stopped_process_is_not_waited_for():
  code = (
    'import os, signal, sys, time\n'
    'if os.environ["JAX_PROCESS_ID"] == "1":\n'
    '  os.kill(os.getpid(), signal.SIGSTOP)\n'
    'time.sleep(1)\n'
    'sys.exit(3)'
  )
  started_s = time.monotonic()
  assert launch.main(_python(code, count=2)) == 3
  assert time.monotonic() - started_s < launch._GRACE_S / 2


def test_a_killed_process_counts_as_a_shell_counts(monkeypatch):
  monkeypatch.setattr(launch, '_GRACE_S', 0.3)
  code = 'import os, signal; os.kill(os.getpid(), signal.SIGKILL)'
  assert launch.main(_python(code, count=1)) == 128 + signal.SIGKILL


def test_a_request_to_stop_reaches_all_processes():
  code = (
    'import signal, sys, time\n'
    'signal.signal(signal.SIGTERM, lambda *unused: sys.exit(75))\n'
    'print("ready")\n'
    'time.sleep(60)'
  )
  launcher = subprocess.Popen(
    [
      sys.executable,
      '-c',
      'import sys; from paxlike.cli import launch; '
      'sys.exit(launch.main(sys.argv[1:]))',
      *_python(code),
    ],
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, 'PYTHONPATH': os.getcwd()},
  )
  with launcher:
    assert launcher.stdout is not None
    ready = {launcher.stdout.readline() for _ in range(3)}
    assert ready == {'[0] ready\n', '[1] ready\n', '[2] ready\n'}
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(20.0) == 75


def test_flags_alone_are_those_of_paxlike():
  assert launch._command(['--exp=KjvTiny'])[1:] == [
    '-m',
    'paxlike.main',
    '--exp=KjvTiny',
  ]


def test_wrong_use_is_refused():
  with pytest.raises(errors.UsageError, match='at least 1'):
    launch.main(['--local=0', '--', 'true'])
  with pytest.raises(errors.UsageError, match='Cannot run'):
    launch.main(['--local=1', '--', '/does/not/exist'])
