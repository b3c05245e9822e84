"""Every name that a checkpoint has on disk, told once.

    checkpoints/checkpoints.pb                      the history
    checkpoints/checkpoint_00000200/                one committed step
    checkpoints/tmp_<seconds>.checkpoint_00000300/  one being written
    checkpoints/todelete_<seconds>.checkpoint_...   one being deleted
    checkpoints/damaged_<seconds>.checkpoint_...    one that was passed over
    checkpoints/checkpoint_.../damaged_<seconds>.MANIFEST  that, without rename
    checkpoints/follower_<name>                     what a follower waits for
    checkpoints/writer_<machine>_<process>          who writes there

Only names of exactly these forms are ours; all others are left alone.
"""

import re

from paxlike.core import errors, fs

HISTORY = 'checkpoints.pb'
MANIFEST = 'MANIFEST'
PIN = 'PINNED'
LEASE_PREFIX = 'lease_'
FOLLOWER_PREFIX = 'follower_'
WRITER_PREFIX = 'writer_'
_DAMAGED_PREFIX = 'damaged_'
_STEP = re.compile(r'checkpoint_([0-9]+)', re.ASCII)
_TEMPORARY = re.compile(r'tmp_[0-9]+\.checkpoint_([0-9]+)', re.ASCII)
_DELETING = re.compile(
  r'todelete_[0-9]+(?:\.[0-9]+)?\.checkpoint_([0-9]+)', re.ASCII
)
_ITEM = re.compile(r'[A-Za-z][A-Za-z0-9_.\-]{0,99}', re.ASCII)
_STATE_FILE = re.compile(
  r'(?:p[0-9]{5,}|state)(-[0-9a-f]{8})(?:\.[0-9]{4,})?\.(?:data|index|msgpack)',
  re.ASCII,
)
_PROCESS_FILE = re.compile(r'p[0-9]{5,}.*\.(data|index|msgpack)', re.ASCII)


def step_name(step: int) -> str:
  """The directory of a committed step."""
  return f'checkpoint_{step:08d}'


def temporary_name(step: int, *, now_s: float) -> str:
  """The directory of a step that is being written."""
  return f'tmp_{int(now_s)}.{step_name(step)}'


def deleting_name(name: str, *, now_s: float, count: int) -> str:
  """The directory of a step that is being deleted."""
  return f'todelete_{int(now_s)}.{count}.{name}'


def damaged_name(name: str, *, now_s: float) -> str:
  """What a damaged step is called once it is passed over; left alone then.

  Args:
    name: Of its directory; where there is no rename, MANIFEST.
    now_s: The time.
  """
  return f'{_DAMAGED_PREFIX}{int(now_s)}.{name}'


def is_damaged_manifest(name: str) -> bool:
  """Whether it marks the directory it is in as one with a damaged step."""
  return name.startswith(_DAMAGED_PREFIX) and name.endswith(f'.{MANIFEST}')


def parse_step(name: str) -> int | None:
  """The step of a directory name, or None if it is not one of ours."""
  match = _STEP.fullmatch(name)
  return int(match.group(1)) if match else None


def is_temporary(name: str) -> bool:
  """Whether it is the directory of a step that is being written."""
  return bool(_TEMPORARY.fullmatch(name))


def is_deleting(name: str) -> bool:
  """Whether it is the directory of a step that is being deleted."""
  return bool(_DELETING.fullmatch(name))


def is_mark(name: str) -> bool:
  """Whether a file of a step tells of the step and is no part of its state."""
  return name in (MANIFEST, PIN) or name.startswith(LEASE_PREFIX)


def attempt_tag(attempt: bytes) -> str:
  """What the names of files written in place have of their attempt's id."""
  return f'-{attempt.hex()[:8]}'


def tag_of_state_file(name: str) -> str:
  """The tag in the name of a file that holds state; '' if there is none."""
  match = _STATE_FILE.fullmatch(name)
  return match.group(1) if match else ''


def index_name(process: int, *, tag: str = '') -> str:
  """The index of what one process wrote."""
  return f'p{process:05d}{tag}.index'


def data_name(process: int, part: int, *, tag: str = '') -> str:
  """One data file of one process; the first has no number."""
  number = f'.{part:04d}' if part else ''
  return f'p{process:05d}{tag}{number}.data'


def msgpack_name(process: int | None, *, tag: str = '') -> str:
  """The flax file of one process, or of the whole job for None."""
  return (
    f'state{tag}.msgpack'
    if process is None
    else f'{process:03d}/state{tag}.msgpack'
  )


def check_item_name(name: str) -> None:
  """Refuses names of items that are not, or could clash with, file names."""
  reserved = (
    name in (MANIFEST, PIN)
    or name.startswith((LEASE_PREFIX, 'state'))
    or _PROCESS_FILE.fullmatch(name)
  )
  if reserved or not _ITEM.fullmatch(name):
    raise errors.ConfigError(
      f'{name!r} cannot name an item of a checkpoint: use letters, digits, '
      "'_', '-' and '.', beginning with a letter, and none of the checkpoint's "
      'own file names.'
    )


def explain_bad_directory(file_system: fs.FileSystem, path: str) -> str | None:
  """What is wrong with a directory given as one that holds steps.

  Args:
    file_system: Where to look.
    path: What was given as the directory of all steps.

  Returns:
    A sentence with the next thing to type, or None if nothing is wrong.
  """
  if parse_step(fs.base_name(path)) is not None and file_system.exists(
    fs.join(path, MANIFEST)
  ):
    return (
      f'{path} is one step, not the directory of all steps: give '
      f'{fs.parent_dir(path)} and step={parse_step(fs.base_name(path))}.'
    )
  if not file_system.is_dir(path):
    parent = fs.parent_dir(path)
    hint = '' if file_system.is_dir(parent) else f', nor is there {parent}'
    return f'There is no directory {path}{hint}.'
  return None
