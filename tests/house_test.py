"""The house rules bite: each is broken in a copy, and the break is found."""

import re
import shutil
import subprocess
import sys

import pytest

from tests import house

_LINT = (
  'import sys; from importlinter.cli import lint_imports_command; '
  'lint_imports_command()'
)


def lint(root) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    [sys.executable, '-c', _LINT, '--no-cache'],
    cwd=root,
    capture_output=True,
    text=True,
    timeout=120,
    env={'PATH': '/usr/bin:/bin', 'PYTHONPATH': str(root), 'NO_COLOR': '1'},
  )


@pytest.fixture
def copy(tmp_path):
  for name in ('paxlike', 'experiments'):
    shutil.copytree(
      house.ROOT / name,
      tmp_path / name,
      ignore=shutil.ignore_patterns('__pycache__'),
    )
  shutil.copy(house.ROOT / 'pyproject.toml', tmp_path)
  return tmp_path


def test_the_house_is_in_order():
  done = lint(house.ROOT)
  assert done.returncode == 0, done.stdout
  assert ' 0 broken' in done.stdout


@pytest.mark.parametrize(
  ('file', 'line', 'contract'),
  [
    ('paxlike/core/clock.py', 'from paxlike import config', 'only go down'),
    ('paxlike/inputs/_base.py', 'from paxlike import models', 'only go down'),
    ('paxlike/attic/__init__.py', '', 'only go down'),
    ('paxlike/cli/list.py', 'import experiments', 'never imports experiments'),
    ('experiments/lm.py', 'from paxlike import runners', 'declare only'),
    ('paxlike/config/dump.py', 'import jax', 'no array library'),
    (
      'paxlike/experiment/_base.py',
      'from paxlike.parallel import make_mesh\nfrom paxlike.core import metrics',
      'no array library',
    ),
    (
      'paxlike/tasks/_base.py',
      'from paxlike.models import _transformer',
      'inside its room',
    ),
    (
      'paxlike/config/fields.py',
      'from paxlike.config import overrides',
      'No cycles',
    ),
    ('paxlike/inputs/_text.py', 'import tensorflow', 'One file imports tensor'),
    ('paxlike/inputs/_text.py', 'import grain', 'One file imports grain'),
    ('paxlike/inputs/_text.py', 'import orbax', 'One file imports orbax'),
    (
      'paxlike/runners/train.py',
      'from paxlike import protos',
      'Only checkpoint looks',
    ),
  ],
)
def test_a_broken_rule_is_found(copy, file, line, contract):
  path = copy / file
  path.parent.mkdir(exist_ok=True)
  with path.open('a') as out:
    out.write(f'\n{line}\n')
  done = lint(copy)
  assert done.returncode != 0
  broken = done.stdout.partition('Broken contracts')[2] + done.stderr
  assert contract in broken, done.stdout + done.stderr


def test_one_file_touches_the_private_parts_of_jax():
  found = [
    str(path.relative_to(house.ROOT))
    for path in sorted((house.ROOT / 'paxlike').rglob('*.py'))
    if re.search(r'\bjax\._src\b|from jax\._', path.read_text())
  ]
  assert found == ['paxlike/sync/_kv.py']
