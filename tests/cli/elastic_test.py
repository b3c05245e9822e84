"""Wrong use of the commands of elastic jobs is told in one line."""

import socket

import pytest

from paxlike import elastic
from paxlike.cli import _elastic_flags, agent, launch, lighthouse
from paxlike.core import errors

_JOB = ('--', '--exp=KjvTiny', '--mode=train', '--job_log_dir=/nowhere')


@pytest.fixture(autouse=True)
def secret(monkeypatch):
  monkeypatch.setenv('PAXLIKE_SECRET', 'a secret that is long enough')


@pytest.mark.parametrize('hosts', ['0:2', '3:2', 'two', '2:', ':2', '-1:2'])
def test_hosts_that_make_no_sense_are_refused(hosts):
  with pytest.raises(errors.UsageError, match='LEAST:MOST'):
    agent.main(['--lighthouse=127.0.0.1:9', f'--hosts={hosts}', *_JOB])


@pytest.mark.parametrize(
  'command',
  [
    ['--exp=KjvTiny', '--mode=eval', '--job_log_dir=/nowhere'],
    ['--exp=KjvTiny', '--mode=train'],
  ],
)
def test_an_agent_runs_training_jobs_only(command):
  with pytest.raises(errors.UsageError, match='--mode=train'):
    agent.main(['--lighthouse=127.0.0.1:9', '--', *command])


def test_an_agent_without_a_secret_is_refused(monkeypatch):
  monkeypatch.delenv('PAXLIKE_SECRET')
  with pytest.raises(errors.UsageError, match='PAXLIKE_SECRET'):
    agent.main(['--lighthouse=127.0.0.1:9', *_JOB])


def test_a_lighthouse_on_a_port_in_use_is_refused():
  with socket.create_server(('127.0.0.1', 0)) as taken:
    address = f'127.0.0.1:{taken.getsockname()[1]}'
    with pytest.raises(errors.UsageError, match='Cannot listen'):
      lighthouse.main([f'--bind={address}'])


def test_launch_needs_a_number_of_hosts():
  with pytest.raises(errors.UsageError, match='at least 1'):
    launch.main(['--elastic', '--local=0', *_JOB])


def test_flags_and_policy_say_the_same():
  import argparse

  parser = argparse.ArgumentParser()
  _elastic_flags.add_policy(parser)
  options = parser.parse_args(['--hosts=2:8', '--snapshot_steps=7'])
  policy = _elastic_flags.policy(options)
  assert policy == elastic.Policy(min_hosts=2, max_hosts=8, snapshot_steps=7)
  again = parser.parse_args(_elastic_flags.to_arguments(options))
  assert _elastic_flags.policy(again) == policy
