"""Leaf names never collide and come in the order of the leaves."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxlike.core import errors, trees


def names(tree, **options):
  return [name for name, _ in trees.flatten_with_names(tree, **options)]


def test_a_separator_in_a_key_is_not_a_separator():
  assert names({'a/b': 1, 'a': {'b': 2}}) == ['a/b', 'a%2Fb']


def test_keys_that_a_path_would_understand_are_escaped():
  assert names({'..': 1, '.': 2, '': 3, '%2E': 4}) == [
    '%',
    '%252E',
    '%2E',
    '%2E%2E',
  ]


@given(st.lists(st.text(max_size=4), unique=True, max_size=8))
def test_different_keys_have_different_names(keys):
  found = names(dict.fromkeys(keys, 0))
  assert len(set(found)) == len(keys)
  assert all('/' not in name for name in found)


def test_fields_of_a_named_tuple_have_their_own_names():
  Moments = collections.namedtuple('Moments', ['mu', 'nu'])
  assert names(Moments(1, 2)) == ['mu', 'nu']
  state = optax.adam(0.1).init({'w': jnp.ones(1)})
  assert names(state) == ['0/count', '0/mu/w', '0/nu/w']


def test_names_come_in_the_order_of_the_leaves():
  tree = {
    'b': [jnp.float32(i) for i in range(12)],
    'a': (1, {'z': 2, 'y': 3}),
    'c': {10: 4, 9: 5},
  }
  leaves = [leaf for _, leaf in trees.flatten_with_names(tree)]
  assert leaves == jax.tree.leaves(tree)
  assert names(tree)[3:6] == ['b/0', 'b/1', 'b/2']


def test_a_registered_class_gives_the_names_of_its_fields():
  @jax.tree_util.register_dataclass
  @dataclasses.dataclass
  class Train:
    step: int
    params: dict

  assert names(Train(1, {'w': 2})) == ['step', 'params/w']


def test_empty_nodes_are_listed_when_asked():
  tree = {'n': None, 'd': {}, 'e': optax.EmptyState(), 'x': 1}
  assert names(tree) == ['x']
  assert trees.flatten_with_names(tree, keep_empty=True) == [
    ('d', trees.Empty('dict')),
    ('e', trees.Empty('EmptyState')),
    ('n', trees.Empty('None')),
    ('x', 1),
  ]


def test_a_tree_that_is_a_leaf_has_the_empty_name():
  assert names(3) == ['']


@pytest.mark.parametrize('tree', [{0: 1, '0': 2}, {1: 0, 'a': 0}])
def test_keys_of_mixed_types_are_refused(tree):
  with pytest.raises(errors.ConfigError, match='mixes'):
    names(tree)


def test_map_with_names_keeps_the_structure():
  tree = {'a': [1, 2], 'n': None}
  found = trees.map_with_names(lambda name, leaf: f'{name}={leaf}', tree)
  assert found == {'a': ['a/0=1', 'a/1=2'], 'n': None}


def test_many_names_are_shortened_for_a_message():
  assert trees.summarize(['a', 'b']) == "'a', 'b'"
  assert trees.summarize(list('abc'), limit=1) == "'a' and 2 more"
