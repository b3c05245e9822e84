"""The cache of compiled programs may be shared, torn or impossible."""

import json
import pathlib
import subprocess

import pytest

from tests.e2e import program

pytestmark = pytest.mark.e2e

_TIMEOUT_S = 250.0


def arguments(cache: pathlib.Path, job: pathlib.Path) -> list[str]:
  return [
    '--exp=DigitsMlp',
    '--mode=train',
    f'--job_log_dir={job}',
    f'--compilation_cache_dir={cache}',
    '--set=task_p.train.num_train_steps=2',
    '--set=task_p.train.summary_interval_steps=1',
  ]


def losses(job: pathlib.Path) -> list[float]:
  lines = (job / 'metrics' / 'train.jsonl').read_text().splitlines()
  return [json.loads(line)['loss'] for line in lines]


def finish(process: subprocess.Popen[str]) -> None:
  try:
    _, said = process.communicate(timeout=_TIMEOUT_S)
  except subprocess.TimeoutExpired:
    process.kill()
    process.communicate()
    raise
  assert process.returncode == 0, said


def test_two_starts_share_an_empty_cache_and_a_torn_one_is_no_harm(tmp_path):
  cache = tmp_path / 'cache'
  jobs = [tmp_path / name for name in ('a', 'b', 'c')]
  for process in [program.start(*arguments(cache, job)) for job in jobs[:2]]:
    finish(process)
  entries = list(cache.glob('*-cache'))
  assert any('train_step' in entry.name for entry in entries)
  for entry in entries:
    entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])
  finish(program.start(*arguments(cache, jobs[2])))
  assert len(losses(jobs[0])) == 2
  assert losses(jobs[0]) == losses(jobs[1]) == losses(jobs[2])


def test_a_cache_that_cannot_be_written_is_no_harm(tmp_path):
  (tmp_path / 'file').touch()
  job = tmp_path / 'job'
  finish(program.start(*arguments(tmp_path / 'file' / 'cache', job)))
  assert len(losses(job)) == 2
