import pytest

from paxlike.core import errors
from paxlike.inputs import _files


@pytest.fixture
def tree(tmp_path):
  for name in ('a/1.txt', 'a/2.txt', 'b/1.txt', 'b/c/3.txt', 'b/4.md'):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
  return tmp_path


def names(*patterns: str) -> list[str]:
  return [name for name, _ in _files.read_all(patterns)]


def test_a_path_is_itself(tree):
  found = list(_files.read_all([f'{tree}/a/1.txt']))
  assert found == [('1.txt', b'a/1.txt')]


def test_wildcards_match_names_and_directories_in_order(tree):
  assert names(f'{tree}/a/*.txt') == ['1.txt', '2.txt']
  assert names(f'{tree}/*/1.txt') == ['a/1.txt', 'b/1.txt']
  assert names(f'{tree}/**/*.txt') == [
    'a/1.txt',
    'a/2.txt',
    'b/1.txt',
    'b/c/3.txt',
  ]


def test_patterns_keep_their_order(tree):
  assert names(f'{tree}/b/1.txt', f'{tree}/a/*') == ['1.txt', '1.txt', '2.txt']


def test_a_pattern_without_a_match_is_an_error(tree):
  with pytest.raises(errors.InputError, match=r'\*\.csv'):
    names(f'{tree}/*.csv')


def test_a_package_that_is_not_installed_says_what_to_install():
  with pytest.raises(errors.InputError, match='pip install'):
    names('package:no_such_package/data.jsonl')


def test_third_party_packages_are_no_standard_library():
  assert not any(
    'site-packages' in name for name in names('stdlib:**/__init__.py')
  )
