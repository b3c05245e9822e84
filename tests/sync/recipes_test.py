"""The recipes in launch/ say what paxlike reads and what clusters accept."""

import os
import pathlib
import subprocess
import sys

import pytest

from paxlike.sync import _clusters

LAUNCH = pathlib.Path(__file__).parents[2] / 'launch'

yaml = pytest.importorskip('yaml')


def _documents(name):
  return list(yaml.safe_load_all((LAUNCH / name).read_text()))


def _job_set():
  (job_set,) = _documents('jobset.yaml')
  return job_set


def _job_of_set():
  template = _job_set()['spec']['replicatedJobs'][0]['template']
  return {
    'apiVersion': 'batch/v1',
    'kind': 'Job',
    'metadata': {'name': 'workers'},
    **template,
  }


def test_kubernetes_accepts_the_manifests():
  validate = pytest.importorskip('kubernetes_validate')
  version = validate.latest_version()
  for document in [_job_of_set(), *_documents('indexed_job.yaml')]:
    validate.validate(document, version, strict=True)


def test_the_job_set_has_only_fields_that_job_sets_have():
  spec = _job_set()['spec']
  assert set(spec) == {'failurePolicy', 'network', 'replicatedJobs'}
  assert set(spec['failurePolicy']) == {'maxRestarts'}
  assert set(spec['network']) == {'enableDNSHostnames', 'subdomain'}
  (workers,) = spec['replicatedJobs']
  assert set(workers) == {'name', 'replicas', 'template'}


def _pod(job, index):
  (container,) = job['spec']['template']['spec']['containers']
  return {
    'KUBERNETES_SERVICE_HOST': '10.0.0.1',
    'JOB_COMPLETION_INDEX': str(index),
    **{entry['name']: entry['value'] for entry in container['env']},
  }


@pytest.mark.parametrize('recipe', ['jobset.yaml', 'indexed_job.yaml'])
def test_every_pod_finds_its_place(recipe):
  job = _job_of_set() if recipe == 'jobset.yaml' else _documents(recipe)[1]
  count = job['spec']['parallelism']
  assert job['spec']['completions'] == count
  found = [
    _clusters.find(
      coordinator_address=None,
      num_processes=None,
      process_id=None,
      env=_pod(job, index),
    )
    for index in range(count)
  ]
  assert [cluster.process_id for cluster in found] == list(range(count))
  assert {cluster.num_processes for cluster in found} == {count}
  assert len({cluster.address for cluster in found}) == 1


def test_the_coordinator_of_the_job_set_is_its_first_pod():
  job_set = _job_set()
  name = job_set['metadata']['name']
  workers = job_set['spec']['replicatedJobs'][0]['name']
  host = f'{name}-{workers}-0-0.{job_set["spec"]["network"]["subdomain"]}'
  address = _pod(_job_of_set(), 0)['JAX_COORDINATOR_ADDRESS']
  assert address.split(':')[0] == host


def test_the_coordinator_of_the_indexed_job_is_its_first_pod():
  service, job = _documents('indexed_job.yaml')
  host = f'{job["metadata"]["name"]}-0.{service["metadata"]["name"]}'
  assert _pod(job, 0)['JAX_COORDINATOR_ADDRESS'].split(':')[0] == host
  assert (
    job['spec']['template']['spec']['subdomain']
    == (service['metadata']['name'])
  )


def _executable(path, text):
  path.write_text(text)
  path.chmod(0o755)
  return str(path)


def _ssh(tmp_path, python, *arguments):
  env = {
    **os.environ,
    # Runs the command here; the first word is the host.
    'SSH': _executable(tmp_path / 'ssh', '#!/bin/bash\nexec bash -c "$2"\n'),
    'PYTHON': _executable(tmp_path / 'python', python),
    'DIRECTORY': str(tmp_path),
    'PORT': '4711',
  }
  return subprocess.run(
    ['bash', str(LAUNCH / 'ssh.sh'), *arguments],
    env=env,
    capture_output=True,
    text=True,
    timeout=30,
    check=False,
  )


def test_ssh_starts_one_process_a_host_with_its_place(tmp_path):
  ended = _ssh(
    tmp_path,
    f'#!{sys.executable}\nimport sys; print(sys.argv[1:])\n',
    'alpha beta',
    '--exp=KjvTiny',
    '--set',
    'name=with spaces',
  )
  assert ended.returncode == 0
  lines = sorted(ended.stdout.splitlines())
  for index, line in enumerate(lines):
    assert line == f'[{index}] ' + str(
      [
        '-m',
        'paxlike.main',
        '--coordinator_address=alpha:4711',
        '--num_processes=2',
        f'--process_id={index}',
        '--exp=KjvTiny',
        '--set',
        'name=with spaces',
      ]
    )
  assert len(lines) == 2


def test_ssh_ends_with_the_status_of_a_process_that_failed(tmp_path):
  ended = _ssh(
    tmp_path,
    '#!/bin/bash\n[[ "$*" == *--process_id=1* ]] && exit 75\nexit 0\n',
    'alpha beta',
    '--exp=KjvTiny',
  )
  assert ended.returncode == 75


def test_the_scripts_are_valid_bash():
  for name in ('ssh.sh', 'slurm.sbatch'):
    subprocess.run(['bash', '-n', str(LAUNCH / name)], check=True)
