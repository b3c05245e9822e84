import json

import numpy as np
import pytest

from paxlike import inputs
from paxlike.core import errors
from tests.contracts import input_contract

VERSES = [
  {'book': 'Ruth', 'id': 'R1', 'text': 'Now it came to pass'},
  {'book': 'Jonah', 'id': 'J1', 'text': 'Arise, go'},
  {'book': 'Ruth', 'id': 'R2', 'text': 'And the name'},
  {'book': '1 John', 'id': '1J', 'text': 'Håb — hope'},
]


@pytest.fixture(scope='module')
def verses(tmp_path_factory) -> str:
  path = tmp_path_factory.mktemp('text') / 'verses.jsonl'
  lines = [json.dumps(v, ensure_ascii=False) for v in VERSES]
  path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
  return str(path)


def make(files, kind=inputs.TextInput, **knobs):
  return kind(
    **{
      'name': 'text',
      'batch_size': 3,
      'files': files,
      'seq_len': 7,
      'text_field': 'text',
      **knobs,
    }
  )


def read_all(source: inputs.Input) -> dict[str, np.ndarray]:
  with inputs.Stream(source) as stream:
    batches = list(stream)
  return {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}


class TestChunks(input_contract.InputContract):
  @pytest.fixture(autouse=True)
  def _files(self, verses):
    self.files = verses

  def make(self, **knobs):
    return make(self.files, **knobs)


class TestLines(TestChunks):
  def make(self, **knobs):
    return make(self.files, layout='lines', key_field='id', **knobs)


class TestPrompts(TestChunks):
  def make(self, **knobs):
    return make(
      self.files, inputs.TextPromptInput, key_field='id', seq_len=20, **knobs
    )


@pytest.mark.parametrize('seq_len', [1, 2, 7, 16, 200])
def test_chunks_predict_every_byte_exactly_once(verses, seq_len):
  source = make(verses, seq_len=seq_len)
  batch = read_all(source)
  counted = batch['weights'] == 1
  text = '\n'.join(v['text'] for v in VERSES) + '\n'
  assert bytes(batch['targets'][counted].astype(np.uint8)) == text.encode()
  assert source.corpus == text.encode()
  assert source.num_bytes == len(text.encode())
  before = b'\n' + text.encode()[:-1]
  assert bytes(batch['ids'][counted].astype(np.uint8)) == before


def test_lines_are_one_document_each(verses):
  source = make(verses, layout='lines', key_field='id', seq_len=15)
  batch = read_all(source)
  texts = [
    source.to_text(targets[weights == 1])
    for targets, weights in zip(batch['targets'], batch['weights'], strict=True)
  ]
  assert texts[:4] == [
    'Now it came to ',
    'Arise, go\n',
    'And the name\n',
    'Håb — hope\n',
  ]
  assert [source.key(i) for i in range(4)] == ['R1', 'J1', 'R2', '1J']
  assert (batch['ids'][:4, 0] == ord('\n')).all()


def test_only_and_without_split_the_documents(verses):
  books = ('Ru*', 'Jonah')
  test = make(verses, only={'book': books}, layout='lines', key_field='id')
  train = make(verses, without={'book': books}, layout='lines', key_field='id')
  assert [test.key(i) for i in range(test.num_examples)] == ['R1', 'J1', 'R2']
  assert [train.key(i) for i in range(train.num_examples)] == ['1J']
  assert test.fingerprint != train.fingerprint


def test_a_prompt_is_the_first_half_and_scoring_counts_the_second(verses):
  source = make(
    verses,
    inputs.TextPromptInput,
    key_field='id',
    seq_len=20,
    batch_size=4,
    only={'book': ['Ruth', 'Jonah']},
  )
  batch = source.read(0, range(4))
  for row, verse in enumerate([VERSES[0], VERSES[1], VERSES[2]]):
    text = verse['text']
    half = len(text) // 2
    length = batch['prompt_lengths'][row]
    prompt = source.to_text(batch['prompt_ids'][row][:length])
    assert prompt == '\n' + text[:half]
    assert not batch['prompt_ids'][row][length:].any()
    counted = batch['weights'][row] == 1
    assert source.to_text(batch['targets'][row][counted]) == (
      text[half:] + '\n'
    )
  assert batch['prompt_lengths'][3] == 0
  assert batch['example_weights'][3] == 0


def test_a_prompt_of_any_length_fits(tmp_path):
  texts = ['x' * n for n in range(1, 12)]
  (tmp_path / 'a.jsonl').write_text(
    '\n'.join(json.dumps({'text': t}) for t in texts)
  )
  for seq_len in range(1, 14):
    source = make(
      f'{tmp_path}/a.jsonl', inputs.TextPromptInput, seq_len=seq_len
    )
    batch = read_all(source)
    lengths = batch['prompt_lengths'][batch['example_weights'] == 1]
    assert lengths.max() <= source.max_prompt_len
    assert lengths.min() >= 1
    assert batch['prompt_ids'].shape[1] == source.max_prompt_len


def test_plain_files_are_documents_named_by_their_path(tmp_path):
  for name, text in (('b.txt', 'bee\n'), ('a.txt', 'ant'), ('c.txt', '')):
    (tmp_path / name).write_text(text)
  source = make(f'{tmp_path}/*.txt', text_field=None, layout='lines')
  assert [source.key(i) for i in range(source.num_examples)] == [
    'a.txt',
    'b.txt',
  ]
  assert source.corpus == b'ant\nbee\n'
  kept = make(f'{tmp_path}/*.txt', text_field=None, without={'path': 'a*'})
  assert kept.corpus == b'bee\n'


def test_changed_text_is_another_fingerprint(tmp_path):
  fingerprints = set()
  for text in ('one', 'two', 'tow'):
    (tmp_path / 'a.txt').write_text(text)
    fingerprints.add(make(f'{tmp_path}/a.txt', text_field=None).fingerprint)
  assert len(fingerprints) == 3


def test_a_key_that_comes_twice_is_named(verses):
  with pytest.raises(errors.InputError, match="'Ruth'"):
    make(verses, key_field='book').read(0, range(3))


def test_a_line_that_is_no_object_is_named(tmp_path):
  path = tmp_path / 'a.jsonl'
  for bad in ('{"text": 3}', '{"test": "x"}', '[1]', '{"text":'):
    path.write_text('{"text": "fine"}\n' + bad)
    with pytest.raises(errors.InputError, match=r'Line 2 of a\.jsonl'):
      make(str(path)).read(0, range(3))


def test_a_missing_field_names_those_there_are(verses):
  with pytest.raises(errors.InputError, match=r"'chapter'.*'book'"):
    make(verses, only={'chapter': ['1']}).read(0, range(3))


def test_bytes_that_are_no_text_do_not_stop_decoding():
  assert inputs.TextInput.to_text([72, 255, 105]) == 'H�i'


def test_an_unknown_layout_is_refused():
  with pytest.raises(errors.ConfigError, match="'words'"):
    make('x', layout='words')


def test_the_king_james_bible_splits_by_book():
  knobs = {
    'files': 'package:bible/data/kjv.jsonl',
    'key_field': 'citation',
    'seq_len': 256,
  }
  test = make(
    kind=inputs.TextPromptInput, only={'book': ['Ruth', 'Jonah']}, **knobs
  )
  assert test.num_examples == 133
  assert test.key(0) == 'Ruth 1:1'
  train = make(without={'book': ['Ruth', 'Jonah']}, **knobs)
  assert train.num_bytes + test.num_bytes == 4_106_349 + 31_103


def test_the_standard_library_is_a_corpus():
  source = make('stdlib:json/*.py', text_field=None, layout='lines')
  keys = [source.key(i) for i in range(source.num_examples)]
  assert 'json/decoder.py' in keys
  assert keys == sorted(keys)


def test_files_of_uneven_size_lose_no_example(tmp_path):
  for name, num in (('a', 1), ('b', 5), ('c', 2)):
    lines = [json.dumps({'text': f'{name}{i}'}) for i in range(num)]
    (tmp_path / f'{name}.jsonl').write_text('\n'.join(lines))
  source = make(f'{tmp_path}/*.jsonl', layout='lines')
  texts = []
  for position in range(source.num_batches):
    batch = input_contract.read_by_processes(source, position, 2)
    for row in np.flatnonzero(batch['example_weights']):
      counted = batch['weights'][row] == 1
      texts.append(source.to_text(batch['targets'][row][counted]).strip())
  assert texts == ['a0', 'b0', 'b1', 'b2', 'b3', 'b4', 'c0', 'c1']
