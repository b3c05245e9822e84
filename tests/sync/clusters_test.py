"""What launchers tell in the environment."""

import os
import subprocess
import sys

import pytest

from paxlike.core import errors
from paxlike.sync import _clusters, _mpi


def _find(env, **flags):
  known = {
    'coordinator_address': None,
    'num_processes': None,
    'process_id': None,
  }
  return _clusters.find(env=env, **{**known, **flags})


def test_nothing_told_is_alone():
  assert _find({}) is None


def test_three_flags_are_enough():
  found = _find({}, coordinator_address='h:1', num_processes=2, process_id=1)
  assert found == _clusters.Cluster(
    address='h:1', num_processes=2, process_id=1
  )


def test_one_process_is_alone_whatever_the_launcher_tells():
  assert _find({}, num_processes=1) is None
  assert _find({**POD, 'JAX_NUM_PROCESSES': '4'}, num_processes=1) is None


def test_a_flag_without_the_others_says_which_are_missing():
  with pytest.raises(
    errors.UsageError, match='--coordinator_address and --process_id'
  ):
    _find({}, num_processes=2)


def test_a_process_id_outside_of_the_job_is_refused():
  with pytest.raises(errors.UsageError, match='must be 0 to 1'):
    _find({}, coordinator_address='h:1', num_processes=2, process_id=2)
  with pytest.raises(errors.UsageError, match='must be 0'):
    _find({}, num_processes=1, process_id=1)
  assert _find({}, num_processes=1, process_id=0) is None


SLURM = {
  'SLURM_JOB_ID': '4711',
  'SLURM_STEP_ID': '0',
  'SLURM_STEP_NODELIST': 'gpu[007,010-012]',
  'SLURM_STEP_NUM_TASKS': '8',
  'SLURM_STEP_TASKS_PER_NODE': '2(x4)',
  'SLURM_PROCID': '3',
  'SLURM_LOCALID': '1',
}


def test_slurm_tasks_find_each_other():
  found = _find(SLURM)
  host, _, port = found.address.partition(':')
  assert host == 'gpu007'
  assert 61_440 <= int(port) < 65_536
  assert (found.num_processes, found.process_id) == (8, 3)
  assert found.local_device_ids == (1,)


def test_slurm_steps_of_one_job_use_different_ports():
  other = _find({**SLURM, 'SLURM_STEP_ID': '1'})
  assert other.address != _find(SLURM).address


def test_one_slurm_task_a_host_has_all_its_devices():
  found = _find({**SLURM, 'SLURM_STEP_TASKS_PER_NODE': '1(x8)'})
  assert found.local_device_ids is None


def test_devices_that_slurm_has_dealt_out_are_not_dealt_again():
  found = _find({**SLURM, 'CUDA_VISIBLE_DEVICES': '3'})
  assert found.local_device_ids is None


def test_a_batch_script_without_srun_is_alone():
  env = {**SLURM, 'SLURM_NTASKS': '8', 'SLURM_PROCID': '0'}
  del env['SLURM_STEP_NUM_TASKS']
  assert _find(env) is None


@pytest.mark.parametrize(
  ('nodes', 'host'),
  [
    ('node001', 'node001'),
    ('node001,host2', 'node001'),
    ('node[001-015],host2', 'node001'),
    ('node[007,010-12]', 'node007'),
    ('n[1-2]-ib', 'n1-ib'),
  ],
)
def test_the_first_of_a_node_list(nodes, host):
  assert _clusters.first_host(nodes) == host


MPI = {
  'OMPI_COMM_WORLD_RANK': '2',
  'OMPI_COMM_WORLD_SIZE': '4',
  'OMPI_COMM_WORLD_LOCAL_RANK': '0',
  'OMPI_COMM_WORLD_LOCAL_SIZE': '2',
}


@pytest.mark.parametrize(
  ('name', 'value', 'host'),
  [
    (
      'OMPI_MCA_orte_hnp_uri',
      '1531576320.0;tcp://10.96.0.1,10.148.0.1:34911',
      '10.96.0.1',
    ),
    ('OMPI_MCA_orte_hnp_uri', '15.0;tcp://10.96.0.1:34911', '10.96.0.1'),
    ('PMIX_NAMESPACE', 'prterun-node7-4711@1', 'node7'),
    ('PMIX_NAMESPACE', 'prterun-a-b-4711@1', 'a-b'),
  ],
)
def test_open_mpi_of_both_releases_is_found(no_mpi4py, name, value, host):
  found = _find({**MPI, name: value})
  assert found.address.startswith(f'{host}:')
  assert (found.num_processes, found.process_id) == (4, 2)


def test_open_mpi_on_one_host_needs_no_name_of_it():
  found = _find({**MPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '4'})
  assert found.address.startswith('127.0.0.1:')


@pytest.mark.parametrize('env', [MPI, {'PMIX_RANK': '1'}])
def test_an_mpirun_that_tells_too_little_names_what_to_install(no_mpi4py, env):
  with pytest.raises(errors.UsageError, match='pip install mpi4py') as caught:
    _find({**env, 'PMIX_NAMESPACE': 'something else'})
  assert '--coordinator_address' in str(caught.value)
  assert '\n' not in str(caught.value)


def test_a_given_address_is_all_that_open_mpi_lacks(no_mpi4py):
  found = _find(MPI, coordinator_address='h:1')
  assert (found.address, found.origin) == ('h:1', 'Open MPI')


@pytest.mark.parametrize('env', [MPI, {'PMIX_RANK': '2'}])
def test_mpi_is_asked_where_the_environment_does_not_suffice(mpi4py, env):
  mpi4py(num_processes=4)
  found = _find(env)
  assert (found.address, found.origin) == ('first:7', 'MPI')
  assert (found.num_processes, found.process_id) == (4, 2)
  assert found.local_device_ids == (0,)


def test_an_mpi4py_of_another_mpi_is_not_listened_to(mpi4py):
  mpi4py(num_processes=1)
  found = _find({**MPI, 'PMIX_NAMESPACE': 'prterun-node7-4711@1'})
  assert (found.origin, found.num_processes) == ('Open MPI', 4)
  with pytest.raises(errors.UsageError, match='of another MPI'):
    _find({'PMIX_RANK': '2'})


@pytest.fixture
def no_mpi4py(monkeypatch):
  monkeypatch.setattr(_mpi, 'is_installed', lambda: False)


@pytest.fixture
def mpi4py(monkeypatch):
  """Plays MPI: process 2 of some, two a host."""

  def play(*, num_processes):
    job = _mpi.Job(
      address='first:7',
      num_processes=num_processes,
      process_id=min(2, num_processes - 1),
      num_local=2,
      local_id=0,
    )
    monkeypatch.setattr(_mpi, 'is_installed', lambda: True)
    monkeypatch.setattr(_mpi, 'ask', lambda **unused: job)

  return play


POD = {
  'KUBERNETES_SERVICE_HOST': '10.0.0.1',
  'JOB_COMPLETION_INDEX': '2',
  'JAX_NUM_PROCESSES': '4',
}


def test_a_pod_of_an_indexed_job_finds_the_first_pod():
  found = _clusters.from_kubernetes(
    POD, fqdn=lambda: 'train-2.workers.default.svc.cluster.local'
  )
  host, _, port = found['address'].rpartition(':')
  assert host == 'train-0.workers.default.svc.cluster.local'
  assert port.isdigit()
  assert (found['num_processes'], found['process_id']) == (4, 2)


def test_pods_of_a_job_set_are_numbered_through():
  env = {
    **POD,
    'JOB_INDEX': '3',
    'JAX_PROCESSES_PER_JOB': '4',
    'JAX_NUM_PROCESSES': '16',
    'JAX_COORDINATOR_ADDRESS': 'first:1234',
  }
  found = _find(env)
  assert (found.address, found.process_id) == ('first:1234', 14)


def test_a_pod_that_cannot_know_the_count_says_what_to_set():
  env = {k: v for k, v in POD.items() if k != 'JAX_NUM_PROCESSES'}
  with pytest.raises(errors.UsageError, match='JAX_NUM_PROCESSES'):
    _find(env)


def test_three_variables_serve_any_launcher():
  found = _find(
    {
      'JAX_COORDINATOR_ADDRESS': 'h:1',
      'JAX_NUM_PROCESSES': '2',
      'JAX_PROCESS_ID': '0',
    }
  )
  assert (found.address, found.num_processes, found.process_id) == ('h:1', 2, 0)


@pytest.mark.parametrize('address', ['h', 'h:', ':7', 'h:x', 'h:0', 'h:99999'])
def test_an_address_that_is_none_is_refused(address):
  with pytest.raises(errors.UsageError, match='must be HOST:PORT'):
    _find({}, coordinator_address=address, num_processes=2, process_id=0)


def test_a_flag_wins_over_the_launcher():
  found = _find(SLURM, coordinator_address='elsewhere:7')
  assert found.address == 'elsewhere:7'
  assert found.process_id == 3


TPU = {
  'JAX_FORCE_TPU_INIT': '1',  # plays the chips, which this machine lacks
  'TPU_WORKER_ID': '1',
  'TPU_PROCESS_ADDRESSES': 'localhost:8471,worker-1:8471',
  'MEGASCALE_COORDINATOR_ADDRESS': 'localhost',
  'MEGASCALE_NUM_SLICES': '2',
  'MEGASCALE_SLICE_ID': '1',
}


def _find_in_process(env):
  """What a fresh process finds, since JAX looks for chips as it is loaded."""
  return subprocess.run(
    [
      sys.executable,
      '-c',
      'from paxlike.sync import _clusters\n'
      'found = _clusters.find(coordinator_address=None, num_processes=None,\n'
      '  process_id=None, timeout_s=5)\n'
      'print(found.origin, found.address.partition(":")[0],\n'
      '  found.process_id, found.num_processes)',
    ],
    env={**os.environ, **env},
    capture_output=True,
    text=True,
    check=False,
  )


def test_a_host_of_several_tpu_slices_is_numbered_through():
  found = _find_in_process(TPU)
  assert found.stdout.split() == ['JAX', 'localhost', '3', '4'], found.stderr


def test_a_tpu_host_that_jax_cannot_place_says_what_to_give():
  env = {k: v for k, v in TPU.items() if not k.startswith('MEGASCALE')}
  found = _find_in_process({**env, 'GCE_METADATA_IP': '127.0.0.1:9'})
  assert found.returncode != 0
  assert 'SyncError: JAX could not find out of which job' in found.stderr
  assert '--num_processes=1' in found.stderr


@pytest.mark.parametrize(
  ('env', 'said'),
  [
    (
      {
        'SLURM_JOB_ID': '1',
        'SLURM_STEP_NODELIST': 'a',
        'SLURM_PROCID': '0',
        'SLURM_STEP_NUM_TASKS': 'two',
      },
      'SLURM_STEP_NUM_TASKS=two, which is no whole number',
    ),
    (
      {
        'JAX_COORDINATOR_ADDRESS': 'a:1',
        'JAX_NUM_PROCESSES': '2',
        'JAX_PROCESS_ID': 'x',
      },
      'JAX_PROCESS_ID=x, which is no whole number',
    ),
  ],
)
def test_a_number_that_is_none_is_named(env, said):
  with pytest.raises(errors.UsageError, match=said):
    _find(env)
