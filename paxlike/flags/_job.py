"""The flags of a job: what there is, what was given, and what makes no sense.

Loads nothing heavy: help is there at once. What the flags mean to a job is
main's, and a command has its own.
"""

import re
from collections.abc import Mapping, Sequence

from absl import flags

from paxlike.core import errors, suggest

MODES = ('train', 'eval', 'decode')
Values = flags.FlagValues
# How absl says that a flag was given before, (name, new value, old value).
_GIVEN_TWICE = re.compile(r'flag --(\w+)=(.*): already defined as (.*)')
_USAGE = """\
paxlike --exp=NAME --mode=train|eval|decode --job_log_dir=DIR [flags]
paxlike COMMAND ...
"""


def parse(argv: Sequence[str]) -> Values:
  """The flags as given.

  Raises:
    UsageError: A flag is misspelt or has a wrong value, or there is a word
      that is no flag.
  """
  values = define()
  values.set_gnu_getopt(True)
  try:
    rest = values(argv)[1:]
  except flags.UnrecognizedFlagError as error:
    if error.flagname.startswith('fdl.'):
      path = error.flagname.removeprefix('fdl.')
      raise errors.UsageError(
        f'There is no flag --{error.flagname}; write --set {path}=VALUE.'
      ) from None
    words = [word.split('=', 1)[0] for word in argv]
    given = f'-{error.flagname}'  # with one dash or two
    raise errors.UsageError(
      f'There is no flag {given if given in words else "-" + given}. '
      f'{suggest.hint(error.flagname, _as_typed(values))} All: paxlike --help'
    ) from None
  except flags.Error as error:
    raise errors.UsageError(_one_line(str(error))) from None
  if rest:
    raise errors.UsageError(
      f'{rest[0]!r} is no flag; values are given as --flag=value.'
    )
  # Libraries that look at absl's own flags find them parsed, at defaults.
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  return values


def check(values: Values) -> None:
  """Refuses flags that are missing or make no sense together."""
  required = ['exp'] if values.dump_config else ['exp', 'mode', 'job_log_dir']
  missing = [f'--{name}' for name in required if not values[name].value]
  if missing:
    raise errors.UsageError(
      f'Missing {", ".join(missing)}. For example: paxlike --exp=KjvTiny '
      '--mode=train --job_log_dir=~/runs/kjv. All flags: paxlike --help'
    )
  directories = (
    'job_log_dir',
    'restore_checkpoint_dir',
    'compilation_cache_dir',
  )
  for name in directories:
    value = values[name].value
    if value is not None and not value.strip():  # a variable that is not set
      raise errors.UsageError(
        f'--{name}={value} is empty: give a directory, or leave it out.'
      )
  mode = values.mode
  if mode is not None and mode not in MODES:
    raise errors.UsageError(
      f'There is no --mode={mode}. {suggest.hint(mode, MODES)}'
    )
  only_in = {
    'eval_on_test': ('train',),
    'follow': ('eval', 'decode'),
    'allow_random_init': ('decode',),
  }
  for name, modes in only_in.items():
    if values[name].present and mode is not None and mode not in modes:
      raise errors.UsageError(
        f'--{name} means nothing in --mode={mode}, only in '
        f'{" and ".join(modes)}.'
      )
  if mode == 'train' and len(values.restore_checkpoint_step) > 1:
    raise errors.UsageError(
      'Training starts from one step, and --restore_checkpoint_step is given '
      f'{len(values.restore_checkpoint_step)} times.'
    )


def help_text(values: Values, commands: Mapping[str, str]) -> str:
  """All flags and commands, one line each.

  Args:
    values: The flags.
    commands: What each command does, by its name.
  """
  lines = [_USAGE, 'Flags:']
  (defined,) = values.flags_by_module_dict().values()
  for flag in defined:
    name = f'--{flag.name}='
    if flag.boolean:
      name = f'--{flag.name}' if flag.default is False else f'--[no]{flag.name}'
    # absl adds a line of its own to the help of repeatable flags.
    text = flag.help.partition(';\n')[0]
    lines.append(f'  {name:<28}{text}')
  lines += ['', 'Commands:']
  for name, text in commands.items():
    lines.append(f'  {name:<28}{text.partition(":")[0].rstrip(".")}')
  return '\n'.join(lines) + '\n'


def names() -> list[str]:
  """The flags that there are, `--NAME`."""
  return list(define())


def define() -> Values:
  """The flags, not yet parsed; in the order in which help shows them."""
  values = Values()

  # Given twice, none of these may silently lose its first value.
  once = {'flag_values': values, 'allow_overwrite': False}

  def string(name: str, text: str) -> None:
    flags.DEFINE_string(name, None, text, **once)

  def integer(name: str, text: str) -> None:
    flags.DEFINE_integer(name, None, text, lower_bound=0, **once)

  def switch(name: str, default: bool | None, text: str) -> None:
    flags.DEFINE_bool(name, default, text, **once)

  string('exp', 'experiment, by name or by full module path')
  string('mode', 'train, eval or decode')
  string('job_log_dir', 'where everything goes: a path, gs:// or s3://')
  flags.DEFINE_multi_string(
    'set',
    [],
    'PATH=VALUE: change a value of the config, or a knob; repeatable',
    flag_values=values,
  )
  switch('dump_config', False, 'print the resolved config and exit')
  switch(
    'follow',
    None,
    'eval (default), decode: go on with new checkpoints; or one pass',
  )
  string('restore_checkpoint_dir', 'start from the checkpoints in here')
  flags.DEFINE_multi_integer(
    'restore_checkpoint_step',
    [],
    'start from this step; repeatable in eval and decode',
    lower_bound=0,
    flag_values=values,
  )
  switch('eval_on_test', False, 'train: evaluate the test inputs as well')
  switch(
    'allow_random_init',
    False,
    'decode: use fresh parameters if there is no checkpoint',
  )
  string('coordinator_address', 'HOST:PORT of process 0; else detected')
  integer('num_processes', 'how many processes the job has; else detected')
  integer('process_id', 'which one this is, from 0; else detected')
  switch('compilation_cache', True, 'keep compiled programs for the next start')
  string('compilation_cache_dir', 'where; default ~/.cache/paxlike/jax')
  flags.DEFINE_enum(
    'verbosity',
    'info',
    ['debug', 'info', 'warning', 'error'],
    'least serious messages to log',
    **once,
  )
  switch('version', False, 'print the version and exit')
  switch('help', False, 'print this and exit')
  return values


def _as_typed(values: Values) -> list[str]:
  """The names of all flags, those of switches with their opposites."""
  switches = [name for name in values if values[name].boolean]
  return [*values, *(f'no{name}' for name in switches)]


def _one_line(text: str) -> str:
  line = ' '.join(text.split()).removeprefix('FATAL Flags parsing error: ')
  twice = _GIVEN_TWICE.fullmatch(line)
  if twice is None:
    return line
  name, second, first = twice.groups()
  if second in ('true', 'false'):
    first = first.lower()
  return f'--{name} is given twice, as {first} and as {second}. Give it once.'
