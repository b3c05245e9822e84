import fiddle as fdl
import jax
import numpy as np
import pytest

from paxlike import inputs, models, programs, tasks
from paxlike.core import errors
from tests.fakes import tiny_task

VERSES = ['abcdXYZW', 'abcd1234', 'hello', 'a longer verse than the others']


@pytest.fixture(scope='module', name='source')
def _source(tmp_path_factory):
  path = tmp_path_factory.mktemp('text') / 'verses.jsonl'
  rows = [f'{{"key": "v{i}", "text": "{v}"}}\n' for i, v in enumerate(VERSES)]
  path.write_text(''.join(rows))
  return inputs.TextPromptInput(
    name='verses',
    files=str(path),
    text_field='text',
    key_field='key',
    seq_len=32,
    batch_size=3,
  )


def make_task(**decoder):
  return tasks.LanguageModelTask(
    model=fdl.build(
      fdl.Partial(
        models.TransformerLm,
        vocab_size=256,
        model_dim=16,
        num_layers=1,
        num_heads=2,
      )
    ),
    learner=tasks.Learner(
      schedule=tasks.Constant(value=0.1), optimizer=tasks.sgd
    ),
    train=tasks.TrainParams(num_train_steps=1),
    decoder=tasks.DecoderParams(**{'max_decode_steps': 6, **decoder}),
  )


def decode(task, source):
  """Values by key, and the metrics of each batch."""
  mdl_vars = task.init_vars(jax.random.key(0, impl='threefry2x32'))
  program = programs.DecodeProgram(task, tiny_task.make_partitioner(2))
  values, found = {}, []
  for _, rows in program.run(mdl_vars, source, range(source.num_batches)):
    decoded = task.process_decode_out(source, rows)
    values.update(decoded.pairs)
    found.append(decoded)
  return values, found


def test_prompt_and_target_make_up_the_document(source):
  values, _ = decode(make_task(stop_ids=(10,)), source)
  assert list(values) == ['v0', 'v1', 'v2', 'v3']
  for value, verse in zip(values.values(), VERSES, strict=True):
    assert value['prompt'] + value['target'] == f'\n{verse}'
    assert len(value['decoded'].encode()) >= 1
    assert value['log_prob'] < 0


def test_scores_are_those_of_the_loss(source):
  task = make_task(mode='score')
  values, found = decode(task, source)
  mdl_vars = task.init_vars(jax.random.key(0, impl='threefry2x32'))
  result = programs.EvalProgram(task, tiny_task.make_partitioner(1)).run(
    mdl_vars, source
  )
  total = sum(value['log_prob'] for value in values.values())
  count = sum(value['num_tokens'] for value in values.values())
  assert count == result.metrics['loss'].weight
  assert -total / count == pytest.approx(result.metrics['loss'].value, rel=1e-5)
  assert sum(d.metrics['loss'].weight for d in found) == count


def test_samples_of_an_example_do_not_depend_on_its_batch(source):
  task = make_task(temperature=1.0, num_samples=3)
  values, _ = decode(task, source)
  alone = inputs.TextPromptInput(
    **{
      field: getattr(source, field)
      for field in ('name', 'files', 'text_field', 'key_field', 'seq_len')
    },
    batch_size=1,
  )
  by_one, _ = decode(task, alone)
  assert by_one.keys() == values.keys()
  for key, value in by_one.items():
    assert [s['decoded'] for s in value['samples']] == [
      s['decoded'] for s in values[key]['samples']
    ]
  assert len({s['decoded'] for s in values['v0']['samples']}) > 1
  assert values['v0']['decoded'] == values['v0']['samples'][0]['decoded']


def outputs_of(decoded, targets, *, prompt='abcd'):
  """What `decode` would return if the model had said `decoded`."""

  def rows(texts):
    ids = np.zeros((len(texts), 16), np.int32)
    for row, text in enumerate(texts):
      ids[row, : len(text)] = list(text.encode())
    return ids, np.array([len(text) for text in texts], np.int32)

  ids, lengths = rows(decoded)
  target_ids, target_lengths = rows(targets)
  prompt_ids, prompt_lengths = rows([prompt] * len(decoded))
  return {
    'example_id': np.arange(len(decoded), dtype=np.int32),
    'example_weights': np.ones(len(decoded), np.float32),
    'prompt_ids': prompt_ids,
    'prompt_lengths': prompt_lengths,
    'target_ids': target_ids,
    'target_lengths': target_lengths,
    'ids': ids[:, None],
    'lengths': lengths[:, None],
    'log_probs': np.zeros((len(decoded), 1), np.float32),
  }


def test_equal_prompts_are_each_scored_by_their_own_target(source):
  task = make_task(stop_ids=(10,))
  outputs = outputs_of(['XYZW\n', 'XYZW\n'], ['XYZW\n', '1234\n'])
  decoded = task.process_decode_out(source, outputs)
  assert float(decoded.metrics['exact_match'].value) == 0.5
  assert [value['target'] for _, value in decoded.pairs] == ['XYZW', '1234']
  outputs = outputs_of(['XYZW\n', '1234\n'], ['XYZW\n', '1234\n'])
  decoded = task.process_decode_out(source, outputs)
  assert float(decoded.metrics['exact_match'].value) == 1.0


def test_bleu_and_chrf_are_of_the_corpus(source):
  sacrebleu = pytest.importorskip('sacrebleu')
  task = make_task(stop_ids=(10,), text_metrics=('bleu', 'chrf'))
  said, meant = ['a b c d e\n', 'f g\n'], ['a b c d x\n', 'f g h i\n']
  parts = [
    task.process_decode_out(source, outputs_of([s], [m]))
    for s, m in zip(said, meant, strict=True)
  ]
  totals = {'exact_match': parts[0].metrics['exact_match']}
  statistics = {
    name: parts[0].statistics[name] + parts[1].statistics[name]
    for name in ('bleu', 'chrf')
  }
  found = task.derive_decoded(totals, statistics)
  stripped = [[text.strip() for text in texts] for texts in (said, meant)]
  for name in ('bleu', 'chrf'):
    corpus = getattr(sacrebleu, f'corpus_{name}')(stripped[0], [stripped[1]])
    assert float(found[name].value) == pytest.approx(corpus.score)


def test_bytes_that_are_no_text_are_replaced(source):
  outputs = outputs_of(['xx'], ['yy'])
  outputs['ids'][0, 0, :2] = [0xFF, ord('z')]
  decoded = make_task().process_decode_out(source, outputs)
  assert decoded.pairs[0][1]['decoded'] == '\ufffdz'


@pytest.mark.parametrize(
  'knobs',
  [
    {'mode': 'guess'},
    {'max_decode_steps': 0},
    {'temperature': -1.0},
    {'text_metrics': ('rouge',)},
  ],
)
def test_nonsense_is_refused(knobs):
  with pytest.raises(errors.ConfigError):
    tasks.DecoderParams(**knobs)


def test_a_stop_id_that_the_model_never_says_is_refused():
  with pytest.raises(errors.ConfigError, match='vocab_size=256'):
    make_task(stop_ids=(10, 256))


def test_an_input_without_prompts_says_what_is_missing():
  source = inputs.SyntheticLmInput(
    name='lm', batch_size=2, vocab_size=256, seq_len=8, num_examples=2
  )
  with pytest.raises(errors.ConfigError, match='TextPromptInput'):
    decode(make_task(), source)
