import fiddle as fdl
import pytest

from paxlike import experiment, models, tasks
from paxlike.core import errors
from tests.experiment import toys


def mistake(task_p):
  """What is said of an experiment whose task_p() is this."""

  class Mistaken(toys.Toy):
    def task_p(self):
      return task_p()

  with pytest.raises(errors.ConfigError) as caught:
    experiment.resolve(Mistaken)
  said = str(caught.value)
  assert len(said.splitlines()) == 1
  return said


def set_wrongly():
  task_p = fdl.Config(tasks.TrainParams)
  task_p.num_train_stepps = 3
  return task_p


@pytest.mark.parametrize(
  ('task_p', 'said'),
  [
    (
      lambda: fdl.Config(tasks.TrainParams, num_train_stepps=3),
      "TrainParams has no field 'num_train_stepps'. "
      'Did you mean num_train_steps?',
    ),
    (set_wrongly, 'Did you mean num_train_steps?'),
    (
      lambda: fdl.Partial(models.TransformerLm, num_layer=3),
      "TransformerLm has no field 'num_layer'. Did you mean num_layers",
    ),
    (lambda: fdl.Partial(tasks.adam, weight_deca=1), 'adam has no field'),
    (
      lambda: fdl.Config(tasks.LanguageModelTsk),
      'paxlike.tasks has no LanguageModelTsk. Did you mean LanguageModelTask',
    ),
  ],
)
def test_a_wrong_name_in_an_experiment_is_one_line_that_says_where(
  task_p, said
):
  told = mistake(task_p)
  assert said in told
  assert told.startswith(f'{__file__}:')


def test_any_other_error_of_an_experiment_is_left_as_it_is():
  class Broken(toys.Toy):
    def task_p(self):
      return len(3)

  class Absent(toys.Toy):
    def task_p(self):
      return self.nothing

  with pytest.raises(TypeError, match='has no len'):
    experiment.resolve(Broken)
  with pytest.raises(AttributeError, match='nothing'):
    experiment.resolve(Absent)


def test_a_wrong_field_within_what_the_experiment_calls_is_left_as_it_is():
  import json

  class Deep(toys.Toy):
    def task_p(self):
      return json.dumps({}, cls=None, no_such_option=1)

  with pytest.raises(TypeError, match='no_such_option') as caught:
    experiment.resolve(Deep)
  assert not isinstance(caught.value, errors.PaxlikeError)


def test_an_experiment_without_a_task_is_named():
  class Lacking(experiment.BaseExperiment):
    pass

  with pytest.raises(
    errors.ConfigError, match=r'Lacking does not define .*task_p'
  ):
    experiment.resolve(Lacking)


@pytest.mark.parametrize(
  ('line', 'said'),
  [
    ('import not_installed_here', 'ModuleNotFoundError: No module named'),
    ('from paxlike import not_there_here', 'not_there_here'),
    ('def (:', 'SyntaxError: '),
    ('x = undefined_here', "NameError: name 'undefined_here'"),
  ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
  tmp_path, monkeypatch, line, said
):
  name = f'module_{abs(hash(line))}'
  (tmp_path / f'{name}.py').write_text(f'"""Mine."""\n\n{line}\n')
  monkeypatch.syspath_prepend(tmp_path)
  exp = f'{name}.Mine'
  with (
    pytest.raises(errors.ConfigError) as caught,
    experiment.mistakes_told(exp),
  ):
    experiment.get(exp)
  told = str(caught.value)
  assert told.startswith(f'{tmp_path / name}.py:3: ')
  assert said in told
  assert f'--exp={exp}' in told
  assert '\n' not in told
