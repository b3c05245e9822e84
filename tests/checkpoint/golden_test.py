"""What any earlier version wrote is still read, and by the page alone."""

import json
import math
import pathlib
import struct

import google_crc32c
import jax
import numpy as np
import pytest

from paxlike import checkpoint
from paxlike.protos import checkpoint_pb2 as pb
from tests.golden import make_checkpoint

GOLDEN = pathlib.Path(make_checkpoint.__file__).parent
FORMATS = sorted(GOLDEN.glob('checkpoint_format_*'))


@pytest.mark.parametrize('kind', [k.value for k in checkpoint.CheckpointType])
@pytest.mark.parametrize('path', FORMATS, ids=lambda p: p.name)
def test_a_golden_checkpoint_restores(path, kind):
  expected = make_checkpoint.state()
  with checkpoint.CheckpointManager(path / kind, read_only=True) as manager:
    found = manager.restore(expected)
    (record,) = manager.records()
  assert found.step == 3
  assert found.items == {'input_state': {'position': 3}, 'raw': b'\0\1'}
  assert record.metrics == {'loss': 0.5}
  assert record.timestamp_s == 1_700_000_000.0
  assert jax.tree.structure(found.state) == jax.tree.structure(expected)
  for a, b in zip(
    jax.tree.leaves(found.state), jax.tree.leaves(expected), strict=True
  ):
    assert type(a) is type(b)
    np.testing.assert_array_equal(a, b)


class Stranger:
  """A reader of format 1 written from docs/design/checkpoint.md alone."""

  def __init__(self, step: pathlib.Path):
    self.step = step
    self.manifest = pb.Manifest.FromString(self.frame('MANIFEST', 1))

  def frame(self, name, kind):
    data = (self.step / name).read_bytes()
    magic, version, found, _, _, length, crc = struct.unpack(
      '<8sHHq16sQI', data[:48]
    )
    assert (magic, version, found) == (b'paxl.ckp', 1, kind)
    assert length == len(data) - 48
    assert crc == google_crc32c.value(data[:44] + data[48:])
    return data[48:]

  def array(self, name):
    (array,) = [a for a in self.manifest.arrays if a.name == name]
    number = list(self.manifest.arrays).index(array)
    layout = self.manifest.layouts[array.layout]
    out = np.zeros(array.shape, array.dtype)
    for box, owner in enumerate(layout.owners):
      (files,) = [f for f in self.manifest.files if f.process == owner]
      index = pb.Index.FromString(self.frame(files.index_file, 2))
      place = list(zip(index.array, index.box, strict=True)).index(
        (number, box)
      )
      stream = b''.join(
        (self.step / part.name).read_bytes()[4096:] for part in files.data
      )
      ends = [*index.offset[1:], index.total_bytes]
      sums_before = sum(
        math.ceil((end - begin) / (1 << 20))
        for begin, end in zip(index.offset[:place], ends[:place], strict=True)
      )
      begin = index.offset[place]
      for i, at in enumerate(range(begin, ends[place], 1 << 20)):
        block = stream[at : min(at + (1 << 20), ends[place])]
        assert google_crc32c.value(block) == index.crc32c[sums_before + i]
      cuts, rest = [], box
      for d in reversed(range(len(array.shape))):
        rest, i = divmod(rest, layout.grid[d])
        length = math.ceil(array.shape[d] / layout.grid[d])
        cuts.insert(0, slice(i * length, (i + 1) * length))
      part = out[(*cuts, ...)]
      raw = stream[begin : begin + index.bytes[place]]
      part[...] = np.frombuffer(raw, array.dtype).reshape(part.shape)
    return out


def test_a_stranger_reads_the_golden_checkpoint_by_the_page():
  step = GOLDEN / 'checkpoint_format_1' / 'GDA' / 'checkpoint_00000003'
  reader = Stranger(step)
  expected = make_checkpoint.state()
  params = expected['mdl_vars']['params']
  for name, value in {
    'big': expected['big'],
    'mdl_vars/params/w': params['w'],
    'mdl_vars/params/a%2Fb': params['a/b'],
    'step': expected['step'],
  }.items():
    np.testing.assert_array_equal(reader.array(name), value)
  assert json.loads(reader.frame('input_state', 3)) == {'position': 3}


def test_a_stranger_reads_a_sharded_checkpoint_by_the_page(tmp_path):
  from tests.checkpoint import samples

  values = np.random.default_rng(0).standard_normal((64, 1 << 14), np.float32)
  state = {'x': samples.put(values, samples.mesh(4, 2), 'data', 'model')}
  with checkpoint.CheckpointManager(tmp_path) as manager:
    manager.save(1, state)
  reader = Stranger(tmp_path / 'checkpoint_00000001')
  np.testing.assert_array_equal(reader.array('x'), values)
