"""Looks at checkpoints: ls, show, verify, diff, convert, rm, pin, unpin."""

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from paxlike import checkpoint
from paxlike.core import disks, errors, fs

_EPILOG = """\
PATH is a job_log_dir, its directory of checkpoints, or one step
(checkpoint_00000200); local, gs:// or s3://. No mesh, experiment or device is
needed. Exit status: 0 fine; 1 damaged, different or failed; 2 wrong use.
"""
_UNITS = (
  ('d', 86_400.0),
  ('h', 3_600.0),
  ('min', 60.0),
  ('s', 1.0),
)


def main(arguments: Sequence[str]) -> int:
  """Runs one of the commands.

  Args:
    arguments: The words after `paxlike ckpt`.

  Returns:
    0 if all is well; 1 if `verify` found damage or `diff` a difference.

  Raises:
    PaxlikeError: What was asked for cannot be; `exit_status` tells the kind.
  """
  options = _parser().parse_args(arguments)
  try:
    return options.run(options)
  except OSError as e:
    if isinstance(e, (errors.PaxlikeError, BrokenPipeError)):
      raise
    where = f'{e.filename}: {e.strerror}' if e.filename else str(e)
    remedy = disks.remedy(e)
    kind = (
      errors.CheckpointAccessError
      if isinstance(e, PermissionError)
      else errors.CheckpointError
    )
    raise kind(f'{where}. {remedy}.' if remedy else f'{where}.') from e


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='paxlike ckpt',
    description=__doc__,
    epilog=_EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  commands = parser.add_subparsers(metavar='COMMAND', required=True)

  def command(
    name: str, run: Callable[[argparse.Namespace], int], text: str
  ) -> argparse.ArgumentParser:
    sub = commands.add_parser(
      name,
      help=text,
      description=f'{text[0].upper()}{text[1:]}.',
      epilog=_EPILOG,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.set_defaults(run=run)
    sub.add_argument(
      '--json', action='store_true', help='print one JSON object, for scripts'
    )
    return sub

  sub = command('ls', _ls, 'list the steps: age, size, type, why kept')
  _add_path(sub)
  sub = command('show', _show, 'tell what a step holds: every array')
  _add_path(sub)
  _add_step(sub)
  sub.add_argument(
    '--stats', action='store_true', help='read the arrays; add their numbers'
  )
  _add_process(sub)
  sub = command('verify', _verify, 'check every checksum; status 1 if damaged')
  _add_path(sub)
  _add_step(sub, 'all of them')
  _define_diff(command('diff', _diff, 'compare two steps; status 1 if unequal'))
  _define_convert(
    command('convert', _convert, 'write a step in another format, or read one')
  )
  sub = command('rm', _rm, 'delete steps')
  _add_path(sub)
  _add_steps(sub)
  sub.add_argument(
    '--force',
    action='store_true',
    help='also the newest complete step, and pinned or leased ones',
  )
  sub = command('pin', _pin, 'keep steps whatever the keep policy says')
  _add_path(sub)
  _add_steps(sub)
  sub = command('unpin', _unpin, 'leave steps to the keep policy again')
  _add_path(sub)
  _add_steps(sub)
  return parser


def _add_path(sub: argparse.ArgumentParser) -> None:
  sub.add_argument('path', metavar='PATH', help='steps, or one step')


def _add_step(sub: argparse.ArgumentParser, default: str = 'newest') -> None:
  sub.add_argument(
    '--step', type=int, metavar='N', help=f'which step (default: {default})'
  )


def _add_steps(sub: argparse.ArgumentParser) -> None:
  sub.add_argument(
    'steps', type=int, nargs='*', metavar='STEP', help='which steps of PATH'
  )


def _add_process(sub: argparse.ArgumentParser) -> None:
  sub.add_argument(
    '--process',
    type=int,
    default=0,
    metavar='I',
    help='whose state, in a MULTI_HOST_FLAX step (default: 0)',
  )


def _define_diff(sub: argparse.ArgumentParser) -> None:
  sub.add_argument('path_a', metavar='A', help='steps, or one step')
  sub.add_argument('path_b', metavar='B', help='steps, or one step')
  for name in 'ab':
    sub.add_argument(
      f'--step_{name}',
      type=int,
      metavar='N',
      help=f'which step of {name.upper()} (default: newest)',
    )
  sub.add_argument(
    '--atol',
    type=float,
    default=0.0,
    metavar='X',
    help='absolute difference that counts as equal (default: 0, bit for bit)',
  )
  sub.add_argument(
    '--rtol',
    type=float,
    default=0.0,
    metavar='X',
    help='relative difference that does (default: 0)',
  )


def _define_convert(sub: argparse.ArgumentParser) -> None:
  sub.add_argument('source', metavar='SOURCE', help='what to read')
  sub.add_argument('target', metavar='TARGET', help='what to write; not there')
  formats = 'GDA, FLAX, MULTI_HOST_FLAX, safetensors, msgpack, orbax or zarr3'
  sub.add_argument(
    '--to',
    metavar='FORMAT',
    help=f'{formats}; default by the ending of TARGET, else GDA',
  )
  sub.add_argument(
    '--from',
    dest='source_format',
    metavar='FORMAT',
    help='format of SOURCE; default by what is there',
  )
  sub.add_argument(
    '--step',
    type=int,
    metavar='N',
    help='which step to read; if SOURCE has no steps, the one to write',
  )
  sub.add_argument(
    '--only', metavar='REGEX', help='only leaves whose whole name matches'
  )
  sub.add_argument(
    '--dtype', help='cast every floating array, such as float32 or bfloat16'
  )
  _add_process(sub)


# --- commands


def _ls(options: argparse.Namespace) -> int:
  listing = checkpoint.tools.list_steps(options.path)
  if options.json:
    _print_json(listing)
    return errors.EXIT_DONE
  print(listing.directory)
  if not listing.steps:
    print('no steps yet')
  rows = [
    ('STEP', 'STATE', 'AGE', 'SIZE', 'TYPE', 'SAVED (UTC)', 'KEPT AS'),
    *(_row(each) for each in listing.steps),
  ]
  if listing.steps:
    _print_table(rows, right=(0, 2, 3))
  for each in listing.steps:
    if each.problem:
      print(f'damaged: {each.problem}')
  for warning in listing.warnings:
    print(f'warning: {warning}')
  return errors.EXIT_DONE


def _row(each: Any) -> tuple[str, ...]:
  return (
    str(each.step),
    each.state,
    '?' if each.age_s is None else _duration(each.age_s),
    _size(each.size_bytes),
    each.type or '-',
    '-' if each.timestamp_s is None else _utc(each.timestamp_s),
    ', '.join(each.keep),
  )


def _show(options: argparse.Namespace) -> int:
  contents = checkpoint.tools.show(
    options.path,
    step=options.step,
    stats=options.stats,
    process=options.process,
  )
  if options.json:
    _print_json(contents)
    return errors.EXIT_DONE
  print(
    f'{contents.path}: step {contents.step}, {contents.type}, saved '
    f'{_utc(contents.timestamp_s)} UTC by {contents.process_count} '
    'process(es)'
  )
  head = ('ARRAY', 'DTYPE', 'SHAPE', 'BYTES', 'SHARDING', 'BOXES')
  numbers = ('NORM', 'MEAN', 'MIN', 'MAX', 'NOT FINITE')
  rows = [head + numbers * options.stats]
  for array in contents.arrays:
    row = (
      array.name or '(the state itself)',
      array.dtype,
      str(list(array.shape)),
      f'{array.num_bytes:,}',
      array.sharding or '-',
      str(array.num_boxes),
    )
    rows.append(row + _numbers(array.stats) * options.stats)
  _print_table(rows, right=(3, 5, 6, 7, 8, 9, 10))
  total = sum(array.num_bytes for array in contents.arrays)
  print(f'{len(contents.arrays)} arrays, {_size(total)}')
  _print_mapping('other leaves', contents.others)
  _print_mapping('items (bytes)', contents.items)
  _print_mapping('metrics', contents.metrics)
  _print_mapping('written by', contents.versions)
  return errors.EXIT_DONE


def _numbers(stats: Any) -> tuple[str, ...]:
  if stats is None:
    return ('-',) * 5
  values = (stats.norm, stats.mean, stats.min, stats.max)
  return (
    *('-' if value is None else f'{value:.6g}' for value in values),
    str(stats.num_non_finite),
  )


def _verify(options: argparse.Namespace) -> int:
  started_s = time.monotonic()
  found = checkpoint.tools.verify(options.path, step=options.step)
  status = errors.EXIT_FAILED if found.damage else errors.EXIT_DONE
  if options.json:
    _print_json(found)
    return status
  for damage in found.damage:
    print(f'{"UNREADABLE" if damage.is_unreadable else "DAMAGED"} {damage}')
  for name in found.incomplete:
    print(f'incomplete {name}: being written, or left by a crash')
  print(
    f'{len(found.steps)} step(s) of {found.directory}, '
    f'{_size(found.bytes_checked)} in {time.monotonic() - started_s:.1f} s: '
    + (_count(found.damage) or 'all well')
  )
  return status


def _count(damage: Sequence[checkpoint.tools.Damage]) -> str:
  unreadable = sum(each.is_unreadable for each in damage)
  counts = {
    'damaged place(s)': len(damage) - unreadable,
    'unreadable file(s)': unreadable,
  }
  return ', '.join(f'{n} {what}' for what, n in counts.items() if n)


def _diff(options: argparse.Namespace) -> int:
  found = checkpoint.tools.diff(
    options.path_a,
    options.path_b,
    step_a=options.step_a,
    step_b=options.step_b,
    atol=options.atol,
    rtol=options.rtol,
  )
  status = errors.EXIT_DONE if found.is_equal else errors.EXIT_FAILED
  if options.json:
    _print_json(found, is_equal=found.is_equal)
    return status
  print(f'A {found.path_a}\nB {found.path_b}')
  for side, leaves in (('A', found.only_a), ('B', found.only_b)):
    for name, text in leaves:
      print(f'only in {side}: {name} ({text})')
  for name, a, b in found.changed:
    print(f'changed: {name}: {a} -> {b}')
  for name in found.items:
    print(f'item differs: {name}')
  rows = [('ARRAY', 'DIFFERENT', 'OF', 'MAX ABS', 'MAX RELATIVE', '')]
  for array in sorted(found.arrays, key=lambda a: -a.max_abs):
    process = f' (process {array.process})' if array.process else ''
    rows.append(
      (
        array.name + process,
        str(array.num_different),
        str(array.num_elements),
        f'{array.max_abs:.6g}',
        f'{array.max_relative:.6g}',
        'within tolerance' if array.is_close else '',
      )
    )
  if found.arrays:
    _print_table(rows, right=(1, 2, 3, 4))
  print(f'{found.num_equal} leaves are equal, bit for bit')
  return status


def _convert(options: argparse.Namespace) -> int:
  done = checkpoint.tools.convert(
    options.source,
    options.target,
    to=options.to,
    source_format=options.source_format,
    step=options.step,
    only=options.only,
    dtype=options.dtype,
    process=options.process,
  )
  if options.json:
    _print_json(done)
    return errors.EXIT_DONE
  print(
    f'{done.source} ({done.source_format}) -> {done.target} '
    f'({done.target_format}): {done.num_arrays} arrays, '
    f'{_size(done.num_bytes)}'
  )
  for note in done.notes:
    print(f'note: {note}')
  if done.target_format in list(checkpoint.CheckpointType):
    where = fs.parent_dir(done.target)
    print(f'To train from it: --restore_checkpoint_dir={where}')
  return errors.EXIT_DONE


def _rm(options: argparse.Namespace) -> int:
  steps = checkpoint.tools.remove(
    options.path, options.steps, force=options.force
  )
  return _told(options, 'removed', steps)


def _pin(options: argparse.Namespace) -> int:
  return _told(
    options, 'pinned', checkpoint.tools.pin(options.path, options.steps)
  )


def _unpin(options: argparse.Namespace) -> int:
  return _told(
    options, 'unpinned', checkpoint.tools.unpin(options.path, options.steps)
  )


def _told(options: argparse.Namespace, what: str, steps: list[int]) -> int:
  if options.json:
    print(json.dumps({what: steps}))
  else:
    print(f'{what} {", ".join(f"step {step}" for step in steps)}')
  return errors.EXIT_DONE


# --- printing


def _print_json(found: Any, **more: Any) -> None:
  value = {**dataclasses.asdict(found), **more}
  json.dump(_jsonable(value), sys.stdout, allow_nan=False)
  print()


def _jsonable(value: Any) -> Any:
  """JSON has no NaN, infinity, bytes or complex numbers: they become text."""
  if isinstance(value, Mapping):
    return {str(key): _jsonable(each) for key, each in value.items()}
  if isinstance(value, (list, tuple)):
    return [_jsonable(each) for each in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  if isinstance(value, (str, int, float, bool)) or value is None:
    return value
  return repr(value)


def _print_table(
  rows: Sequence[tuple[str, ...]], *, right: Iterable[int]
) -> None:
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  to_right = set(right)
  for row in rows:
    cells = (
      cell.rjust(width) if i in to_right else cell.ljust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    print('  '.join(cells).rstrip())


def _print_mapping(title: str, values: Mapping[str, Any]) -> None:
  if values:
    print(f'{title}: ' + ', '.join(f'{k} {v!r}' for k, v in values.items()))


def _size(num_bytes: int) -> str:
  value = float(num_bytes)
  for unit in ('B', 'KiB', 'MiB', 'GiB'):
    if value < 1024:
      return f'{value:.0f} {unit}' if unit == 'B' else f'{value:.1f} {unit}'
    value /= 1024
  return f'{value:.1f} TiB'


def _duration(seconds: float) -> str:
  """The two largest units: '3 d 4 h'; a clock that went back gives '-'."""
  sign = '-' if seconds < 0 else ''
  left = abs(seconds)
  parts = []
  for unit, length_s in _UNITS:
    count = int(left // length_s)
    left -= count * length_s
    if count or (unit == 's' and not parts):
      parts.append(f'{count} {unit}')
    if len(parts) == 2 or (parts and not count):
      break
  return sign + ' '.join(parts)


def _utc(timestamp_s: float) -> str:
  return time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(timestamp_s))
