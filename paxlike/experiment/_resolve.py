"""From an experiment class and settings to the one config of a run."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from absl import logging

from paxlike import config
from paxlike.core import errors
from paxlike.experiment import _base, _knobs, _mistakes

# What `input_p.batch_size` means: the input that the batch size trains with.
_SHORTHANDS = {'input_p': 'train_input_p'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved:
  """The config of a run, all settings made.

  Attributes:
    name: Full name of the experiment.
    knobs: Values of its upper-case attributes.
    task_p: Config of the task.
    train_input_p: Config of the training input; None if there is none.
    eval_input_p: Configs of the inputs to test on.
    decode_input_p: Configs of the inputs to decode.
    mesh_p: Config of the mesh.
    checkpoint_p: Config of how checkpoints are stored.
    decode: Config of how decode outputs are written.
  """

  name: str
  knobs: dict[str, Any]
  task_p: Any
  train_input_p: Any
  eval_input_p: list[Any]
  decode_input_p: list[Any]
  mesh_p: Any
  checkpoint_p: Any
  decode: Any

  def roots(self) -> dict[str, Any]:
    """The config trees by the names that `--set` uses; absent ones left out."""
    trees = {name: getattr(self, name) for name in _ROOTS}
    return {
      name: tree for name, tree in trees.items() if tree not in (None, [])
    }


_ROOTS = (
  'task_p',
  'train_input_p',
  'eval_input_p',
  'decode_input_p',
  'mesh_p',
  'checkpoint_p',
  'decode',
)


def resolve(
  cls: type[_base.BaseExperiment], settings: Sequence[str] = ()
) -> Resolved:
  """Makes an experiment's config and changes values in it.

  Knobs are set before the experiment makes its config, paths after.

  Args:
    cls: The experiment.
    settings: 'PATH=VALUE' each; a path is an upper-case knob or begins with a
      root of the config.

  Returns:
    The config, its own copy.

  Raises:
    OverrideError: A setting names nothing or has the wrong type.
    ConfigError: The experiment, or a part of its config, refuses its values.
  """
  parsed = [
    _spelled_out(config.overrides.Setting.parse(setting))
    for setting in settings
  ]
  _tell_repeated(parsed)
  changed = _knobs.with_settings(
    cls, [setting for setting in parsed if _knobs.is_knob_name(setting.path)]
  )
  with _mistakes.explained(cls):
    made = changed()
    made.validate()
    unchanged = _roots_of(made)
  roots = config.overrides.apply(
    unchanged,
    [s for s in parsed if not _knobs.is_knob_name(s.path)],
  )
  for name, tree in roots.items():
    config.checks.check(tree, name)
  _check_inputs(roots)
  return Resolved(
    name=f'{cls.__module__}.{cls.__qualname__}',
    knobs=_knobs.values_of(changed),
    **{name: roots.get(name, _ABSENT.get(name)) for name in _ROOTS},
  )


_ABSENT: dict[str, Any] = {'eval_input_p': [], 'decode_input_p': []}


def _roots_of(made: _base.BaseExperiment) -> dict[str, Any]:
  """The trees as the experiment made them; inputs it lacks are left out."""
  training, testing = [], []
  for index, input_p in enumerate(_list(made.input_p(), 'input_p')):
    (training if _is_training(input_p, index) else testing).append(input_p)
  if len(training) > 1:
    raise errors.ConfigError(
      f'input_p() gives {len(training)} inputs with is_training=True, and a '
      'run trains on one. Mix them in one input, or set the others to False.'
    )
  roots = {
    'task_p': made.task_p(),
    'train_input_p': training[0] if training else None,
    'eval_input_p': testing,
    'decode_input_p': _list(made.decode_input_p(), 'decode_input_p'),
    'mesh_p': made.mesh_p(),
    'checkpoint_p': made.checkpoint_p(),
    'decode': made.decode_p(),
  }
  # Each a copy: an experiment may hand out one node in two places, and a
  # setting must change only the place that it names.
  return {
    name: _separate(tree)
    for name, tree in roots.items()
    if tree not in (None, [])
  }


def _separate(tree: Any) -> Any:
  if isinstance(tree, list):
    return [copy.deepcopy(item) for item in tree]
  return copy.deepcopy(tree)


def _list(inputs: Any, method: str) -> list[Any]:
  if not isinstance(inputs, list | tuple):
    raise errors.ConfigError(
      f'{method}() gives a {type(inputs).__name__}, must give a list of inputs.'
    )
  return list(inputs)


def _is_training(input_p: Any, index: int) -> bool:
  value = getattr(input_p, 'is_training', None)
  if not isinstance(value, bool):
    raise errors.ConfigError(
      f'Input {index} of input_p() has is_training={value!r}; set it to True '
      'to train on it, to False to test on it.'
    )
  return value


def _spelled_out(
  setting: config.overrides.Setting,
) -> config.overrides.Setting:
  root, dot, rest = setting.path.partition('.')
  path = f'{_SHORTHANDS.get(root, root)}{dot}{rest}'
  return dataclasses.replace(setting, path=path)


def _tell_repeated(settings: Sequence[config.overrides.Setting]) -> None:
  """Says which setting holds where one place is set more than once.

  No error: scripts put a user's settings after their own.
  """
  last = {setting.path: setting for setting in settings}
  for setting in settings:
    holds = last[setting.path]
    if setting.text != holds.text:
      logging.warning(
        '--set %s=%s is given before --set %s=%s: the last one holds.',
        setting.path,
        setting.text,
        holds.path,
        holds.text,
      )


def _check_inputs(roots: dict[str, Any]) -> None:
  """Refuses what only shows when inputs are seen beside each other."""
  train = roots.get('train_input_p')
  if train is not None and not train.is_training:
    raise errors.ConfigError(
      'train_input_p.is_training is False. To train on nothing, use '
      '--mode=eval or --mode=decode.'
    )
  for root in ('eval_input_p', 'decode_input_p'):
    names: list[str] = []
    for index, input_p in enumerate(roots.get(root, [])):
      if input_p.is_training:
        raise errors.ConfigError(
          f'{root}[{index}].is_training is True, must be False: an input that '
          'is tested on or decoded ends.'
        )
      name = str(getattr(input_p, 'name', index))
      if name in names:
        raise errors.ConfigError(
          f'{root}[{names.index(name)}] and {root}[{index}] are both called '
          f'{name!r}, so their outputs would mix. Give each its own name.'
        )
      names.append(name)
