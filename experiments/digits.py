"""Classifiers of scikit-learn's handwritten digits, 8 by 8 pixels."""

import fiddle as fdl

from paxlike import experiment, inputs, models, tasks

_IMAGE_SHAPE = (8, 8, 1)
_NUM_CLASSES = 10


class Digits(experiment.BaseExperiment):
  """1,437 digits to train on and 360 to test on; subclasses give the model."""

  BATCH_SIZE = 64
  # As in training: the evaluation step is compiled once a batch shape.
  TEST_BATCH_SIZE = 64
  NUM_TRAIN_STEPS = 400
  LEARNING_RATE = 2e-3
  WEIGHT_DECAY = 0.01
  DROPOUT_RATE = 0.2
  LABEL_SMOOTHING = 0.0

  def model_p(self) -> fdl.Partial:
    """Template of the classifier."""
    raise NotImplementedError

  def task_p(self) -> fdl.Config:
    """Classification by cross-entropy."""
    return fdl.Config(
      tasks.ClassificationTask,
      model=self.model_p(),
      label_smoothing=self.LABEL_SMOOTHING,
      learner=fdl.Config(
        tasks.Learner,
        schedule=fdl.Config(
          tasks.WarmupCosine, peak=self.LEARNING_RATE, warmup_steps=50
        ),
        optimizer=fdl.Partial(tasks.adam, weight_decay=self.WEIGHT_DECAY),
      ),
      train=fdl.Config(
        tasks.TrainParams,
        num_train_steps=self.NUM_TRAIN_STEPS,
        save_interval_steps=200,
        summary_interval_steps=50,
        eval_interval_steps=200,
      ),
    )

  def input_p(self) -> list[fdl.Config]:
    """The digits to train on and those to test on."""
    return [
      fdl.Config(
        inputs.DigitsInput,
        name='digits',
        split='train',
        is_training=True,
        batch_size=self.BATCH_SIZE,
      ),
      self._test_p('digits_test'),
    ]

  def decode_input_p(self) -> list[fdl.Config]:
    """The test digits, to write down the class of each."""
    return [self._test_p('digits_classes')]

  def _test_p(self, name: str) -> fdl.Config:
    return fdl.Config(
      inputs.DigitsInput,
      name=name,
      split='test',
      batch_size=self.TEST_BATCH_SIZE,
    )


@experiment.register
class DigitsMlp(Digits):
  """One hidden layer on the pixels."""

  HIDDEN_DIMS = (128,)

  def model_p(self) -> fdl.Partial:
    """A multi-layer perceptron."""
    return fdl.Partial(
      models.MlpClassifier,
      input_shape=_IMAGE_SHAPE,
      num_classes=_NUM_CLASSES,
      hidden_dims=self.HIDDEN_DIMS,
      dropout_rate=self.DROPOUT_RATE,
    )


@experiment.register
class DigitsCnn(Digits):
  """Two convolutions with batch norm, then a hidden layer with dropout."""

  CONV_DIMS = (16, 32)
  HIDDEN_DIM = 64

  def model_p(self) -> fdl.Partial:
    """A convolutional network."""
    return fdl.Partial(
      models.CnnClassifier,
      input_shape=_IMAGE_SHAPE,
      num_classes=_NUM_CLASSES,
      conv_dims=self.CONV_DIMS,
      hidden_dim=self.HIDDEN_DIM,
      dropout_rate=self.DROPOUT_RATE,
    )
