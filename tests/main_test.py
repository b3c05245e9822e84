import inspect
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from paxlike import flags, main, runners
from paxlike.core import errors

ROOT = pathlib.Path(main.__file__).parent.parent
TOY = '--exp=tests.experiment.cli_toys.CliToy'
_TWO_STEPS = ('--restore_checkpoint_step=1', '--restore_checkpoint_step=2')


def run(*arguments, program=('-m', 'paxlike.main'), env=None, cwd=ROOT):
  """The real program in a process of its own."""
  return subprocess.run(
    [sys.executable, *program, *arguments],
    capture_output=True,
    text=True,
    cwd=cwd,
    timeout=120,
    env={**os.environ, **(env or {})},
  )


def call(capsys, *arguments):
  """The program in this process: status, stdout, stderr."""
  status = main.main(['paxlike', *arguments])
  out = capsys.readouterr()
  return status, out.out, out.err


def modules_loaded_by(*arguments) -> list[str]:
  code = (
    'import sys; from paxlike import main; '
    f'status = main.main({["paxlike", *arguments]!r}); '
    'names = ("jax", "flax", "optax", "fiddle", "numpy", "tensorflow", '
    '"tensorstore", "orbax", "grain"); '
    'print(status, *[n for n in names if n in sys.modules], file=sys.stderr)'
  )
  return run(program=('-c', code)).stderr.split()


# The way in.


@pytest.mark.parametrize(
  'program',
  [
    ('-m', 'paxlike.main'),
    ('paxlike/main.py',),
    ('-c', 'from paxlike import main; main.console()'),
  ],
)
def test_the_program_starts_however_it_is_called(program):
  done = run('--help', program=program)
  assert done.returncode == 0
  assert '--job_log_dir=' in done.stdout
  assert done.stderr == ''


def test_help_fits_a_screen_and_names_every_flag_and_command(capsys):
  status, out, _ = call(capsys, '--help')
  assert status == 0
  assert len(out.splitlines()) < 40
  assert max(len(line) for line in out.splitlines()) <= 100
  for name in [*flags.names(), *main.command_names()]:
    assert re.search(rf'^  (--)?(\[no\])?{name}\b', out, re.MULTILINE), name


def test_help_loads_no_array_library():
  assert modules_loaded_by('--help') == ['0']


def test_the_version_is_printed(capsys):
  assert call(capsys, '--version')[1].startswith('paxlike 0.')


# Wrong use: one line, status 2.


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    ([], 'Missing --exp, --mode, --job_log_dir'),
    (['--exp=KjvTiny'], 'Missing --mode, --job_log_dir'),
    (['--mode=train', '--job_log_dir=x'], 'Missing --exp.'),
    (['--exp=', '--mode=train', '--job_log_dir=x'], 'Missing --exp.'),
    (['--modee=train'], 'no flag --modee. Did you mean mode?'),
    (['-x'], 'no flag -x.'),
    (['--nofolow'], 'Did you mean nofollow or follow'),
    (['--job_logdir=x'], 'Did you mean job_log_dir?'),
    (['--exp'], 'exp'),
    ([TOY, '--mode=tran', '--job_log_dir=x'], 'Did you mean train?'),
    ([TOY, '--process_id=one'], '--process_id=one'),
    ([TOY, '--process_id=-1'], 'process_id'),
    ([TOY, '--dump_config=maybe'], 'dump_config'),
    ([TOY, 'train'], "'train' is no flag"),
    (['lst'], 'Did you mean list?'),
    ([TOY, '--mode=train', '--job_log_dir= '], 'job_log_dir=  is empty'),
    (
      [TOY, '--mode=train', '--job_log_dir=x', '--restore_checkpoint_dir='],
      '--restore_checkpoint_dir= is empty',
    ),
    (
      [TOY, '--mode=train', '--job_log_dir=x', '--compilation_cache_dir='],
      '--compilation_cache_dir= is empty',
    ),
    ([TOY, '--mode=train', '--job_log_dir=S3://b/x'], 'neither gs://'),
    (
      [TOY, '--mode=eval', '--job_log_dir=x', '--eval_on_test'],
      '--eval_on_test means nothing in --mode=eval',
    ),
    (
      [TOY, '--mode=train', '--job_log_dir=x', '--nofollow'],
      '--follow means nothing in --mode=train',
    ),
    (
      [TOY, '--mode=train', '--job_log_dir=x', '--allow_random_init'],
      'only in decode',
    ),
    (
      [TOY, '--mode=train', '--job_log_dir=x', *_TWO_STEPS],
      'given 2 times',
    ),
    ([TOY, '--dump_config', '--set', 'DEPHT=3'], 'Did you mean DEPTH?'),
    ([TOY, '--dump_config', '--set=DEPTH=3.5'], 'an int'),
    ([TOY, '--dump_config', '--set=DEPTH'], 'PATH=VALUE'),
    (
      [TOY, '--dump_config', '--set=task_p.train.lerning_rate=1'],
      'Did you mean learning_rate?',
    ),
    (
      [TOY, '--dump_config', '--set=eval_input_p[3].batch_size=1'],
      'has 1 items, [0] to [0]',
    ),
    ([TOY, '--dump_config', '--set=RAISE=config'], 'as it was told'),
    ([TOY, '--dump_config', '--verbosity=loud'], 'one of'),
    (['--exp=KjvTiny', '--exp', 'PythonTiny'], 'as KjvTiny and as PythonTiny'),
    ([TOY, '--follow', '--nofollow'], 'as true and as false. Give it once'),
    (
      ['--exp=KjvTiny', '--dump_config', '--set=task_p.train.on_stall=halt'],
      "on_stall is 'halt', must be one of report, stop",
    ),
    (
      ['--exp=KjvTiny', '--dump_config', '--set=checkpoint_p.type=ORBAX'],
      "['GDA', 'FLAX', 'MULTI_HOST_FLAX']",
    ),
    (
      ['--exp=KjvTiny', '--dump_config', '--set=task_p.modell.num_layers=2'],
      'Did you mean model?',
    ),
    (
      ['--exp=KjvTiny', '--dump_config', '--set=task_p.model.num_layers=two'],
      'task_p.model.num_layers=two: expected an int',
    ),
    (['--exp=NoSuchThing', '--dump_config'], 'no experiment'),
    (['--exp=experimentz.lm.KjvTiny', '--dump_config'], 'experiments.lm'),
    (
      ['--exp=experiments.ml.KjvTiny', '--dump_config'],
      'no module ml in experiments',
    ),
    (
      ['--exp=experiments.lm.KjvTinny', '--dump_config'],
      'no experiment KjvTinny in experiments.lm',
    ),
    (['--exp=KjvTinny', '--dump_config'], 'Did you mean KjvTiny?'),
  ],
)
def test_wrong_use_is_one_line_and_status_2(capsys, arguments, said):
  status, out, err = call(capsys, *arguments)
  assert status == errors.EXIT_USAGE
  assert said in err
  assert len(err.strip().splitlines()) == 1
  assert out == ''


def test_wrong_use_shows_no_traceback_in_the_real_program():
  done = run('--exp=KjvTiny', '--mode=trane', '--job_log_dir=x')
  assert done.returncode == errors.EXIT_USAGE
  assert 'Traceback' not in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1


# What a run ends with.


@pytest.mark.parametrize(
  ('kind', 'status'),
  [
    ('failed', errors.EXIT_FAILED),
    ('preempted', errors.EXIT_PREEMPTED),
    ('config', errors.EXIT_USAGE),
  ],
)
def test_an_error_of_ours_is_a_message_and_its_own_status(kind, status):
  done = run(TOY, '--dump_config', f'--set=RAISE={kind}')
  assert done.returncode == status
  assert done.stderr == f'paxlike: {kind}, as it was told\n'


def test_the_traceback_of_an_error_of_ours_is_there_on_demand():
  done = run(TOY, '--dump_config', '--set=RAISE=failed', '--verbosity=debug')
  assert done.returncode == errors.EXIT_FAILED
  assert 'Traceback' in done.stderr
  assert 'cli_toys.py' in done.stderr


def test_any_other_error_is_a_traceback_and_status_1():
  done = run(TOY, '--dump_config', '--set=RAISE=other')
  assert done.returncode == errors.EXIT_FAILED
  assert 'Traceback' in done.stderr
  assert 'ZeroDivisionError' in done.stderr


def test_a_missing_dependency_of_an_experiment_is_shown_as_itself(tmp_path):
  (tmp_path / 'mine.py').write_text('import not_installed_here\n')
  done = run(
    '--exp=mine.Tiny',
    '--dump_config',
    program=('-c', 'from paxlike import main; main.console()'),
    cwd=tmp_path,
  )
  assert done.returncode == errors.EXIT_USAGE
  (line,) = done.stderr.splitlines()
  assert line.startswith(
    f'paxlike: {tmp_path}/mine.py:1: ModuleNotFoundError: No module named '
    "'not_installed_here'"
  )


def test_a_wrong_field_of_an_object_in_an_experiment_is_one_line(tmp_path):
  (tmp_path / 'mine.py').write_text("""
from paxlike import experiment, tasks

@experiment.register
class Tiny(experiment.BaseExperiment):
  def task_p(self):
    return tasks.TrainParams(num_train_stepps=3)

  def input_p(self):
    return []
""")
  done = run(
    '--exp=mine.Tiny',
    '--dump_config',
    program=('-c', 'from paxlike import main; main.console()'),
    cwd=tmp_path,
  )
  assert done.returncode == errors.EXIT_USAGE
  assert done.stderr == (
    f'paxlike: {tmp_path}/mine.py:7, in task_p: TrainParams has no field '
    "'num_train_stepps'. Did you mean num_train_steps?\n"
  )


def test_an_interrupt_ends_without_a_traceback(capsys):
  status, _, err = call(capsys, TOY, '--dump_config', '--set=RAISE=interrupt')
  assert (status, err) == (130, 'paxlike: interrupted\n')


def test_a_reader_that_stops_reading_is_no_error():
  process = subprocess.Popen(
    [sys.executable, '-m', 'paxlike.main', '--exp=KjvTiny', '--dump_config'],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    cwd=ROOT,
  )
  assert process.stdout is not None
  assert process.stderr is not None
  process.stdout.close()
  assert process.stderr.read() == b''
  process.stderr.close()
  assert process.wait(60) == errors.EXIT_FAILED


# The config.


def test_dump_config_shows_the_config_with_all_settings(capsys):
  status, out, _ = call(
    capsys, TOY, '--dump_config', '--set', 'DEPTH=7', '--set=mesh_p.data=2'
  )
  assert status == 0
  assert 'task_p.depth = 7' in out.splitlines()
  assert 'mesh_p.data = 2' in out.splitlines()


def test_dump_config_starts_no_backend_and_opens_no_data():
  code = """
import sys
opened = []
def watch(event, arguments):
  if event == 'open' and str(arguments[0]).endswith(('.jsonl', '.gz', '.csv')):
    opened.append(arguments[0])
sys.addaudithook(watch)
from paxlike import main
for name in ('KjvTiny', 'PythonTiny', 'DigitsMlp', 'DigitsCnn'):
  assert main.main(['paxlike', f'--exp={name}', '--dump_config']) == 0
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized(), opened, file=sys.stderr)
"""
  assert run(program=('-c', code)).stderr.strip() == 'False []'


def test_dump_config_loads_no_other_framework():
  loaded = modules_loaded_by('--exp=KjvTiny', '--dump_config')
  assert not {'tensorflow', 'orbax', 'grain'} & set(loaded)


# Every flag has an effect.


@pytest.fixture
def started(monkeypatch):
  """What the runners would have been started with."""
  calls = []

  def replace(module, name):
    signature = inspect.signature(getattr(module, name))

    def record(*args, **kwargs):
      calls.append((name, signature.bind(*args, **kwargs).arguments))

    monkeypatch.setattr(module, name, record)

  replace(runners.train, 'train_and_evaluate_spmd_model')
  replace(runners.evaluate, 'evaluate_spmd_model')
  replace(runners.decode, 'decode_once_spmd_model')
  for variable in list(os.environ):
    if variable.startswith('JAX_') and 'CACHE' in variable:
      monkeypatch.delenv(variable)
  monkeypatch.setenv('JAX_UNTOUCHED', '')  # so that what is set is undone
  before = dict(os.environ)
  yield calls
  for variable in set(os.environ) - set(before):
    del os.environ[variable]


def start(tmp_path, mode, *arguments):
  (tmp_path / 'checkpoints').mkdir(exist_ok=True)
  status = main.main(
    ['paxlike', TOY, f'--mode={mode}', f'--job_log_dir={tmp_path}', *arguments]
  )
  assert status == 0


def test_train_gets_the_resolved_config(started, tmp_path):
  start(tmp_path, 'train', '--set=DEPTH=5', '--set=input_p.batch_size=3')
  ((name, given),) = started
  assert name == 'train_and_evaluate_spmd_model'
  assert given['task_p'].depth == 5
  assert given['train_input_p'].batch_size == 3
  assert [i.name for i in given['eval_input_p']] == ['test']
  assert given['job_log_dir'] == str(tmp_path)
  assert given['mesh_p'].data == -1
  assert given['checkpoint_p'].type == 'GDA'
  assert given['eval_on_test'] is False
  assert given['restore_checkpoint_step'] is None


def test_restore_flags_reach_every_mode(started, tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / 'c').mkdir()
  restore = ('--restore_checkpoint_dir=~/c', '--restore_checkpoint_step=7')
  for mode in flags.MODES:
    start(tmp_path, mode, *restore)
  assert len(started) == 3
  for _, given in started:
    assert given['restore_checkpoint_dir'] == os.path.expanduser('~/c')
  steps = [given['restore_checkpoint_step'] for _, given in started]
  assert steps == [7, [7], [7]]


def test_eval_on_test_reaches_training(started, tmp_path):
  start(tmp_path, 'train', '--eval_on_test')
  assert started[0][1]['eval_on_test'] is True


def test_several_steps_are_decoded_in_order(started, tmp_path):
  steps = [f'--restore_checkpoint_step={step}' for step in (9, 4)]
  start(tmp_path, 'decode', *steps)
  ((_, given),) = started
  assert given['restore_checkpoint_step'] == [9, 4]
  assert given['allow_random_init'] is False
  assert given['decode'].format == 'jsonl'


def test_random_parameters_are_decoded_on_demand(started, tmp_path):
  start(tmp_path, 'decode', '--allow_random_init')
  assert started[0][1]['allow_random_init'] is True


@pytest.mark.parametrize(
  ('mode', 'flag', 'follow'),
  [
    ('eval', (), None),
    ('eval', ('--follow',), True),
    ('eval', ('--nofollow',), False),
    ('decode', (), False),
    ('decode', ('--follow',), True),
  ],
)
def test_following_is_the_default_of_eval_alone(
  started, tmp_path, mode, flag, follow
):
  start(tmp_path, mode, *flag)
  assert started[0][1]['follow'] is follow


def test_a_home_directory_in_a_path_is_expanded(started, tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  flags = [TOY, '--mode=train', '--job_log_dir=~/runs']
  assert main.main(['paxlike', *flags]) == 0
  assert started[0][1]['job_log_dir'] == str(tmp_path / 'runs')


def test_the_run_is_written_down(started, tmp_path):
  start(tmp_path, 'eval', '--set=DEPTH=5')
  # The job itself says when, once it has checked what it was given.
  assert not (tmp_path / 'config').exists()
  with started[0][1]['recording']:
    pass
  record = json.loads((tmp_path / 'config' / 'eval.json').read_text())
  assert record['experiment'] == 'tests.experiment.cli_toys.CliToy'
  assert '--set=DEPTH=5' in record['command']
  assert 'task_p.depth = 5' in (tmp_path / 'config' / 'eval.txt').read_text()
  assert started[0][0] == 'evaluate_spmd_model'


def test_an_experiment_without_training_input_cannot_train(
  started, tmp_path, capsys
):
  status, _, err = call(
    capsys,
    TOY,
    '--mode=train',
    f'--job_log_dir={tmp_path}',
    '--set=TRAIN=false',
  )
  assert status == errors.EXIT_USAGE
  assert 'nothing to train on' in err
  assert not started


def test_compiled_programs_are_kept_by_default(started, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  start(tmp_path, 'train')
  directory = os.environ['JAX_COMPILATION_CACHE_DIR']
  assert directory.startswith(str(tmp_path / 'cache' / 'paxlike' / 'jax'))


def test_where_compiled_programs_are_kept_can_be_said(started, tmp_path):
  start(tmp_path, 'train', f'--compilation_cache_dir={tmp_path}/c')
  assert os.environ['JAX_COMPILATION_CACHE_DIR'] == f'{tmp_path}/c'


def test_a_cache_that_the_user_set_up_is_left_alone(
  started, tmp_path, monkeypatch
):
  monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', '/elsewhere')
  start(tmp_path, 'train')
  assert os.environ['JAX_COMPILATION_CACHE_DIR'] == '/elsewhere'


def test_no_compiled_programs_are_kept_on_demand(started, tmp_path):
  start(tmp_path, 'train', '--nocompilation_cache')
  assert os.environ['JAX_ENABLE_COMPILATION_CACHE'] == 'false'
  assert 'JAX_COMPILATION_CACHE_DIR' not in os.environ


def test_process_flags_reach_the_bootstrap(tmp_path):
  done = run(
    TOY,
    '--mode=train',
    f'--job_log_dir={tmp_path}',
    '--coordinator_address=localhost:1',
    '--num_processes=2',
    '--process_id=5',
  )
  assert done.returncode != 0
  assert '5' in done.stderr


@pytest.mark.parametrize(
  ('verbosity', 'shown'), [('info', ['I', 'W']), ('warning', ['W'])]
)
def test_messages_are_one_line_each_from_the_verbosity_on(verbosity, shown):
  flags = ['paxlike', TOY, '--dump_config', f'--verbosity={verbosity}']
  code = (
    f'from paxlike import main; main.main({flags!r}); '
    'from absl import logging; logging.info("here"); logging.warning("here")'
  )
  lines = run(program=('-c', code)).stderr.splitlines()
  for line, letter in zip(lines, shown, strict=True):
    assert re.fullmatch(rf'\d\d:\d\d:\d\d {letter} here', line)


@pytest.mark.parametrize(
  ('flags', 'status'),
  [
    (('--mode=eval', '--nofollow'), errors.EXIT_USAGE),
    (('--mode=eval', '--restore_checkpoint_step=3'), errors.EXIT_USAGE),
    (('--mode=eval',), errors.EXIT_FAILED),  # has waited for a training
    (('--mode=decode',), errors.EXIT_USAGE),
    (('--mode=decode', '--follow'), errors.EXIT_FAILED),
  ],
)
def test_reading_a_mistyped_directory_makes_nothing_and_names_the_near_one(
  started, tmp_path, capsys, flags, status
):
  (tmp_path / 'kjv/checkpoints').mkdir(parents=True)
  mistyped = tmp_path / 'kvj'
  found, _, err = call(capsys, TOY, f'--job_log_dir={mistyped}', *flags)
  assert found == status
  assert f'Did you mean {tmp_path / "kjv"}?' in err
  assert str(mistyped) in err.splitlines()[-1]
  assert [path.name for path in tmp_path.iterdir()] == ['kjv']
  assert not started


def test_reading_from_a_mistyped_restore_directory_makes_nothing(
  started, tmp_path, capsys
):
  status, _, err = call(
    capsys,
    TOY,
    '--mode=eval',
    f'--job_log_dir={tmp_path / "job"}',
    f'--restore_checkpoint_dir={tmp_path / "nowhere"}',
  )
  assert status == errors.EXIT_USAGE
  assert f'{tmp_path / "nowhere"} is no directory' in err
  assert not list(tmp_path.iterdir())
  assert not started
