import datetime
import json
import pathlib
import subprocess
import sys

import fiddle as fdl
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx

from paxlike import config
from paxlike.core import errors
from tests.config import toys


def round_trip(value):
  text = config.dump.to_json({'root': value})
  assert 'opaque' not in text
  return config.dump.from_json(text)['root']


@pytest.mark.parametrize(
  'value',
  [
    None,
    True,
    3,
    -2.5,
    float('inf'),
    'text',
    '$config',
    b'\x00\xff',
    [1, [2, (3,)], {4}, frozenset({5})],
    {'a': 1, 'b': {'$dict': 2}},
    {1: 'one', None: 'none', (1, 2): 'pair'},
    datetime.timedelta(days=1, hours=12, milliseconds=250),
    pathlib.Path('a/b'),
    toys.Colour.BLUE,
    toys.double,
    toys.Model,
    np.dtype('float32'),
    np.dtype(ml_dtypes.bfloat16),
    np.float32,
    jnp.bfloat16,
    jax.nn.gelu,
    jax.nn.relu,
    jax.sharding.PartitionSpec('data', None, ('a', 'b')),
    toys.Schedule(peak=3.0),
    optax.adamw,
    nnx.Linear,
  ],
  ids=lambda value: type(value).__name__,  # no addresses in names
)
def test_values_come_back_as_they_were(value):
  got = round_trip(value)
  assert got == value
  assert type(got) is type(value)


def test_a_tree_comes_back_as_an_equal_tree():
  tree = toys.task_p()
  tree.train.schedule = fdl.Config(toys.Schedule, peak=2.0)
  tree.train.every = datetime.timedelta(hours=12)
  tree.model.act = jax.nn.gelu
  got = round_trip(tree)
  assert got == tree
  assert isinstance(got.model, fdl.Partial)


def test_positional_arguments_come_back():
  node = fdl.Config(toys.variadic, 1, fdl.Config(toys.untyped), 3, named=4)
  assert round_trip(node) == node
  assert fdl.build(round_trip(node)) == fdl.build(node)


def test_tags_come_back():
  node = fdl.Config(toys.untyped)
  fdl.add_tag(node, 'width', toys.WidthTag)
  assert fdl.get_tags(round_trip(node), 'width') == {toys.WidthTag}


def test_a_node_used_twice_stays_one_node():
  layer = fdl.Config(toys.Model, width=1)
  got = round_trip(fdl.Config(toys.Task, layers=[layer, layer]))
  assert got.layers[0] is got.layers[1]


def test_classes_go_by_their_public_door():
  node = fdl.Config(optax.adamw, learning_rate=0.1)
  text = config.dump.to_json({'root': node})
  assert json.loads(text)['config']['root']['$config'] == 'optax:adamw'
  for value, name in [
    (jax.nn.gelu, 'jax.nn:gelu'),
    (jnp.float32, 'jax.numpy:float32'),
    (nnx.Linear, 'flax.nnx:Linear'),
  ]:
    text = config.dump.to_json({'root': value})
    assert json.loads(text)['config']['root'] == {'$ref': name}


def test_a_nameless_value_is_written_but_refused_on_reading():
  node = fdl.Config(toys.untyped, note=[lambda x: x])
  text = config.dump.to_json({'root': node})
  with pytest.raises(errors.ConfigError, match=r'root.note\[0\].*lambda'):
    config.dump.from_json(text)


def test_what_no_longer_exists_is_named():
  text = config.dump.to_json({'root': fdl.Config(toys.Model, width=1)})
  with pytest.raises(errors.ConfigError, match=r'root:.*Did you mean Model'):
    config.dump.from_json(text.replace('toys:Model', 'toys:Modell'))
  with pytest.raises(errors.ConfigError, match=r'root:.*girth'):
    config.dump.from_json(text.replace('width', 'girth'))


@pytest.mark.parametrize(
  'text', ['', '[]', '{}', '{"format": 99, "config": {}}']
)
def test_another_file_is_refused(text):
  with pytest.raises(errors.ConfigError):
    config.dump.from_json(text)


def test_the_same_tree_is_written_the_same_by_another_process():
  code = (
    'from paxlike import config; from tests.config import toys; '
    'print(config.dump.to_json({"task_p": toys.task_p()}), end="")'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stdout == config.dump.to_json({'task_p': toys.task_p()})


def test_text_lists_every_value_in_force():
  tree = toys.task_p()
  tree.train.every = datetime.timedelta(hours=12)
  lines = config.dump.to_text({'task_p': tree}).splitlines()
  for line in [
    'task_p = @tests.config.toys:Task',
    'task_p.model = @tests.config.toys:Model  # partial',
    'task_p.model.width = 8',
    'task_p.model.depth = 2  # default',
    'task_p.train.steps = 10',
    'task_p.train.every = 12h',
    'task_p.train.colour = RED  # default',
    'task_p.train.dtype = float32  # default',
    'task_p.train.schedule.peak = 1.0  # default',
    'task_p.train.names = []  # default',
    'task_p.train.fresh = @tests.config.toys:Schedule()  # default',
    'task_p.layers[1].width = 2',
    'task_p.options.inner.shape = (4, 4)  # default',
  ]:
    assert line in lines


def test_text_tells_what_is_missing_and_what_is_shared():
  layer = fdl.Config(toys.Model)
  text = config.dump.to_text({'x': [layer, layer]})
  assert 'x[0].width  # not set' in text
  assert 'x[1] = the same as x[0]' in text


def test_a_sentinel_stays_as_it_was_set():
  tree = {'m': fdl.Config(toys.Model, width=-1)}
  assert 'm.width = -1' in config.dump.to_text(tree)
  assert round_trip(tree)['m'].width == -1


def test_what_was_changed_is_told_by_its_path():
  before = '# command: a = b\nx.a = 1\nx.b = 2  # default\nx.c = 3\n'
  now = '# command: c = d\nx.a = 1  # default\nx.b = 5\nx.d = 4\n'
  assert config.dump.changes(before, now) == [
    'x.b: 2 -> 5',
    'x.c: 3 -> absent',
    'x.d: absent -> 4',
  ]


def test_a_default_that_is_new_in_the_code_is_no_change():
  assert config.dump.changes('x.a = 1\n', 'x.a = 1\nx.b = 2  # default\n') == []
  assert config.dump.changes('x.a = 1\nx.b = 2  # default\n', 'x.a = 1\n') == []


def test_a_default_that_is_another_now_is_a_change():
  assert config.dump.changes('x = 1  # default\n', 'x = 2  # default\n') == [
    'x: 1 -> 2'
  ]


def test_a_template_is_told_by_its_class_alone():
  assert config.dump.changes('x = @A  # partial\n', 'x = @B  # partial\n') == [
    'x: @A -> @B'
  ]
