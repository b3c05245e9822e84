"""Byte-level language models, small enough for a laptop."""

import fiddle as fdl

from paxlike import experiment, inputs, models, tasks
from paxlike.core import errors

# Held out whole, so that nothing of them is seen in training. None of these
# books retells another one, as the gospels and Chronicles do.
_KJV_TEST_BOOKS = (
  'Ruth',
  'Esther',
  'Ecclesiastes',
  'Hosea',
  'Jonah',
  'Philippians',
  'James',
)


class ByteLm(experiment.BaseExperiment):
  """A Transformer over bytes; subclasses say which text."""

  NUM_LAYERS = 4
  MODEL_DIM = 128
  NUM_HEADS = 4
  DROPOUT_RATE = 0.0
  COMPUTE_DTYPE = 'float32'
  SEQ_LEN = 256
  BATCH_SIZE = 16
  NUM_TRAIN_STEPS = 500
  LEARNING_RATE = 4e-3
  WARMUP_STEPS = 50
  MAX_DECODE_STEPS = 128
  STOP_IDS: tuple[int, ...] = ()

  def validate(self) -> None:
    """Refuses knobs that do not fit together."""
    if self.MODEL_DIM % self.NUM_HEADS:
      raise errors.ConfigError(
        f'MODEL_DIM ({self.MODEL_DIM}) must be a multiple of NUM_HEADS '
        f'({self.NUM_HEADS}).'
      )

  def task_p(self) -> fdl.Config:
    """A language model whose tokens are bytes."""
    return fdl.Config(
      tasks.LanguageModelTask,
      model=fdl.Partial(
        models.TransformerLm,
        vocab_size=256,
        model_dim=self.MODEL_DIM,
        num_layers=self.NUM_LAYERS,
        num_heads=self.NUM_HEADS,
        dropout_rate=self.DROPOUT_RATE,
        compute_dtype=self.COMPUTE_DTYPE,
      ),
      learner=fdl.Config(
        tasks.Learner,
        schedule=fdl.Config(
          tasks.WarmupCosine,
          peak=self.LEARNING_RATE,
          warmup_steps=self.WARMUP_STEPS,
          end_fraction=0.05,
        ),
        optimizer=fdl.Partial(tasks.adam, weight_decay=0.1),
      ),
      train=fdl.Config(
        tasks.TrainParams,
        num_train_steps=self.NUM_TRAIN_STEPS,
        save_interval_steps=200,
        summary_interval_steps=20,
        eval_interval_steps=200,
      ),
      decoder=fdl.Config(
        tasks.DecoderParams,
        max_decode_steps=self.MAX_DECODE_STEPS,
        stop_ids=self.STOP_IDS,
      ),
      bytes_per_token=1.0,
    )


@experiment.register
class KjvTiny(ByteLm):
  """Bytes of the King James Bible, tested on books that it never saw."""

  NUM_DECODE_BATCHES = 2
  STOP_IDS = (10,)  # a verse ends with its line

  def input_p(self) -> list[fdl.Config]:
    """The other books to train on, the held-out ones to test on."""
    held_out = {'book': _KJV_TEST_BOOKS}
    return [
      self._text(
        name='kjv', is_training=True, seq_len=self.SEQ_LEN, without=held_out
      ),
      self._text(name='kjv_books', seq_len=self.SEQ_LEN, only=held_out),
    ]

  def decode_input_p(self) -> list[fdl.Config]:
    """First halves of held-out verses, to be completed."""
    return [
      fdl.Config(
        inputs.TextPromptInput,
        name='kjv_verses',
        files='package:bible/data/kjv.jsonl',
        text_field='text',
        key_field='citation',
        only={'book': _KJV_TEST_BOOKS},
        seq_len=self.SEQ_LEN,
        batch_size=self.BATCH_SIZE,
        eval_loop_num_batches=self.NUM_DECODE_BATCHES,
      )
    ]

  def _text(self, **fields) -> fdl.Config:
    return fdl.Config(
      inputs.TextInput,
      files='package:bible/data/kjv.jsonl',
      text_field='text',
      batch_size=self.BATCH_SIZE,
      **fields,
    )


@experiment.register
class PythonTiny(ByteLm):
  """Bytes of Python's standard library, tested on packages it never saw."""

  TEST_PACKAGES = ('asyncio', 'json', 'logging', 'unittest')

  def input_p(self) -> list[fdl.Config]:
    """Modules and packages to train on, other packages to test on."""
    held_out = {'path': tuple(f'{name}/*' for name in self.TEST_PACKAGES)}
    return [
      self._files(name='python', is_training=True, without=held_out),
      self._files(name='python_packages', only=held_out),
    ]

  def decode_input_p(self) -> list[fdl.Config]:
    """Beginnings of the held-out files, to be gone on with."""
    return [
      fdl.Config(
        inputs.TextPromptInput,
        name='python_files',
        files=[f'stdlib:{name}/*.py' for name in self.TEST_PACKAGES],
        seq_len=self.SEQ_LEN,
        batch_size=self.BATCH_SIZE,
      )
    ]

  def _files(self, **fields) -> fdl.Config:
    return fdl.Config(
      inputs.TextInput,
      files=['stdlib:*.py', 'stdlib:*/*.py'],
      seq_len=self.SEQ_LEN,
      batch_size=self.BATCH_SIZE,
      **fields,
    )
