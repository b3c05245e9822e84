import subprocess
import sys

from paxlike.cli import list as list_command


def test_each_experiment_is_shown_with_its_names_and_summary(capsys):
  assert list_command.main([]) == 0
  lines = capsys.readouterr().out.splitlines()
  (kjv,) = [line for line in lines if line.startswith('KjvTiny ')]
  assert kjv.split()[1] == 'experiments.lm.KjvTiny'
  assert 'King James' in kjv


def test_words_narrow_the_list(capsys):
  assert list_command.main(['digits', 'CNN']) == 0
  (line,) = capsys.readouterr().out.splitlines()
  assert line.startswith('DigitsCnn ')


def test_listing_loads_no_array_library():
  code = (
    'import sys; from paxlike import main; main.main(["paxlike", "list"]); '
    'print([n for n in ("jax", "flax", "optax", "numpy", "tensorstore") '
    'if n in sys.modules], file=sys.stderr)'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stderr.strip() == '[]'
  assert 'KjvTiny' in done.stdout


def test_a_broken_module_is_named_beside_the_others(capsys, monkeypatch):
  from paxlike import experiment

  listing = experiment.list_all()
  broken = experiment.Listing(
    listing.experiments, {'mine': ImportError('No module named x')}
  )
  monkeypatch.setattr('paxlike.experiment._registry.list_all', lambda: broken)
  assert list_command.main([]) == 1
  captured = capsys.readouterr()
  assert 'KjvTiny' in captured.out
  assert 'mine cannot be imported: ImportError: No module' in captured.err
