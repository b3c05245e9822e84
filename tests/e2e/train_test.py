"""What a user sees of a real run, and what the run does not do behind it."""

import json
import subprocess
import sys

import pytest

from paxlike import reporting
from tests.e2e import program

pytestmark = pytest.mark.e2e

# Runs jobs as the program does, then tells what that has loaded and compiled.
_WATCHED = """
import collections, json, sys
import jax
from paxlike import main

compiled = collections.Counter()

def listen(event, duration_s, **facts):
  if event == '/jax/core/compile/backend_compile_duration':
    compiled[facts.get('fun_name', '')] += 1

jax.monitoring.register_event_duration_secs_listener(listen)
status = main.main(['paxlike', *sys.argv[1:]])
tops = sorted({name.partition('.')[0] for name in sys.modules})
print(json.dumps({'status': status, 'compiled': compiled, 'loaded': tops}))
"""


def watched(*arguments):
  """Runs a job in a process of its own; gives what was seen of it."""
  done = subprocess.run(
    [sys.executable, '-c', _WATCHED, *arguments, '--nocompilation_cache'],
    capture_output=True,
    text=True,
    cwd=program.ROOT,
    env=program.environment(),
    timeout=200,
  )
  assert done.returncode == 0, done.stderr
  seen = json.loads(done.stdout.splitlines()[-1])
  assert seen['status'] == 0, done.stderr
  return seen


def test_a_run_of_300_steps_is_a_quiet_log(tmp_path):
  said = program.run_ok(
    '--exp=DigitsMlp',
    '--mode=train',
    f'--job_log_dir={tmp_path}',
    '--set=NUM_TRAIN_STEPS=300',
  )
  lines = said.splitlines()
  assert 5 < len(lines) < 60, said
  assert 'step 300/300' in lines[-1]
  assert reporting.read_metrics(str(tmp_path), 'train')[-1]['step'] == 300


SMALL_LM = (
  '--exp=KjvTiny',
  '--set=NUM_LAYERS=1',
  '--set=MODEL_DIM=16',
  '--set=NUM_HEADS=2',
  '--set=SEQ_LEN=64',
  '--set=MAX_DECODE_STEPS=4',
  '--set=decode_input_p[0].only={"book": ["Jonah"]}',
  '--set=decode_input_p[0].eval_loop_num_batches=none',
  '--set=eval_input_p[0].only={"book": ["Jonah"]}',
)


CNN = ('--exp=DigitsCnn',)


@pytest.mark.slow
@pytest.mark.parametrize(
  'experiment', [CNN, SMALL_LM], ids=['DigitsCnn', 'KjvTiny']
)
def test_each_kind_of_step_is_compiled_once_and_no_other_framework_loaded(
  experiment, tmp_path
):
  def job(mode, num_steps, *more):
    return watched(
      *experiment,
      f'--mode={mode}',
      f'--job_log_dir={tmp_path}',
      f'--set=NUM_TRAIN_STEPS={num_steps}',
      '--set=task_p.train.save_interval_steps=2',
      '--set=task_p.train.eval_interval_steps=2',
      '--set=task_p.train.decode_interval_steps=2',
      '--set=task_p.train.save_max_to_keep=none',
      *more,
    )

  kinds = ('jit(train_step)', 'jit(eval_step)', 'jit(decode_step)')
  steps = [f'--restore_checkpoint_step={step}' for step in (4, 6)]
  jobs = [
    # From nothing, then restored; evaluated and decoded more than once.
    (job('train', 4, '--eval_on_test'), [1, 1, 1]),
    (job('train', 8, '--eval_on_test'), [1, 1, 1]),
    (job('eval', 8, *steps), [0, 1, 0]),
    (job('decode', 8, *steps), [0, 0, 1]),
  ]
  for seen, expected in jobs:
    assert [seen['compiled'].get(kind, 0) for kind in kinds] == expected
    assert not {'tensorflow', 'grain', 'orbax'} & set(seen['loaded'])
    assert 'paxlike' in seen['loaded']
  (name,) = [path.stem for path in (tmp_path / 'metrics').glob('eval_test_*')]
  line = reporting.read_metrics(str(tmp_path), name)[-1]
  # The last batch was no whole one.
  assert line['num_examples'] % (64 if 'digits' in name else 16)
