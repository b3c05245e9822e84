"""What MPI itself tells of the job, asked through mpi4py.

For a process that mpirun started without telling it enough: a rank of several
hosts does not know where process 0 runs, one of `prterun` not even how many
there are.
"""

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import util

from absl import logging

from paxlike.core import errors
from paxlike.sync import _sockets

INSTALL = (
  'pip install mpi4py (and let it find the MPI that mpirun is of), or give '
  '--coordinator_address, --num_processes and --process_id.'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """A job as MPI knows it, and the place of this process in it.

  Attributes:
    address: HOST:PORT of process 0, a port that was free there just now.
    num_processes: How many processes there are.
    process_id: Which one this is.
    num_local: How many of them run on this host.
    local_id: Which of those this is.
  """

  address: str
  num_processes: int
  process_id: int
  num_local: int
  local_id: int


def is_installed() -> bool:
  """Whether mpi4py is there; nothing is loaded yet."""
  return util.find_spec('mpi4py') is not None


def ask(*, port: int | None, timeout_s: float) -> Job:
  """Starts MPI, in which all processes of the job take part.

  MPI stays started and ends with the interpreter, so that programs may use it
  for themselves.

  Args:
    port: On which process 0 is to be met; None for one that is free.
    timeout_s: How long to wait for all processes to come; past it this
      process is killed, and says why.

  Raises:
    SyncError: There is no MPI library that mpi4py can load.
  """
  try:
    with _ended_after(timeout_s):
      return _meet(port)
  except Exception as error:  # of the loader, or of MPI
    raise errors.SyncError(
      f'mpi4py cannot start MPI ({error}): {INSTALL}'
    ) from error


_WATCH = """
import os, sys, time
wait_s, process, text = sys.argv[1:]
time.sleep(float(wait_s))
if os.getppid() == int(process):
  os.write(2, text.encode())
  os.kill(int(process), 9)
"""


@contextlib.contextmanager
def _ended_after(timeout_s: float) -> Iterator[None]:
  """Ends this process, with a word, if the block takes longer.

  From another process: MPI starts without a deadline, and holds Python's lock
  until all have come, so that no thread of this one would run.
  (launchers_test.py::test_ranks_that_do_not_all_start_mpi_are_told_of_in_time)
  """
  text = (
    'paxlike: MPI did not bring the processes of this job together within '
    f'{timeout_s:.0f} s. Did each of them start?\n'
  )
  arguments = (str(timeout_s), str(os.getpid()), text)
  watch = subprocess.Popen(
    [sys.executable, '-I', '-S', '-c', _WATCH, *arguments],
    stdin=subprocess.DEVNULL,
  )
  try:
    yield
  finally:
    watch.kill()
    watch.wait()


def _meet(port: int | None) -> Job:
  from mpi4py import MPI  # starts it

  world = MPI.COMM_WORLD
  here = world.Split_type(MPI.COMM_TYPE_SHARED)
  num_local, local_id = here.Get_size(), here.Get_rank()
  here.Free()
  first = None
  if world.Get_rank() == 0:
    is_one_host = num_local == world.Get_size()
    host = '127.0.0.1' if is_one_host else socket.gethostname()
    first = f'{host}:{port or _sockets.free_port()}'
  address = world.bcast(first, root=0)
  logging.info('%s', MPI.Get_library_version().partition(',')[0])
  return Job(
    address=address,
    num_processes=world.Get_size(),
    process_id=world.Get_rank(),
    num_local=num_local,
    local_id=local_id,
  )
