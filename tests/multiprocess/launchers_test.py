"""Real launchers: Open MPI 5, and Open MPI 4 and Slurm where installed."""

import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.multiprocess import harness

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

JOBS = 'tests.multiprocess.sync_jobs'
WORKER = [sys.executable, '-m', 'tests.multiprocess.worker']
ENVIRONMENT = {
  'JAX_PLATFORMS': 'cpu',
  'XLA_FLAGS': '--xla_force_host_platform_device_count=2',
}


def needs(*programs):
  """Skips where a program is not installed."""
  missing = [name for name in programs if shutil.which(name) is None]
  return pytest.mark.skipif(
    bool(missing), reason=f'needs {", ".join(missing)} to be installed'
  )


only_on_linux = pytest.mark.skipif(
  sys.platform != 'linux', reason='its wheel is for Linux'
)
# Open MPI 5 comes with the test environment, as a wheel.
OPEN_MPI_5 = pathlib.Path(sys.executable).parent


def ended_under(launcher, job, *arguments, env=None):
  """Two processes of a job, started by a launcher of Open MPI."""
  command = [str(launcher), '-n', '2', '--map-by', ':OVERSUBSCRIBE']
  if os.geteuid() == 0:
    command.append('--allow-run-as-root')
  changes = [f'{name}={value}' for name, value in (env or {}).items()]
  ended = subprocess.run(
    [*command, 'env', *changes, *WORKER, f'{JOBS}:{job}', *arguments],
    cwd=harness.ROOT,
    env={**os.environ, **ENVIRONMENT},
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  return ended.returncode, ended.stdout + ended.stderr


def assert_met(ended, origin):
  status, output = ended
  assert status == 0, output
  assert output.count('all met') == 2
  assert f'of 2 ({origin})' in output


@needs('mpirun')
def test_mpirun_starts_processes_that_find_each_other():
  assert_met(ended_under(shutil.which('mpirun'), 'meets'), 'Open MPI')


@only_on_linux
def test_mpirun_of_open_mpi_5_starts_processes_that_find_each_other():
  assert_met(ended_under(OPEN_MPI_5 / 'mpirun', 'meets'), 'Open MPI')


@only_on_linux
def test_ranks_that_may_be_on_several_hosts_ask_mpi_for_the_first():
  # As a rank sees it whose host has no other.
  env = {'OMPI_COMM_WORLD_LOCAL_SIZE': '1'}
  assert_met(ended_under(OPEN_MPI_5 / 'mpirun', 'meets', env=env), 'MPI')


@only_on_linux
def test_ranks_of_prterun_ask_mpi_for_everything():
  assert_met(ended_under(OPEN_MPI_5 / 'prterun', 'meets'), 'MPI')


@only_on_linux
def test_a_failed_rank_is_named_though_mpi_was_started():
  status, output = ended_under(
    OPEN_MPI_5 / 'prterun', 'error_on', '1', 'wait in a barrier'
  )
  assert status != 0
  assert 'ValueError: boom' in output


@only_on_linux
def test_ranks_that_do_not_all_start_mpi_are_told_of_in_time():
  script = (
    'import sys, os, time\n'
    'from paxlike import sync\n'
    'if os.environ["PMIX_RANK"] == "1": time.sleep(20); os._exit(0)\n'
    'with sync.bootstrap(timeout_s=3.0): pass\n'
  )
  command = [str(OPEN_MPI_5 / 'prterun'), '-n', '2']
  command += ['--map-by', ':OVERSUBSCRIBE']
  if os.geteuid() == 0:
    command.append('--allow-run-as-root')
  began_s = time.monotonic()
  ended = subprocess.run(
    [*command, sys.executable, '-c', script],
    cwd=harness.ROOT,
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )
  assert ended.returncode != 0
  assert 'MPI did not bring the processes of this job together' in ended.stderr
  assert time.monotonic() - began_s < 18.0


class Slurm:
  """A controller, a daemon and an authority of this test's own."""

  def __init__(self, directory: pathlib.Path):
    self._directory = directory
    self._daemons: list[subprocess.Popen] = []
    self.env = {**os.environ, **ENVIRONMENT}

  def start(self) -> None:
    """Starts the daemons and waits for the node."""
    self._start_munge()
    self._write_config()
    self.env['SLURM_CONF'] = str(self._directory / 'slurm.conf')
    self._spawn('slurmctld', '-D', '-i')
    self._spawn('slurmd', '-D', '-N', self._node())
    deadline_s = time.monotonic() + 60.0
    while 'idle' not in self.run('sinfo', '-h', '-o', '%t').stdout:
      if time.monotonic() > deadline_s or self._daemons[-1].poll() is not None:
        pytest.skip(f'Slurm does not start on this machine:\n{self.logs()}')
      time.sleep(0.2)

  def run(self, *command: str, timeout_s: float = 120.0):
    """Runs one of Slurm's commands."""
    return subprocess.run(
      command,
      cwd=harness.ROOT,
      env=self.env,
      capture_output=True,
      text=True,
      timeout=timeout_s,
      check=False,
    )

  def logs(self) -> str:
    """What the daemons have to say."""
    return '\n'.join(
      path.read_text(errors='replace')[-3_000:]
      for path in sorted(self._directory.glob('*.log'))
    )

  def stop(self) -> None:
    """Ends the jobs and then the daemons, the last started first."""
    if len(self._daemons) == 3:
      self.run('scancel', '--full', '--signal=KILL', '--user=root')
      self.run('scancel', '--user=root')
      deadline_s = time.monotonic() + 20.0
      while self.run('squeue', '-h').stdout and time.monotonic() < deadline_s:
        time.sleep(0.2)
    for daemon in reversed(self._daemons):
      daemon.send_signal(signal.SIGTERM)
      try:
        daemon.wait(10.0)
      except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()

  def _node(self) -> str:
    return socket.gethostname().partition('.')[0]

  def _spawn(self, *command: str) -> None:
    with (self._directory / f'{command[0]}.log').open('wb') as log:
      self._daemons.append(
        subprocess.Popen(command, env=self.env, stdout=log, stderr=log)
      )

  def _start_munge(self) -> None:
    key = self._directory / 'munge.key'
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    self.munge_socket = self._directory / 'munge.socket'
    self._spawn(
      'munged',
      '--foreground',
      '--force',
      f'--key-file={key}',
      f'--socket={self.munge_socket}',
      f'--pid-file={self._directory / "munged.pid"}',
      f'--log-file={self._directory / "munge.log"}',
      f'--seed-file={self._directory / "munge.seed"}',
    )

  def _write_config(self) -> None:
    # A requeued job rests until its credential has expired, by default for two
    # minutes; hence cred_expire.
    ports = [harness.free_port() for _ in range(2)]
    user = pwd.getpwuid(os.geteuid()).pw_name
    directory = self._directory
    (directory / 'slurm.conf').write_text(
      f"""
ClusterName=test
SlurmctldHost={self._node()}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={self.munge_socket},cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
StateSaveLocation={directory / 'state'}
SlurmdSpoolDir={directory / 'spool'}
SlurmctldPidFile={directory / 'slurmctld.pid'}
SlurmdPidFile={directory / 'slurmd.pid'}
KillWait=5
JobRequeue=1
MinJobAge=300
NodeName={self._node()} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
    )
    (directory / 'state').mkdir()
    (directory / 'spool').mkdir()


@pytest.fixture(scope='module')
def slurm(tmp_path_factory):
  """A running Slurm of one node; stopped at the end."""
  cluster = Slurm(tmp_path_factory.mktemp('slurm'))
  try:
    cluster.start()
    yield cluster
  finally:
    cluster.stop()


only_with_slurm = [
  needs('slurmctld', 'slurmd', 'munged', 'srun', 'sbatch'),
  pytest.mark.skipif(os.geteuid() != 0, reason='slurmd must run as root'),
]


def _marked(test):
  for mark in only_with_slurm:
    test = mark(test)
  return test


@_marked
def test_srun_starts_tasks_that_find_each_other(slurm):
  ended = slurm.run(
    'srun', '--ntasks=2', '--overcommit', '--label', *WORKER, f'{JOBS}:meets'
  )
  assert ended.returncode == 0, ended.stdout + ended.stderr + slurm.logs()
  assert ended.stdout.count('all met') == 2
  assert 'of 2 (Slurm)' in ended.stderr


@pytest.mark.timeout(600)
@_marked
def test_a_job_that_slurm_requeues_saves_and_goes_on(slurm, tmp_path):
  log = tmp_path / 'job.log'
  run = tmp_path / 'run'
  submitted = slurm.run(
    'sbatch',
    '--parsable',
    '--nodes=1',
    '--ntasks-per-node=2',
    '--overcommit',
    f'--output={log}',
    f'--export=ALL,PYTHON={sys.executable}',
    f'--chdir={harness.ROOT}',
    'launch/slurm.sbatch',
    '--exp=tests.e2e.toys.SmallLm',
    '--mode=train',
    '--nocompilation_cache',
    f'--job_log_dir={run}',
    '--set=BATCH_SIZE=8',
    '--set=task_p.train.num_train_steps=400',
    '--set=task_p.train.save_interval_steps=20',
  )
  assert submitted.returncode == 0, submitted.stderr
  job = submitted.stdout.strip()
  first = run / 'checkpoints' / 'checkpoint_00000020'
  _until(first.is_dir, log, slurm)
  slurm.run('scancel', '--signal=TERM', job)  # to the steps: all the tasks
  _until(lambda: 'Stopped on request' in _text(log), log, slurm)
  _until(lambda: 'Going on from step' in _text(log), log, slurm)
  slurm.run('scancel', job)


def _text(path) -> str:
  return path.read_text(errors='replace') if path.exists() else ''


def _until(happened, log, slurm, timeout_s=240.0) -> None:
  deadline_s = time.monotonic() + timeout_s
  while not happened():
    assert time.monotonic() < deadline_s, _text(log) + slurm.logs()
    time.sleep(0.1)
