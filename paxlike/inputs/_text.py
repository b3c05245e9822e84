"""Text as bytes: a vocabulary of 256, with no tokenizer to be wrong.

Promises: token i is byte i; every byte of the chosen documents is predicted
exactly once an epoch in the layout 'chunks'; each first token is predicted
from a newline. Padding is weight 0, never an id.
"""

import dataclasses
import fnmatch
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from awscrt import checksums

from paxlike.core import errors, typing
from paxlike.inputs import _base, _files

VOCAB_SIZE = 256
_NEWLINE = b'\n'


@dataclasses.dataclass(frozen=True)
class _Corpus:
  """The chosen documents, each with a newline in front and one at the end.

  Attributes:
    content: Newline, document, newline, document, ... newline.
    starts: Where in `content` each document's leading newline is.
    lengths: Bytes of each document with its closing newline.
    keys: Key of each document.
  """

  content: np.ndarray
  starts: np.ndarray
  lengths: np.ndarray
  keys: Sequence[str]

  @functools.cached_property
  def checksum(self) -> str:
    """Tells two corpora apart."""
    crc = checksums.crc32c(self.content.tobytes())
    return f'crc32c {checksums.crc32c(self.starts.tobytes(), crc):08x}'


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TextInput(_base.IndexedInput):
  """Byte-level language modelling over plain files or JSON lines.

  A document is a line of a JSON-lines file (`text_field` set) or a whole file.
  The corpus is held in memory.

  Attributes:
    files: Paths or patterns; also `package:name/path` and `stdlib:pattern`.
    seq_len: Tokens of an example.
    layout: 'chunks': the documents stand one after the other, cut every
      `seq_len` bytes. 'lines': one document an example, what is beyond
      `seq_len` bytes of it is left out.
    text_field: Field that holds the text of a JSON line; None: plain files.
    key_field: Field that is a document's key in decode outputs, unique. None:
      its number, or its file name where a file is a document.
    only: Field name to patterns (`*` is a wildcard): documents that match all
      of these fields stay. A plain file has the one field 'path'.
    without: Field name to patterns: documents that match one of these fields
      are left out, after `only`; the other half of a split.
  """

  files: str | Sequence[str]
  seq_len: int
  layout: str = 'chunks'
  text_field: str | None = None
  key_field: str | None = None
  only: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
  without: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    super().__post_init__()
    self._check_at_least_1('seq_len')
    if self.layout not in ('chunks', 'lines'):
      raise errors.ConfigError(
        f'{type(self).__name__}.layout of input {self.name} is '
        f"{self.layout!r}, must be 'chunks' or 'lines'."
      )
    if not self.files:
      raise errors.ConfigError(f'Input {self.name} names no files.')

  @property
  def num_examples(self) -> int:
    """Chunks or documents, after the split."""
    if self.layout == 'lines':
      return len(self._data.starts)
    return -(-self.num_bytes // self.seq_len)

  @property
  def num_bytes(self) -> int:
    """Bytes of the chosen documents, each with its closing newline."""
    return len(self._data.content) - 1

  @property
  def corpus(self) -> bytes:
    """The chosen documents, each with its closing newline."""
    return self._data.content[1:].tobytes()

  def key(self, example_id: int) -> str:
    """The document's key in the layout 'lines', else the chunk's number."""
    if self.layout == 'lines':
      return self._data.keys[example_id]
    return str(example_id)

  @staticmethod
  def to_text(ids: Sequence[int] | np.ndarray) -> str:
    """Text of some tokens; bytes that are no UTF-8 become U+FFFD."""
    return bytes(np.asarray(ids, np.uint8)).decode('utf-8', errors='replace')

  def _open(self) -> _Corpus:
    pieces, keys = [_NEWLINE], []
    for key, text in self._documents():
      pieces += [text, _NEWLINE]
      keys.append(key)
    if len(set(keys)) != len(keys):
      twice = next(key for key in keys if keys.count(key) > 1)
      raise errors.InputError(
        f'Two documents of input {self.name} have the key {twice!r}. Choose '
        'another key_field.'
      )
    lengths = np.array([len(text) + 1 for text in pieces[1::2]], np.int64)
    return _Corpus(
      content=np.frombuffer(b''.join(pieces), np.uint8),
      starts=np.cumsum(lengths) - lengths,
      lengths=lengths,
      keys=keys,
    )

  def _documents(self) -> Iterator[tuple[str, bytes]]:
    """Keys and texts of the chosen documents that are not empty."""
    patterns = [self.files] if isinstance(self.files, str) else self.files
    number = 0
    for path, content in _files.read_all(patterns):
      for fields in self._parse(path, content):
        if self._is_chosen(fields):
          field = self.key_field
          key = str(number) if field is None else self._field(fields, field)
          if field is None and self.text_field is None:
            key = path
          number += 1
          yield key, fields['']
      del content

  def _parse(self, path: str, content: bytes) -> Iterator[dict[str, Any]]:
    """The documents of a file: their fields, the text under ''."""
    if self.text_field is None:
      if content:
        yield {'path': path, '': content.removesuffix(_NEWLINE)}
      return
    for number, line in enumerate(content.splitlines(), start=1):
      if not line.strip():
        continue
      try:
        fields = json.loads(line)
        text = fields[self.text_field].encode()
      except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.InputError(
          f'Line {number} of {path} is no JSON object with a text in field '
          f'{self.text_field!r}: {line[:80]!r}'
        ) from error
      if text:
        yield {**fields, 'path': path, '': text}

  def _is_chosen(self, fields: Mapping[str, Any]) -> bool:
    return all(
      self._matches(fields, name, patterns)
      for name, patterns in self.only.items()
    ) and not any(
      self._matches(fields, name, patterns)
      for name, patterns in self.without.items()
    )

  def _matches(
    self, fields: Mapping[str, Any], name: str, patterns: Sequence[str]
  ) -> bool:
    value = self._field(fields, name)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)

  def _field(self, fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
      raise errors.InputError(
        f'A document of input {self.name} has no field {name!r}, it has '
        f'{sorted(filter(None, fields))}.'
      )
    return str(fields[name])

  def _facts(self) -> Mapping[str, Any]:
    return {
      'num_bytes': self.num_bytes,
      'content': self._data.checksum,
      'seq_len': self.seq_len,
      'layout': self.layout,
    }

  def _field_specs(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    return _base.token_specs(self.seq_len)

  def _gather(self, ids: np.ndarray, visits: np.ndarray) -> typing.HostBatch:
    del visits
    starts, lengths = self._spans(ids)
    times = np.arange(self.seq_len)
    counted = times < lengths[:, None]
    places = np.where(counted, starts[:, None] + times, 0)
    content = self._data.content
    # `content` begins with a newline, so each target's predecessor is there.
    return {
      'ids': np.where(counted, content[places], 0).astype(np.int32),
      'targets': np.where(counted, content[places + 1], 0).astype(np.int32),
      'weights': counted.astype(np.float32),
    }

  def _spans(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each example starts, and how many bytes of it there are."""
    if self.layout == 'lines':
      lengths = np.minimum(self._data.lengths[ids], self.seq_len)
      return self._data.starts[ids], lengths
    starts = ids * self.seq_len
    return starts, np.minimum(self.num_bytes - starts, self.seq_len)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TextPromptInput(TextInput):
  """Documents to be completed: the first half is the prompt.

  Beside `prompt_ids` and `prompt_lengths` a batch has the whole document as
  `ids` and `targets`, with weight 1 on the second half, for scoring what was
  decoded. The prompt has its leading newline; the second half ends with one,
  which is the id to stop at.
  """

  layout: str = 'lines'

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.layout != 'lines':
      raise errors.ConfigError(
        f"TextPromptInput.layout of input {self.name} must be 'lines'."
      )

  @property
  def max_prompt_len(self) -> int:
    """Longest prompt, its leading newline included."""
    return 1 + (self.seq_len - 1) // 2

  def _field_specs(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    return {
      **super()._field_specs(),
      'prompt_ids': ((self.max_prompt_len,), np.int32),
      'prompt_lengths': ((), np.int32),
    }

  def _gather(self, ids: np.ndarray, visits: np.ndarray) -> typing.HostBatch:
    batch = super()._gather(ids, visits)
    _, lengths = self._spans(ids)
    prompt_lengths = 1 + (lengths - 1) // 2
    times = np.arange(self.seq_len)
    in_prompt = times < prompt_lengths[:, None]
    prompts = np.where(in_prompt, batch['ids'], 0)
    # The target at time t is the token at t + 1: the prompt's last token
    # predicts the first one to be decoded.
    batch['weights'] *= times >= prompt_lengths[:, None] - 1
    return {
      **batch,
      'prompt_ids': prompts[:, : self.max_prompt_len],
      'prompt_lengths': prompt_lengths.astype(np.int32),
    }
