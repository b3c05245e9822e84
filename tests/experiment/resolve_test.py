import fiddle as fdl
import pytest

from paxlike import experiment
from paxlike.core import errors
from tests.experiment import toys


def resolve(*settings, cls=toys.Toy):
  return experiment.resolve(cls, settings)


def test_inputs_are_told_apart_by_is_training():
  resolved = resolve()
  assert resolved.train_input_p.name == 'train'
  assert [i.name for i in resolved.eval_input_p] == ['test', 'other']
  assert [i.name for i in resolved.decode_input_p] == ['prompts']
  assert resolved.name == 'tests.experiment.toys.Toy'


def test_every_root_can_be_set():
  resolved = resolve(
    'task_p.train.num_train_steps=50',
    'task_p.model.width=7',
    'train_input_p.batch_size=8',
    'eval_input_p[1].batch_size=16',
    'decode_input_p[0].name=verses',
    'mesh_p.data=2',
    'checkpoint_p.every=3',
  )
  assert resolved.task_p.train.num_train_steps == 50
  assert resolved.task_p.model.width == 7
  assert resolved.train_input_p.batch_size == 8
  assert [i.batch_size for i in resolved.eval_input_p] == [4, 16]
  assert resolved.decode_input_p[0].name == 'verses'
  assert resolved.mesh_p.data == 2
  assert resolved.checkpoint_p.every == 3


def test_input_p_means_the_training_input():
  resolved = resolve('input_p.batch_size=32')
  assert resolved.train_input_p.batch_size == 32
  assert resolved.eval_input_p[0].batch_size == 4


def test_a_knob_is_set_before_the_config_is_made_and_a_path_after():
  resolved = resolve('task_p.model.width=9', 'NUM_LAYERS=6')
  assert resolved.task_p.model.num_layers == 6
  assert resolved.knobs['NUM_LAYERS'] == 6
  resolved = resolve('task_p.model.num_layers=3', 'NUM_LAYERS=6')
  assert resolved.task_p.model.num_layers == 3


def test_a_knob_has_the_type_of_its_annotation_or_default():
  resolved = resolve('RATE=2', 'NOTE=12', 'SIZES=5')
  assert resolved.knobs == {
    'NUM_LAYERS': 2,
    'RATE': 2.0,
    'NOTE': '12',
    'SIZES': (5,),
  }
  with pytest.raises(errors.OverrideError, match=r'NUM_LAYERS=2.5.*an int'):
    resolve('NUM_LAYERS=2.5')


def test_a_subclass_inherits_and_changes_knobs():
  class Bigger(toys.Toy):
    NUM_LAYERS = 8

  assert resolve(cls=Bigger).task_p.model.num_layers == 8
  assert resolve('RATE=3', cls=Bigger).knobs['RATE'] == 3.0


def test_setting_a_knob_leaves_the_class_alone():
  resolve('NUM_LAYERS=6')
  assert toys.Toy.NUM_LAYERS == 2


def test_a_knob_is_seen_by_class_methods_too():
  class ByClass(toys.Toy):
    @classmethod
    def depth(cls):
      return cls.NUM_LAYERS

    def task_p(self):
      task_p = super().task_p()
      task_p.model.num_layers = self.depth()
      return task_p

  assert resolve('NUM_LAYERS=5', cls=ByClass).task_p.model.num_layers == 5


def test_an_unknown_knob_suggests_the_nearest():
  with pytest.raises(errors.OverrideError, match='Did you mean NUM_LAYERS'):
    resolve('NUM_LAYER=3')


def test_a_knob_without_a_value_must_be_set():
  class Open(toys.Toy):
    WIDTH: int

  with pytest.raises(errors.ConfigError, match=r'Open.WIDTH has no value'):
    resolve(cls=Open)
  assert resolve('WIDTH=3', cls=Open).knobs['WIDTH'] == 3


def test_an_unknown_root_suggests_the_nearest():
  with pytest.raises(errors.OverrideError, match='Did you mean task_p'):
    resolve('task.train.num_train_steps=3')
  with pytest.raises(errors.OverrideError, match='Did you mean eval_input_p'):
    resolve('eval_inputs_p[0].batch_size=3')


def test_validate_sees_the_final_knobs():
  class Picky(toys.Toy):
    def validate(self) -> None:
      if self.NUM_LAYERS % 2:
        raise errors.ConfigError('NUM_LAYERS must be even.')

  assert resolve('NUM_LAYERS=4', cls=Picky).knobs['NUM_LAYERS'] == 4
  with pytest.raises(errors.ConfigError, match='must be even'):
    resolve('NUM_LAYERS=3', cls=Picky)


def test_nonsense_in_the_config_is_refused_at_once():
  with pytest.raises(errors.ConfigError, match='every is 0'):
    resolve('task_p.train.every=0')


def test_one_node_in_two_places_is_set_in_one_of_them():
  class Shared(toys.Toy):
    def input_p(self):
      test = fdl.Config(toys.Input, name='test')
      train = fdl.Config(toys.Input, name='train', is_training=True)
      return [train, test, test]

  with pytest.raises(errors.ConfigError, match='both called'):
    resolve(cls=Shared)
  resolved = resolve('eval_input_p[1].name=again', cls=Shared)
  assert [i.name for i in resolved.eval_input_p] == ['test', 'again']


def test_inputs_that_cannot_be_told_apart_are_refused():
  class TwoTrain(toys.Toy):
    def input_p(self):
      return [fdl.Config(toys.Input, name=n, is_training=True) for n in 'ab']

  class NoList(toys.Toy):
    def input_p(self):
      return fdl.Config(toys.Input, name='a')

  class NoFlag(toys.Toy):
    def input_p(self):
      return [fdl.Config(toys.Train)]

  for cls, message in [
    (TwoTrain, 'trains on one'),
    (NoList, 'must give a list'),
    (NoFlag, 'is_training'),
  ]:
    with pytest.raises(errors.ConfigError, match=message):
      resolve(cls=cls)


def test_is_training_may_not_be_turned_round():
  with pytest.raises(errors.ConfigError, match=r'train_input_p.is_training'):
    resolve('train_input_p.is_training=false')
  with pytest.raises(errors.ConfigError, match=r'eval_input_p\[0\]'):
    resolve('eval_input_p[0].is_training=true')


def test_an_experiment_may_have_no_training_input():
  class EvalOnly(toys.Toy):
    def input_p(self):
      return [fdl.Config(toys.Input, name='test')]

  resolved = resolve(cls=EvalOnly)
  assert resolved.train_input_p is None
  assert 'train_input_p' not in resolved.roots()
  with pytest.raises(errors.OverrideError, match='train_input_p'):
    resolve('input_p.batch_size=8', cls=EvalOnly)


def test_of_two_settings_of_one_place_the_last_holds_and_that_is_said(caplog):
  caplog.set_level('WARNING')
  resolved = resolve(
    'task_p.train.num_train_steps=3',
    'input_p.batch_size=8',
    'task_p.train.num_train_steps=5',
    'train_input_p.batch_size=8',
  )
  assert resolved.task_p.train.num_train_steps == 5
  (said,) = [record.getMessage() for record in caplog.records]
  assert 'num_train_steps=3 is given before' in said
  assert 'num_train_steps=5: the last one holds' in said


def test_a_task_that_lacks_a_required_value_is_refused_before_it_is_built():
  class NoTrain(toys.Toy):
    def task_p(self):
      return fdl.Config(toys.Task, model=fdl.Partial(toys.Model))

  with pytest.raises(
    errors.ConfigError, match=r'task_p.train is not set .*--set task_p.train='
  ):
    resolve(cls=NoTrain)
