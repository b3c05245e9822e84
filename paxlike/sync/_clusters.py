"""Which process of how many this is, told by flags or by the launcher.

Reads environment variables, so that each launcher is a pure function; where
those of mpirun do not suffice MPI is asked, and TPU without the variables is
left to JAX's own detection.
"""

import dataclasses
import os
import re
import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import util

from absl import logging

from paxlike.core import errors
from paxlike.sync import _mpi

Env = Mapping[str, str]

_FIRST_PORT = 61_440
_NUM_PORTS = 4_096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
  """This process's place in its job.

  Attributes:
    address: HOST:PORT at which process 0 is met.
    num_processes: How many processes there are.
    process_id: Which one this is.
    local_device_ids: The devices of this host that are this process's, where
      the launcher started several processes a host; None for all.
    origin: Who told: 'flags', 'Slurm', ...
  """

  address: str
  num_processes: int
  process_id: int
  local_device_ids: Sequence[int] | None = None
  origin: str = 'flags'

  def __post_init__(self) -> None:
    if not 0 <= self.process_id < self.num_processes:
      raise errors.UsageError(
        f'Process id {self.process_id} with {self.num_processes} processes '
        f'(from {self.origin}): must be 0 to {self.num_processes - 1}.'
      )
    host, _, port = self.address.rpartition(':')
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
      raise errors.UsageError(
        f'Process 0 is said to be at {self.address!r} (from {self.origin}): '
        'must be HOST:PORT, the port 1 to 65535.'
      )


def find(
  *,
  coordinator_address: str | None,
  num_processes: int | None,
  process_id: int | None,
  timeout_s: float = 300.0,
  env: Env | None = None,
) -> Cluster | None:
  """The cluster of this process; None when it is alone.

  Args:
    coordinator_address: What a flag says, or None.
    num_processes: Likewise.
    process_id: Likewise.
    timeout_s: For what JAX's own detection has to ask a network for.
    env: The environment, if not the process's.

  Raises:
    UsageError: Some of the three are known and the others cannot be found.
  """
  if num_processes == 1:
    if process_id:
      raise errors.UsageError(
        f'--process_id={process_id} with --num_processes=1: must be 0.'
      )
    return None
  env = os.environ if env is None else env
  flags = {
    'address': coordinator_address or None,
    'num_processes': num_processes,
    'process_id': process_id,
  }
  found = None
  if None in flags.values():
    found = _detect(env, timeout_s, has_address=bool(coordinator_address))
  found = found or {}
  known = found | {k: v for k, v in flags.items() if v is not None}
  if not known or known.get('num_processes') == 1:
    return None
  missing = [
    flag
    for key, flag in (
      ('address', '--coordinator_address'),
      ('num_processes', '--num_processes'),
      ('process_id', '--process_id'),
    )
    if known.get(key) is None
  ]
  if missing:
    raise errors.UsageError(
      f'To run as one of many processes, give {" and ".join(missing)} too '
      f'(known so far: {_told(known)}).'
    )
  return Cluster(**known)


def _told(known: dict) -> str:
  return ', '.join(f'{k}={v}' for k, v in known.items() if v is not None)


def _detect(env: Env, timeout_s: float, *, has_address: bool) -> dict | None:
  def from_mpi(env: Env) -> dict | None:
    return from_mpirun(env, timeout_s=timeout_s, has_address=has_address)

  for launcher in (from_variables, from_slurm, from_mpi, from_kubernetes):
    found = launcher(env)
    if found is not None:
      return found
  # A plain TPU VM has none of the variables: there JAX asks the host itself.
  if any(key in env for key in _JAX_KNOWS) or util.find_spec('libtpu'):
    return _from_jax(timeout_s)
  return None


# What only a host with TPUs has.
_JAX_KNOWS = (
  'TPU_WORKER_HOSTNAMES',
  'TPU_PROCESS_ADDRESSES',
  'TPU_NAME',
  'MEGASCALE_NUM_SLICES',
  'MEGASCALE_COORDINATOR_ADDRESS',
)


def _from_jax(timeout_s: float) -> dict | None:
  from paxlike.sync import _kv  # JAX is loaded only where it is needed

  try:
    found = _kv.detect_with_jax(timeout_s)
  except Exception as error:  # of whatever library it asks the network with
    raise errors.SyncError(
      f'JAX could not find out of which job this host is: {error}. Give '
      '--coordinator_address, --num_processes and --process_id, or '
      '--num_processes=1.'
    ) from error
  if found is None:
    return None
  address, num_processes, process_id = found
  return {
    'address': address,
    'num_processes': num_processes,
    'process_id': process_id,
    'origin': 'JAX',
  }


def from_variables(env: Env) -> dict | None:
  """JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID, all three."""
  names = ('JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID')
  if not all(name in env for name in names):
    return None
  return {
    'address': env['JAX_COORDINATOR_ADDRESS'],
    'num_processes': _number(env, 'JAX_NUM_PROCESSES'),
    'process_id': _number(env, 'JAX_PROCESS_ID'),
    'origin': 'the environment',
  }


def from_slurm(env: Env) -> dict | None:
  """A task that srun started; a batch script by itself is one process."""
  names = ('SLURM_JOB_ID', 'SLURM_STEP_NODELIST', 'SLURM_PROCID')
  if not all(name in env for name in names):
    return None
  # Not SLURM_NTASKS: that is the job's, and set in the batch script too.
  num_processes = _number(env, 'SLURM_STEP_NUM_TASKS', 1)
  step = f'{env["SLURM_JOB_ID"]}.{env.get("SLURM_STEP_ID", "0")}'
  host = first_host(env['SLURM_STEP_NODELIST'])
  return {
    'address': f'{host}:{_port(step, env)}',
    'num_processes': num_processes,
    'process_id': _number(env, 'SLURM_PROCID'),
    'local_device_ids': _own_device(
      env,
      local_id=_number(env, 'SLURM_LOCALID', 0),
      several=_tasks_here(env.get('SLURM_STEP_TASKS_PER_NODE', '1')) > 1,
    ),
    'origin': 'Slurm',
  }


def from_mpirun(
  env: Env, *, timeout_s: float, has_address: bool
) -> dict | None:
  """A rank of mpirun or prterun, by its environment or else by asking MPI.

  Args:
    env: The environment.
    timeout_s: How long MPI may take to bring all processes together.
    has_address: Whether the address of process 0 is known.

  Raises:
    UsageError: Neither tells.
  """
  told = from_open_mpi(env)
  if told is None and 'PMIX_RANK' not in env:
    return None
  if told is not None and (has_address or _is_on_one_host(env)):
    return told
  has_guess = told is not None and told['address'] is not None
  if not _mpi.is_installed():
    if has_guess:
      return told
    raise errors.UsageError(
      f'mpirun does not tell its processes enough to find each other: '
      f'{_mpi.INSTALL}'
    )
  port = (
    _number(env, 'JAX_COORDINATOR_PORT')
    if env.get('JAX_COORDINATOR_PORT')
    else None
  )
  job = _mpi.ask(port=port, timeout_s=timeout_s)
  want = told['num_processes'] if told else _number(env, 'PMIX_RANK') + 1
  if job.num_processes < want:
    text = (
      f'mpi4py is of another MPI than the mpirun that started this process: '
      f'it sees {job.num_processes} processes, and there are {want} at least.'
    )
    if not has_guess:
      raise errors.UsageError(f'{text} Reinstall it: {_mpi.INSTALL}')
    logging.warning('%s It is not listened to.', text)
    return told
  return {
    'address': job.address,
    'num_processes': job.num_processes,
    'process_id': job.process_id,
    'local_device_ids': _own_device(
      env, local_id=job.local_id, several=job.num_local > 1
    ),
    'origin': 'MPI',
  }


def _is_on_one_host(env: Env) -> bool:
  return env.get('OMPI_COMM_WORLD_LOCAL_SIZE') == env['OMPI_COMM_WORLD_SIZE']


def from_open_mpi(env: Env) -> dict | None:
  """What the environment of Open MPI 4 or 5 tells a rank of mpirun.

  Of several hosts that of process 0 is a guess: where mpirun was started.
  """
  if 'OMPI_COMM_WORLD_RANK' not in env:
    return None
  num_processes = _number(env, 'OMPI_COMM_WORLD_SIZE')
  num_local = _number(env, 'OMPI_COMM_WORLD_LOCAL_SIZE', 1)
  job = env.get('OMPI_MCA_orte_hnp_uri') or env.get('PMIX_NAMESPACE', '')
  host = '127.0.0.1' if _is_on_one_host(env) else _mpi_host(job)
  return {
    'address': f'{host}:{_port(job, env)}' if host else None,
    'num_processes': num_processes,
    'process_id': _number(env, 'OMPI_COMM_WORLD_RANK'),
    'local_device_ids': _own_device(
      env,
      local_id=_number(env, 'OMPI_COMM_WORLD_LOCAL_RANK', 0),
      several=num_local > 1,
    ),
    'origin': 'Open MPI',
  }


def _mpi_host(job: str) -> str | None:
  """The launcher's host, from either release's name of the job.

  Open MPI 4: '1531576320.0;tcp://10.96.0.1,10.148.0.1:34911'.
  Open MPI 5: 'prterun-node7-4711@1'.
  """
  four = re.search(r'tcp6?://\[?([^,\]]+?)(?:[,\]]|:\d+$)', job)
  five = re.match(r'prterun-(.+)-\d+@\d+$', job)
  match = four or five
  return match.group(1) if match else None


def from_kubernetes(
  env: Env, fqdn: Callable[[], str] = socket.getfqdn
) -> dict | None:
  """A pod of an Indexed Job or a JobSet.

  Needs JAX_NUM_PROCESSES in the manifest (launch/ has one), since a pod cannot
  see how many it is one of. A JobSet of several jobs also says
  JAX_PROCESSES_PER_JOB and the index of its job, JOB_INDEX.
  """
  if 'KUBERNETES_SERVICE_HOST' not in env or 'JOB_COMPLETION_INDEX' not in env:
    return None
  index = _number(env, 'JOB_COMPLETION_INDEX')
  if 'JOB_INDEX' in env and 'JAX_PROCESSES_PER_JOB' in env:
    index += _number(env, 'JOB_INDEX') * _number(env, 'JAX_PROCESSES_PER_JOB')
  if 'JAX_NUM_PROCESSES' not in env:
    raise errors.UsageError(
      'This is a pod of an Indexed Job, but JAX_NUM_PROCESSES is not set: set '
      'it in the manifest to the number of pods.'
    )
  return {
    'address': env.get('JAX_COORDINATOR_ADDRESS')
    or _first_pod(fqdn(), env['JOB_COMPLETION_INDEX'], env),
    'num_processes': _number(env, 'JAX_NUM_PROCESSES'),
    'process_id': index,
    'origin': 'Kubernetes',
  }


def _first_pod(fqdn: str, index: str, env: Env) -> str | None:
  """Pod `<job>-<index>.<service>...` has its first at `<job>-0.<service>`."""
  pod, dot, service = fqdn.partition('.')
  if not dot or not pod.endswith(f'-{index}'):
    return None
  return f'{pod.removesuffix(index)}0.{service}:{_port(service, env)}'


def _number(env: Env, name: str, default: int | None = None) -> int:
  """A variable that a launcher, or the user, has set to a number.

  Raises:
    UsageError: It is none.
  """
  text = env[name] if default is None else env.get(name, str(default))
  try:
    return int(text)
  except ValueError:
    raise errors.UsageError(
      f'The environment says {name}={text}, which is no whole number. Set it '
      'right, or unset it and say where this process belongs by '
      '--coordinator_address, --num_processes and --process_id.'
    ) from None


def first_host(nodes: str) -> str:
  """The first of a Slurm node list: 'n[007,010-12],login' is 'n007'."""
  match = re.match(r'([^,\[]+)(?:\[([^,\]-]+)[^\]]*\]([^,]*))?', nodes)
  if match is None:
    raise errors.UsageError(f'Cannot read the Slurm node list {nodes!r}.')
  prefix, number, suffix = match.groups()
  return prefix + (number or '') + (suffix or '')


def _tasks_here(tasks_per_node: str) -> int:
  """The largest of Slurm's '2(x3),1'."""
  return max(int(n) for n in re.findall(r'(\d+)(?:\(x\d+\))?', tasks_per_node))


def _own_device(
  env: Env, *, local_id: int, several: bool
) -> tuple[int, ...] | None:
  """One device a process, unless the launcher has dealt them out already."""
  visible = env.get('CUDA_VISIBLE_DEVICES', env.get('ROCR_VISIBLE_DEVICES'))
  dealt = visible is not None and len(visible.split(',')) == 1
  return (local_id,) if several and not dealt else None


def _port(job: str, env: Env) -> int:
  """The same port on every process, another one for another job."""
  if env.get('JAX_COORDINATOR_PORT'):
    return _number(env, 'JAX_COORDINATOR_PORT')
  return _FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS
