import dataclasses

import fiddle as fdl
import pytest

from paxlike import config
from paxlike.core import errors
from tests.config import toys


@dataclasses.dataclass(frozen=True)
class Picky:
  value: int = 0
  inner: 'Picky | None' = None

  def __post_init__(self) -> None:
    if self.value < 0:
      raise errors.ConfigError(f'value is {self.value}, must be >= 0.')


def explode(*, part):
  raise AssertionError('built')


def test_nonsense_in_a_data_node_is_found():
  tree = [fdl.Config(explode, part=fdl.Config(Picky, inner=fdl.Config(Picky)))]
  config.checks.check(tree, 'root')
  tree[0].part.inner.value = -1
  with pytest.raises(errors.ConfigError) as caught:
    config.checks.check(tree, 'root')
  assert str(caught.value) == 'value is -1, must be >= 0.'


def test_what_is_not_data_is_not_built():
  config.checks.check({'a': fdl.Config(explode, part=1)}, 'root')


def test_a_required_value_that_is_missing_is_named():
  tree = fdl.Config(toys.Task, train=fdl.Config(toys.Train))
  with pytest.raises(errors.ConfigError, match=r'--set task_p.model=VALUE'):
    config.checks.check(tree, 'task_p')
  tree.model = fdl.Partial(explode)
  with pytest.raises(
    errors.ConfigError, match=r'--set task_p.train.steps=VALUE'
  ):
    config.checks.check(tree, 'task_p')


def test_a_template_may_lack_what_its_caller_gives():
  task = fdl.Config(explode, part=fdl.Partial(toys.Train))
  config.checks.check(task, 'task_p')
  task.part.schedule = fdl.Config(Picky, value=-1)
  with pytest.raises(errors.ConfigError, match='value is -1'):
    config.checks.check(task, 'task_p')
