"""Any mesh gives the loss curve of one device."""

import fiddle as fdl
import jax
import numpy as np
import pytest

from paxlike import inputs, models, parallel, reporting, tasks
from paxlike.runners import train

_MESHES = {
  'data parallel': {'replica': 8, 'data': 1},
  'fully sharded': {'data': 8},
  'tensor parallel': {'data': 1, 'mdl': 8},
  'all three': {'replica': 2, 'data': 2, 'mdl': 2},
}


def language_model():
  model = fdl.Partial(
    models.TransformerLm,
    vocab_size=32,
    model_dim=32,
    num_layers=2,
    num_heads=8,
    mlp_dim=64,
    dropout_rate=0.1,
  )
  source = inputs.SyntheticLmInput(
    name='lm', batch_size=8, is_training=True, seq_len=16, vocab_size=32
  )
  return fdl.Config(tasks.LanguageModelTask, model=model), source


def convolutions():
  model = fdl.Partial(
    models.CnnClassifier,
    input_shape=(8, 8, 1),
    num_classes=8,
    conv_dims=(8, 16),
    hidden_dim=16,
    dropout_rate=0.1,
  )
  source = inputs.SyntheticClassificationInput(
    name='cnn', batch_size=8, is_training=True, shape=(8, 8, 1), num_classes=8
  )
  return fdl.Config(tasks.ClassificationTask, model=model), source


def losses(job_log_dir, make, mesh):
  task_p, source = make()
  task_p.learner = fdl.Config(
    tasks.Learner, schedule=fdl.Config(tasks.Constant, value=1e-2)
  )
  task_p.train = fdl.Config(
    tasks.TrainParams, num_train_steps=8, summary_interval_steps=1
  )
  train.train_and_evaluate_spmd_model(
    task_p, source, str(job_log_dir), mesh_p=mesh
  )
  lines = reporting.read_metrics(str(job_log_dir), 'train')
  return [line['loss'] for line in lines]


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
  """The loss curve of one device, made once a model."""
  curves = {}

  def get(make):
    if make not in curves:
      one = parallel.make_mesh(parallel.MeshConfig(), jax.devices()[:1])
      curves[make] = losses(tmp_path_factory.mktemp('alone'), make, one)
    return curves[make]

  return get


@pytest.mark.parametrize('name', _MESHES)
@pytest.mark.parametrize('make', [language_model, convolutions])
def test_eight_devices_give_the_loss_curve_of_one(make, name, alone, tmp_path):
  mesh = parallel.MeshConfig(**_MESHES[name])
  np.testing.assert_allclose(
    losses(tmp_path, make, mesh), alone(make), rtol=2e-5
  )
