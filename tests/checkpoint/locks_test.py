"""A disk that knows no locks, as some network disks, holds checkpoints."""

import ctypes
import platform
import struct
import subprocess
import sys

import pytest

_SET_NO_NEW_PRIVS = 38
_SET_SECCOMP = 22
_FILTER = 2
_ALLOW = 0x7FFF0000
_ENOSYS = 0x00050000 | 38
# x86-64 numbers.
_FCNTL, _FLOCK = 72, 73
_LOCKING = (5, 6, 7, 36, 37, 38)  # F_GETLK ... F_OFD_SETLKW


def refuse_locks() -> None:
  """From here on the kernel answers ENOSYS to every lock, for good."""

  def op(code: int, yes: int, no: int, value: int) -> bytes:
    return struct.pack('HBBI', code, yes, no, value)

  load, jump_if, give = 0x20, 0x15, 0x06
  number = len(_LOCKING)
  program = [
    op(load, 0, 0, 0),  # the number of the call
    op(jump_if, number + 3, 0, _FLOCK),
    op(jump_if, 0, number + 1, _FCNTL),
    op(load, 0, 0, 24),  # its second argument: what fcntl is to do
    *(
      op(jump_if, number - i, 0, command) for i, command in enumerate(_LOCKING)
    ),
    op(give, 0, 0, _ALLOW),
    op(give, 0, 0, _ENOSYS),
  ]
  code = ctypes.create_string_buffer(b''.join(program))
  header = ctypes.create_string_buffer(
    struct.pack('HxxxxxxP', len(program), ctypes.addressof(code))
  )
  libc = ctypes.CDLL(None, use_errno=True)
  assert libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
  assert libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(header)) == 0


def save_restore_and_look(directory: str) -> None:
  """What a run and its tools do, where no lock can be had."""
  import fcntl

  from paxlike.checkpoint import tools
  from tests.checkpoint import states

  refuse_locks()
  with open(f'{directory}/probe', 'w') as probe:
    for lock in (fcntl.flock, fcntl.lockf):
      with pytest.raises(OSError, match='not implemented'):
        lock(probe, fcntl.LOCK_EX)
  for kind in states.KINDS:
    path = f'{directory}/{kind}'
    for steps in ((1, 2), (3,)):
      states.save_steps(path, kind, steps)
    with states.manager(path, kind, read_only=True) as reader:
      found = reader.restore()
    states.assert_equal(found.state, states.plain(3))
    tools.pin(path, [1])
    tools.remove(path, [2])
    assert tools.verify(path).damage == ()
    tools.convert(path, f'{path}_converted', to='GDA')
    tools.convert(path, f'{path}.safetensors')
  print('no lock was missed')


@pytest.mark.skipif(
  platform.machine() != 'x86_64' or sys.platform != 'linux',
  reason='the filter is written for Linux on x86-64',
)
def test_no_lock_is_needed(tmp_path):
  program = (
    'from tests.checkpoint import locks_test\n'
    f'locks_test.save_restore_and_look({str(tmp_path)!r})\n'
  )
  ended = subprocess.run(
    [sys.executable, '-c', program],
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert 'no lock was missed' in ended.stdout, ended.stderr
