import subprocess
import sys

import pytest

from paxlike import inputs
from tests.contracts import input_contract


def make_epoch(epoch: int):
  tf = pytest.importorskip('tensorflow')
  dataset = tf.data.Dataset.range(9).shuffle(9, seed=epoch + 1)
  return dataset.map(lambda i: {'inputs': tf.cast(i, tf.float32), 'labels': i})


class TestTfDataInput(input_contract.InputContract):
  @pytest.fixture(autouse=True)
  def _tensorflow(self):
    pytest.importorskip('tensorflow')

  def make(self, **knobs):
    return inputs.TfDataInput(
      **{'name': 'tf', 'batch_size': 4, 'make_epoch': make_epoch, **knobs}
    )


def test_naming_every_input_loads_neither_tensorflow_nor_grain():
  code = (
    'import sys; from paxlike import inputs\n'
    'for name in dir(inputs): getattr(inputs, name)\n'
    'print({"tensorflow", "grain", "sklearn"} & set(sys.modules))'
  )
  output = subprocess.check_output(
    [sys.executable, '-c', code], timeout=60, text=True
  )
  assert output.strip() == 'set()'
