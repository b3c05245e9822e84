"""Decode outputs of many processes: each key once, however often killed.

While decoding, each process commits its part of a few batches at a time,
atomically, under decoder_out_<step>.partial/. Batches that all processes
committed are never decoded again, at any later number of processes; the rest
are forgotten. At the end the parts become one shard a process, in the order
of the input, and the partial directory goes.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from absl import logging

from paxlike import sync
from paxlike.core import errors, fs
from paxlike.reporting import _jsonable, _pairs

_PART = re.compile(r'^batches_(\d+)-(\d+)_part_(\d+)-of-(\d+)\.jsonl$')
_PARTIAL = re.compile(r'^decoder_out_(\d+)\.partial$')
_ABOUT = 'about.json'


def is_unfinished(job_log_dir: str, input_name: str, step: int) -> bool:
  """Whether a decode of that input at that step was begun but not finished."""
  path = fs.join(job_log_dir, 'decoder_out', input_name, _partial_name(step))
  return fs.for_path(path).exists(path)


def unfinished_steps(job_log_dir: str, input_name: str) -> list[int]:
  """The steps of which a decode of that input was begun but not finished."""
  path = fs.join(job_log_dir, 'decoder_out', input_name)
  try:
    names = fs.for_path(path).list_dir(path)
  except FileNotFoundError:
    return []
  matches = map(_PARTIAL.match, names)
  return sorted(int(match.group(1)) for match in matches if match)


def drop_unfinished(job_log_dir: str, input_name: str, step: int) -> None:
  """Removes what a decode that was not finished has left; for one process."""
  path = fs.join(job_log_dir, 'decoder_out', input_name, _partial_name(step))
  fs.for_path(path).remove_tree(path)


def _partial_name(step: int) -> str:
  return f'decoder_out_{step}.partial'


@dataclasses.dataclass(frozen=True)
class _Batch:
  """What one process wrote of a batch; a line of a part."""

  position: int
  pairs: list[_pairs.Pair]
  note: Any

  @classmethod
  def parse(cls, line: bytes) -> '_Batch':
    """Reads a line of a part."""
    fields = json.loads(line)
    pairs = [(key, value) for key, value in fields['pairs']]
    return cls(fields['position'], pairs, fields['note'])


class KeyValueWriter:
  """Writes the outputs of one input at one step.

  Every process makes one and calls it alike:

      writer = reporting.KeyValueWriter(job_log_dir, 'kjv', step=200, ...)
      for position in writer.pending():
        writer.write(position, pairs)  # this process's rows, maybe none
      path = writer.finish()

  Attributes:
    directory: decoder_out/<input name>/ of the job.
  """

  def __init__(
    self,
    job_log_dir: str,
    input_name: str,
    *,
    step: int,
    num_batches: int,
    file_format: str = 'jsonl',
    fingerprint: str = '',
    batches_per_commit: int = 8,
    world: sync.World | None = None,
  ):
    """Finds out what is done already; waits for process 0.

    Args:
      job_log_dir: The job's directory.
      input_name: Names the directory of the outputs.
      step: Of the checkpoint that is decoded with.
      num_batches: Batches of the input.
      file_format: 'jsonl', 'tfrecord', 'array_record' or 'parquet'.
      fingerprint: Of input, checkpoint and settings: a partial decode with
        another one is not gone on from but thrown away.
      batches_per_commit: Batches that a killed process may lose.
      world: The processes of the job; the current ones by default.
    """
    _pairs.check_format(file_format)
    if batches_per_commit < 1:
      raise errors.ConfigError(
        f'batches_per_commit is {batches_per_commit}, must be >= 1.'
      )
    world = sync.world() if world is None else world
    self._world = world.scoped(f'decoder_out/{input_name}/{step}')
    self.directory = fs.join(job_log_dir, 'decoder_out', input_name)
    self._fs = fs.for_path(self.directory)
    self._stem = f'decoder_out_{step}'
    self._partial = fs.join(self.directory, _partial_name(step))
    self._num_batches = num_batches
    self._format = file_format
    self._batches_per_commit = batches_per_commit
    self._keys: set[str] = set()
    self._group: list[tuple[int, str]] = []
    self._notes: list[Any] = []
    about = {'fingerprint': fingerprint, 'num_batches': num_batches}
    is_first = self._world.process_index == 0
    done = _jsonable.dumps(self._begin(about)) if is_first else ''
    # Process 0 alone looks: two looking at different times would differ.
    done = self._world.broadcast('done', done.encode() if is_first else None)
    self._done = frozenset(json.loads(done))

  def pending(self) -> list[int]:
    """Positions of the batches to decode, the same on every process."""
    return [p for p in range(self._num_batches) if p not in self._done]

  def write(
    self,
    position: int,
    pairs: Iterable[tuple[str, Any]],
    *,
    note: Any = None,
  ) -> None:
    """Takes this process's pairs of a batch.

    Args:
      position: The batch; positions grow.
      pairs: Keys are text and unique; values may hold arrays.
      note: Anything JSON can say that must survive a kill with the pairs,
        such as sums and weights of metrics; see `notes`.

    Raises:
      ReportingError: A key is no text or was written before, or a value has
        no form in JSON.
    """
    pairs = [(_pairs.check_key(key), value) for key, value in pairs]
    for key, _ in pairs:
      self._check_new(key, self._keys)
    try:
      line = _jsonable.dumps(_Batch(position, pairs, note))
    except TypeError as error:
      raise errors.ReportingError(
        f'Batch {position} of {self.directory}: {error}'
      ) from error
    if self._group and position != self._group[-1][0] + 1:
      self._commit()
    self._group.append((position, line))
    if len(self._group) == self._batches_per_commit:
      self._commit()

  def finish(self, *, report: Callable[[list[Any]], None] | None = None) -> str:
    """Makes the shards out of all parts; waits for every process.

    Args:
      report: Called on every process with the `notes` of its shard once that
        is written, before the decode counts as finished: what it writes is
        there if the decode is, and it is called again if it was killed.

    Returns:
      Path of this process's shard.

    Raises:
      ReportingError: A batch is missing, or a key came twice.
    """
    self._commit()
    self._world.barrier('committed')
    path = self._write_shard()
    if report is not None:
      report(self.notes())
    self._world.barrier('sharded')
    if self._world.process_index == 0:
      self._clean_up()
    self._world.barrier('finished')
    return path

  def notes(self) -> list[Any]:
    """After `finish`: the notes of the batches whose pairs this shard has.

    Over the shards of all processes that is every note once, those written
    before a kill included.
    """
    return list(self._notes)

  def _begin(self, about: dict[str, Any]) -> list[int]:
    """Forgets what is of no use; returns the batches that are done."""
    about_path = fs.join(self._partial, _ABOUT)
    if self._fs.exists(about_path):
      before = json.loads(self._fs.read_bytes(about_path))
      if before == about:
        return self._recover()
      logging.warning(
        'Throwing away %s: it was decoded from %s, now it is %s.',
        self._partial,
        before,
        about,
      )
    self._fs.remove_tree(self._partial)
    self._fs.make_dirs(self._partial)
    self._fs.write_atomic(about_path, _jsonable.dumps(about).encode())
    return []

  def _recover(self) -> list[int]:
    groups = self._groups()
    done = []
    for (first, last, count), parts in groups.items():
      if len(parts) == count:
        done += range(first, last + 1)
      else:
        # Its batches are decoded again, so what is there must not count.
        for name in parts.values():
          self._fs.remove(fs.join(self._partial, name))
    logging.info(
      'Decoding goes on: %d of %d batches are done.',
      len(done),
      self._num_batches,
    )
    return sorted(done)

  def _groups(self) -> dict[tuple[int, int, int], dict[int, str]]:
    """(first batch, last batch, parts) to the file of each part present."""
    groups: dict[tuple[int, int, int], dict[int, str]] = {}
    for name in self._fs.list_dir(self._partial):
      match = _PART.match(name)
      if match:
        first, last, part, count = map(int, match.groups())
        groups.setdefault((first, last, count), {})[part] = name
    return groups

  def _commit(self) -> None:
    if not self._group:
      return
    first, last = self._group[0][0], self._group[-1][0]
    name = (
      f'batches_{first:08d}-{last:08d}_part_{self._world.process_index}-of-'
      f'{self._world.process_count}.jsonl'
    )
    content = ''.join(f'{line}\n' for _, line in self._group).encode()
    self._fs.write_atomic(fs.join(self._partial, name), content)
    self._group = []

  def _write_shard(self) -> str:
    index, count = self._world.process_index, self._world.process_count
    mine = range(
      index * self._num_batches // count,
      (index + 1) * self._num_batches // count,
    )
    self._check_complete()
    batches = list(self._read_batches(mine))
    self._notes = [batch.note for batch in batches if batch.note is not None]
    pairs = [pair for batch in batches for pair in batch.pairs]
    keys: set[str] = set()
    for key, _ in pairs:
      self._check_new(key, keys)
    path = fs.join(self.directory, self._shard_name(index))
    self._fs.write_atomic(path, _pairs.encode(pairs, self._format))
    return path

  def _check_complete(self) -> None:
    missing = set(range(self._num_batches))
    for (first, last, count), parts in self._groups().items():
      if len(parts) == count:
        missing -= set(range(first, last + 1))
    if missing:
      raise errors.ReportingError(
        f'{self._partial} lacks batch {min(missing)} and {len(missing) - 1} '
        'others: every process must write every pending batch, if only with '
        'no pairs.'
      )

  def _read_batches(self, positions: range) -> Iterator['_Batch']:
    """All parts of some batches, in the order of the input."""
    for (first, last, _), parts in sorted(self._groups().items()):
      if last < positions.start or first >= positions.stop:
        continue
      found = []
      for part, name in sorted(parts.items()):
        content = self._fs.read_bytes(fs.join(self._partial, name))
        batches = map(_Batch.parse, content.splitlines())
        found += [(batch.position, part, batch) for batch in batches]
      for position, _, batch in sorted(found, key=lambda item: item[:2]):
        if position in positions:
          yield batch

  def _clean_up(self) -> None:
    """Drops shards of an earlier decode of this step, and the parts."""
    shards = [
      self._shard_name(index) for index in range(self._world.process_count)
    ]
    if len(shards) > 1:
      self._check_unique(shards)
    for name in self._fs.list_dir(self.directory):
      if name.startswith(f'{self._stem}_shard_') and name not in shards:
        self._fs.remove(fs.join(self.directory, name))
    self._fs.remove_tree(self._partial)

  def _check_unique(self, shards: Sequence[str]) -> None:
    keys: set[str] = set()
    for name in shards:
      path = fs.join(self.directory, name)
      for key, _ in _pairs.decode(self._fs.read_bytes(path), path):
        self._check_new(key, keys)

  def _check_new(self, key: str, keys: set[str]) -> None:
    if key in keys:
      raise errors.ReportingError(
        f'Key {key!r} came twice for {self.directory}. Keys of an input must '
        'be unique, and process_decode_out must give one pair a key.'
      )
    keys.add(key)

  def _shard_name(self, index: int) -> str:
    count = self._world.process_count
    return f'{self._stem}_shard_{index}-of-{count}.{self._format}'
