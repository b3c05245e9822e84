"""Every command of the README, as it stands there."""

import os
import pathlib
import re
import resource
import subprocess
import sys

import pytest

from paxlike import reporting
from tests.e2e import program

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

README = program.ROOT / 'README.md'
# What sets up the environment that the tests run in: `make test` runs this
# test itself, `make train` has one of its own.
_SET_UP = ('make ', 'source ')


def blocks(language):
  text = README.read_text(encoding='utf-8')
  return re.findall(rf'^```{language}\n(.*?)^```$', text, re.M | re.S)


def commands():
  lines = ''.join(blocks('sh')).splitlines()
  return [line for line in lines if line and not line.startswith(_SET_UP)]


def environment():
  bin_dir = pathlib.Path(sys.executable).parent
  return program.environment(PATH=f'{bin_dir}{os.pathsep}{os.environ["PATH"]}')


@pytest.fixture(scope='module')
def desk(tmp_path_factory):
  """A directory of one's own, with the README's experiment in it."""
  where = tmp_path_factory.mktemp('desk')
  source, notebook = blocks('python')
  (where / 'notebook.py').write_text(notebook)
  path = where / re.match(r'# (\S+)\n', source)[1]
  path.parent.mkdir()
  path.write_text(source)
  return where


@pytest.fixture(scope='module')
def toured(desk):
  """The same after every command; gives what each cost in CPU seconds."""
  cost_s = {}
  for command in commands():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
      ['bash', '-ec', command],
      cwd=desk,
      env=environment(),
      capture_output=True,
      text=True,
      timeout=300,
    )
    assert done.returncode == 0, f'{command}\n{done.stdout}\n{done.stderr}'
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost_s.setdefault(command, _cpu_s(after) - _cpu_s(before))
  return cost_s


def _cpu_s(usage):
  return usage.ru_utime + usage.ru_stime


@pytest.mark.timeout(900)
def test_every_command_of_the_tour_does_what_it_says(desk, toured):
  assert len(toured) > 10
  in_notebook = subprocess.run(
    [sys.executable, 'notebook.py'],
    cwd=desk,
    env=environment(),
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert in_notebook.stdout == '20\n', in_notebook.stderr
  evaluated = (desk / 'runs/tour/metrics/eval_test_kjv_books.jsonl').read_text()
  assert '"step": 40' in evaluated


@pytest.mark.timeout(900)
def test_digits_cnn_reaches_97_percent_in_a_minute_of_two_cores(desk, toured):
  (command,) = [c for c in toured if '--exp=DigitsCnn' in c and '#' not in c]
  lines = reporting.read_metrics(
    str(desk / 'runs/digits'), 'eval_test_digits_test'
  )
  assert lines[-1]['step'] == 400
  assert lines[-1]['num_examples'] == 360
  assert lines[-1]['accuracy'] >= 0.97
  # By CPU time: whoever else is at work here, it needs no more of that.
  assert toured[command] <= 2 * 60


@pytest.mark.timeout(900)
def test_make_train_trains_evaluates_decodes_and_beats_gzip(tmp_path):
  done = subprocess.run(
    [
      'make',
      'train',
      f'VENV={pathlib.Path(sys.executable).parents[1]}',
      f'RUN={tmp_path / "kjv"}',
      'FLAGS=--set NUM_TRAIN_STEPS=150',
    ],
    cwd=program.ROOT,
    env=environment(),
    capture_output=True,
    text=True,
    timeout=850,
  )
  assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'
  assert 'bits per byte' in done.stdout
  assert len(list((tmp_path / 'kjv/decoder_out').rglob('*.jsonl'))) == 1
