import datetime
import subprocess
import sys

import fiddle as fdl
import numpy as np
import pytest

from paxlike import config
from paxlike.core import errors
from tests.config import toys


@pytest.fixture
def tree():
  return {'task_p': toys.task_p(), 'eval_input_p': [toys.task_p()]}


def train(tree, *settings):
  return config.overrides.apply(tree, settings)['task_p'].train


def failure(tree, *settings) -> str:
  with pytest.raises(errors.OverrideError) as caught:
    config.overrides.apply(tree, settings)
  return str(caught.value)


@pytest.mark.parametrize(
  ('field', 'text', 'value'),
  [
    ('steps', '50', 50),
    ('steps', '1_000', 1000),
    ('steps', '1e6', 1_000_000),
    ('rate', '3', 3.0),
    ('rate', '1e-3', 0.001),
    ('rate', 'inf', float('inf')),
    ('is_fast', 'true', True),
    ('is_fast', 'False', False),
    ('name', '10', '10'),
    ('name', 'a=b', 'a=b'),
    ('name', "'a b'", 'a b'),
    ('name', '', ''),
    ('limit', 'None', None),
    ('limit', '7', 7),
    ('clip', 'none', None),
    ('clip', '1', 1.0),
    ('every', '12h', datetime.timedelta(hours=12)),
    ('every', '1d12h', datetime.timedelta(hours=36)),
    ('every', '1.5m', datetime.timedelta(seconds=90)),
    ('colour', 'BLUE', toys.Colour.BLUE),
    ('colour', 'b', toys.Colour.BLUE),
    ('colour', 'Colour.BLUE', toys.Colour.BLUE),
    ('mode', 'slow', 'slow'),
    ('mode', '3', 3),
    ('sizes', '(4, 5)', (4, 5)),
    ('sizes', '[4,5]', (4, 5)),
    ('sizes', '4,5', (4, 5)),
    ('sizes', '4', (4,)),
    ('sizes', '()', ()),
    ('pair', 'x,2', ('x', 2.0)),
    ('names', '[a,b]', ['a', 'b']),
    ('names', 'a', ['a']),
    ('rules', '[[a,b],[c,none]]', (('a', 'b'), ('c', None))),
    ('table', '{a: 1, b: 2}', {'a': 1, 'b': 2}),
    ('dtype', 'bfloat16', 'bfloat16'),
    ('loose_dtype', 'bfloat16', 'bfloat16'),
    ('anything', '[1, 2]', [1, 2]),
    ('anything', 'words here', 'words here'),
    ('anything', 'None', None),
    ('anything', '@tests.config.toys.double', toys.double),
    ('hook', '@tests.config.toys:double', toys.double),
    ('hook', 'tests.config.toys.double', toys.double),
    ('hook', 'none', None),
    ('order', '3,1', (3, 1)),
    ('files', 'word', 'word'),
    ('files', 'package:a/b,c', 'package:a/b,c'),
    ('files', '[a, b]', ('a', 'b')),
    ('unreadable', '6', 6),
  ],
)
def test_text_becomes_the_declared_type(tree, field, text, value):
  got = getattr(train(tree, f'task_p.train.{field}={text}'), field)
  assert got == value
  assert type(got) is type(value) or field == 'dtype'


def test_a_dtype_field_gets_a_dtype(tree):
  got = train(tree, 'task_p.train.dtype=bfloat16').dtype
  assert isinstance(got, np.dtype)


@pytest.mark.parametrize(
  ('field', 'text', 'expected'),
  [
    ('steps', '3.5', 'an int'),
    ('steps', '3.0', 'an int'),
    ('steps', 'True', 'an int'),
    ('steps', 'None', 'an int'),
    ('steps', '', 'an int'),
    ('rate', 'fast', 'a float'),
    ('is_fast', '1', 'true or false'),
    ('is_fast', 'yes', 'true or false'),
    ('limit', '1.5', 'an int or None'),
    ('every', '12', 'a duration such as 90s, 30m, 12h'),
    ('colour', 'green', 'one of RED, BLUE'),
    ('mode', 'medium', 'one of fast, slow, 3'),
    ('sizes', '(1, 2.5)', 'a tuple, each an int'),
    ('sizes', '(1,', 'a tuple'),
    ('pair', '(a,1,2)', 'a tuple of 2'),
    ('names', '{a: 1}', 'a list'),
    ('table', '[1]', 'a dict'),
    ('table', '{a: x}', 'an int'),
    ('dtype', 'bfloat61', 'a dtype'),
    ('loose_dtype', 'bfloat61', 'a dtype'),
    ('hook', 'double', 'a reference such as @jax.nn.gelu'),
    ('unreadable', '6.5', 'an int'),
  ],
)
def test_a_value_of_another_type_is_refused(tree, field, text, expected):
  message = failure(tree, f'task_p.train.{field}={text}')
  assert f'task_p.train.{field}={text}' in message
  assert expected in message


def test_fields_without_annotation_take_the_type_of_their_default():
  tree = {'f': fdl.Config(toys.untyped)}
  changed = config.overrides.apply(
    tree, ['f.rate=2', 'f.shape=5,6', 'f.flag=true', 'f.note=1']
  )['f']
  assert (changed.rate, changed.shape) == (2.0, (5, 6))
  assert (changed.flag, changed.note) == (True, 1)
  assert 'an int' in failure(tree, 'f.width=1.5')
  assert 'each an int' in failure(tree, 'f.shape=1.5')


@pytest.mark.parametrize(
  ('path', 'near'),
  [
    ('task_p.train.stepz', 'steps'),
    ('task_p.trian.steps', 'train'),
    ('taskp.train.steps', 'task_p'),
    ('task_p.model.dept', 'depth'),
    ('task_p.options.alfa', 'alpha'),
    ('task_p.options.inner.widht', 'width'),
    ('eval_input_p[0].trane.steps', 'train'),
  ],
)
def test_a_misspelt_path_suggests_the_nearest(tree, path, near):
  assert f'Did you mean {near}' in failure(tree, f'{path}=3')


@pytest.mark.parametrize('index', ['2', '99', '-3'])
def test_an_index_out_of_range_says_the_range(tree, index):
  message = failure(tree, f'task_p.layers[{index}].width=3')
  assert 'has 2 items, [0] to [1]' in message


def test_a_list_without_index_says_how_to_index(tree):
  message = failure(tree, 'eval_input_p.train.steps=3')
  assert 'write eval_input_p[0]' in message


@pytest.mark.parametrize(
  'setting',
  ['task_p', '=3', 'task_p..train=3', '[0]=3', 'task_p.=3', 'task_p.layers[=3'],
)
def test_what_is_no_setting_is_refused(tree, setting):
  assert f'--set {setting.partition("=")[0]}' in failure(tree, setting)


def test_going_below_a_plain_value_is_refused(tree):
  assert 'nothing inside' in failure(tree, 'task_p.train.steps.more=3')


def test_going_below_what_is_not_set_is_refused():
  tree = {'task_p': fdl.Config(toys.Task)}
  assert 'is not set yet' in failure(tree, 'task_p.train.steps=3')


def test_a_config_is_not_replaced_by_text(tree):
  message = failure(tree, 'task_p.train=fast')
  assert 'steps' in message
  assert '@module.Class' in message


def test_another_class_takes_the_place_of_a_config(tree):
  tree = config.overrides.apply(
    tree,
    ['task_p.model=@tests.config.toys.BigModel', 'task_p.model.width=5'],
  )
  model = tree['task_p'].model
  assert isinstance(model, fdl.Partial)
  assert fdl.get_callable(model) is toys.BigModel
  assert model.width == 5


def test_a_reference_to_nothing_suggests(tree):
  path = 'task_p.train.hook'
  message = failure(tree, f'{path}=@tests.config.toys.doubel')
  assert 'Did you mean double' in message
  assert 'no module' in failure(tree, f'{path}=@nomodule.x')


def test_items_of_lists_and_dicts_are_set_in_place(tree):
  task = config.overrides.apply(
    tree,
    [
      'task_p.layers[1].width=9',
      'task_p.layers[-2].width=8',
      "task_p.options['alpha']=2",
      'task_p.options.inner.width=4',
      'task_p.options[inner].rate=4',
    ],
  )['task_p']
  assert [layer.width for layer in task.layers] == [8, 9]
  assert task.options['alpha'] == 2
  assert (task.options['inner'].width, task.options['inner'].rate) == (4, 4.0)


def test_partial_templates_are_set_like_configs(tree):
  tree = config.overrides.apply(tree, ['task_p.model.act=@math.sqrt'])
  assert fdl.build(tree['task_p']).model().act(4.0) == 2.0


def test_a_default_dataclass_is_reached_into(tree):
  got = fdl.build(train(tree, 'task_p.train.schedule.peak=2'))
  assert got.schedule == toys.Schedule(peak=2.0)
  got = fdl.build(train(tree, 'task_p.train.fresh.peak=2'))
  assert got.fresh == toys.Schedule(peak=2.0)


def test_settings_that_only_fit_together_may_come_in_any_order(tree):
  settings = ['task_p.train.schedule.floor=5', 'task_p.train.schedule.peak=6']
  for ordered in (settings, settings[::-1]):
    built = fdl.build(train(tree, *ordered))
    assert built.schedule == toys.Schedule(peak=6.0, floor=5.0)


def test_a_frozen_dataclass_without_a_config_is_set_too():
  tree = {'train': toys.Train(steps=3)}
  changed = config.overrides.apply(tree, ['train.sizes[1]=7'])
  assert fdl.build(changed['train']).sizes == (1, 7)


def test_the_last_of_two_settings_wins(tree):
  assert train(tree, 'task_p.train.steps=1', 'task_p.train.steps=2').steps == 2


def test_the_tree_that_came_in_is_left_alone(tree):
  config.overrides.apply(tree, ['task_p.layers[0].width=9'])
  assert tree['task_p'].layers[0].width == 1


def test_a_hidden_signature_is_found():
  tree = {'h': fdl.Config(toys.Hidden)}
  changed = config.overrides.apply(tree, ['h.width=3', 'h.bias=false'])
  assert fdl.build(changed['h']).width == 3
  assert 'Did you mean width' in failure(tree, 'h.widht=3')


def test_a_name_that_only_kwargs_would_take_is_refused():
  tree = {'v': fdl.Config(toys.variadic, 1, 2, named=3)}
  changed = config.overrides.apply(tree, ['v.named=4', 'v[1]=5', 'v.first=6'])
  assert fdl.build(changed['v']) == (6, (5,), {'named': 4})
  assert 'Did you mean named' in failure(tree, 'v.namd=3')
  assert 'v[2]' in failure(tree, 'v[2]=3')


def test_an_import_error_inside_a_referenced_module_is_itself(
  tree, tmp_path, monkeypatch
):
  (tmp_path / 'lacks_dependency.py').write_text('import not_installed_here\n')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ModuleNotFoundError, match='not_installed_here'):
    config.overrides.apply(tree, ['task_p.train.hook=@lacks_dependency.f'])


def test_config_room_loads_no_array_library():
  code = (
    'from paxlike import config; import sys; config.overrides.apply('
    '{"a": 1}, ["a=2"]); config.values, config.references, config.fields; '
    'print([m for m in ("jax", "flax", "numpy", "fiddle") if m in sys.modules])'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == '[]'
