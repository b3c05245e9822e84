import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from paxlike import main as program
from paxlike.cli import ckpt
from tests.checkpoint import states


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  job_log_dir = tmp_path_factory.mktemp('jobs') / 'run'
  states.save_steps(job_log_dir / 'checkpoints', state=states.varied)
  return job_log_dir


@pytest.fixture
def own_run(tmp_path):
  states.save_steps(tmp_path / 'run' / 'checkpoints')
  return tmp_path / 'run'


def test_ls_is_a_table_with_one_line_a_step(run, capsys):
  assert ckpt.main(['ls', str(run)]) == 0
  directory, head, first, second = capsys.readouterr().out.splitlines()
  assert directory == f'{run}/checkpoints'
  assert head.split()[:4] == ['STEP', 'STATE', 'AGE', 'SIZE']
  assert first.split()[:2] == ['100', 'complete']
  assert second.endswith('newest')


def test_ls_json_is_one_object(run, capsys):
  assert ckpt.main(['ls', '--json', str(run)]) == 0
  found = json.loads(capsys.readouterr().out)
  assert [step['step'] for step in found['steps']] == [100, 200]
  assert found['steps'][1]['keep'] == ['newest']


def test_show_prints_names_as_only_takes_them(run, capsys):
  assert ckpt.main(['show', str(run), '--stats']) == 0
  out = capsys.readouterr().out
  (line,) = [row for row in out.splitlines() if 'params/w' in row]
  assert line.split()[:5] == [
    'mdl_vars/params/w',
    'float32',
    '[64,',
    '33]',
    '8,448',
  ]
  assert 'a%2Fb' in out


def test_show_json_survives_bytes_and_infinity(tmp_path, capsys):
  state = {'x': np.float32([np.inf]), 'raw': b'\xff'}
  states.save_steps(tmp_path, steps=(1,), state=lambda _: state)
  assert ckpt.main(['show', str(tmp_path), '--stats', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['others'] == {'raw': "b'\\xff'"}
  assert found['arrays'][0]['stats']['num_non_finite'] == 1


def test_verify_says_all_well_with_status_0(run, capsys):
  assert ckpt.main(['verify', str(run)]) == 0
  assert capsys.readouterr().out.endswith('all well\n')


def test_verify_names_the_damage_with_status_1(own_run, capsys):
  path = own_run / 'checkpoints/checkpoint_00000100/p00000.data'
  data = bytearray(path.read_bytes())
  data[5000] ^= 1
  path.write_bytes(data)
  assert ckpt.main(['verify', str(own_run)]) == 1
  out = capsys.readouterr().out
  assert f'DAMAGED {path} bytes 4480 to ' in out
  assert "in array 'mdl_vars/params/w'" in out
  assert ckpt.main(['verify', str(own_run), '--step', '200']) == 0
  capsys.readouterr()
  assert ckpt.main(['verify', str(own_run), '--json']) == 1
  (damage,) = json.loads(capsys.readouterr().out)['damage']
  assert (damage['file'], damage['first']) == (str(path), 4480)


def test_diff_ends_with_status_1_where_steps_differ(run, capsys):
  one = f'{run}/checkpoints/checkpoint_00000100'
  assert ckpt.main(['diff', one, str(run)]) == 1
  out = capsys.readouterr().out
  assert 'changed: count: int 100 -> int 200' in out
  assert 'mdl_vars/params/w' in out
  assert ckpt.main(['diff', one, one]) == 0
  assert ckpt.main(['diff', '--json', one, one]) == 0


def test_rm_pin_and_unpin_tell_what_they_did(own_run, capsys):
  path = str(own_run)
  assert ckpt.main(['pin', path, '100']) == 0
  assert capsys.readouterr().out == 'pinned step 100\n'
  assert ckpt.main(['unpin', path, '100', '200']) == 0
  assert capsys.readouterr().out == 'unpinned step 100, step 200\n'
  assert ckpt.main(['rm', path, '100', '--json']) == 0
  assert json.loads(capsys.readouterr().out) == {'removed': [100]}


def test_convert_goes_there_and_back(run, tmp_path, capsys):
  there, back = tmp_path / 'w.safetensors', tmp_path / 'back'
  assert ckpt.main(['convert', str(run), str(there)]) == 0
  assert ckpt.main(['convert', str(there), str(back)]) == 0
  assert ckpt.main(['diff', str(run), str(back)]) == 0
  assert 'checkpoint_00000200 (GDA): 12 arrays' in capsys.readouterr().out


@pytest.mark.parametrize(
  'arguments',
  [
    ['ls', '{run}/nothing'],
    ['show', '{run}', '--step', '3'],
    ['verify', '{run}/checkpoints/checkpoint_00000003'],
    ['diff', '{run}', '{run}x'],
    ['rm', '{run}'],
    ['rm', '{run}', '200'],
    ['pin', '{run}', '3'],
    ['convert', '{run}', '{run}', '--to', 'safetensor'],
    ['convert', '{run}', '{run}', '--to', 'zarr3'],
  ],
)
def test_wrong_use_is_one_line_and_status_2(run, arguments, capsys):
  words = [word.format(run=run) for word in arguments]
  assert program.main(['paxlike', 'ckpt', *words]) == 2
  err = capsys.readouterr().err
  assert err.startswith('paxlike: ')
  assert err.count('\n') == 1


@pytest.mark.parametrize('arguments', [[], ['lss'], ['ls']])
def test_missing_words_show_the_usage(arguments, capsys):
  with pytest.raises(SystemExit) as caught:
    ckpt.main(arguments)
  assert caught.value.code == 2
  assert 'usage: paxlike ckpt' in capsys.readouterr().err


@pytest.mark.parametrize(
  'words', [['ls'], ['show', '--stats'], ['verify'], ['diff'], ['pin']]
)
def test_looking_loads_no_jax(run, words):
  paths = {'diff': [str(run)] * 2, 'pin': [str(run), '200']}
  arguments = [*words, *paths.get(words[0], [str(run)])]
  code = (
    'import sys; from paxlike.cli import ckpt; '
    f'status = ckpt.main({arguments!r}); '
    "heavy = {'jax', 'flax', 'tensorstore', 'orbax'} & set(sys.modules); "
    'assert not heavy, heavy; sys.exit(status)'
  )
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run([sys.executable, '-c', code], cwd=root, check=False)
  assert done.returncode == 0
