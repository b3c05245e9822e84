"""Inputs and reports in a real S3 server on this machine."""

import json
import socket

import fsspec
import pytest
import s3fs
from moto import server as moto_server
from tensorboard.compat.proto import event_pb2

from paxlike import inputs, reporting
from paxlike.core import _object_store
from paxlike.reporting import _records
from tests.fakes import world as fake_world

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')


@pytest.fixture(scope='module')
def endpoint():
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    port = probe.getsockname()[1]
  server = moto_server.ThreadedMotoServer('127.0.0.1', port)
  server.start()
  yield f'http://127.0.0.1:{port}'
  server.stop()


@pytest.fixture
def bucket(endpoint, monkeypatch, request) -> str:
  monkeypatch.setenv('AWS_ENDPOINT_URL', endpoint)
  monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'test')
  monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 'test')
  monkeypatch.setenv('AWS_DEFAULT_REGION', 'us-east-1')
  monkeypatch.delenv('AWS_PROFILE', raising=False)
  # Both remember the endpoint of whoever asked first.
  s3fs.S3FileSystem.clear_instance_cache()
  _object_store.for_scheme.cache_clear()
  name = f'bucket-{abs(hash(request.node.name))}'
  fsspec.filesystem('s3', use_listings_cache=False).mkdir(name)
  yield f's3://{name}/run'
  s3fs.S3FileSystem.clear_instance_cache()
  _object_store.for_scheme.cache_clear()


def event_steps(job_log_dir: str) -> list[int]:
  store = _object_store.for_scheme('s3')
  kept: list[int] = []
  directory = f'{job_log_dir}/summaries/train'
  for name in store.list_dir(directory):
    content = store.read_bytes(f'{directory}/{name}')
    for record in _records.split(content, source=name):
      event = event_pb2.Event.FromString(record)
      if event.session_log.status == event.session_log.START:
        kept = [step for step in kept if step < event.step]
      elif event.HasField('summary'):
        kept.append(event.step)
  return kept


def test_a_resume_in_a_store_says_each_step_once(bucket):
  for steps, start in ((range(1, 16), 0), (range(11, 21), 10)):
    with reporting.SummaryWriter(bucket, 'train', start_step=start) as writer:
      for step in steps:
        writer.scalars(step, {'loss': 0.5})
  read = reporting.read_metrics(bucket, 'train')
  assert [line['step'] for line in read] == list(range(1, 21))
  assert event_steps(bucket) == list(range(1, 21))


def test_a_flush_makes_lines_visible_in_a_store(bucket):
  with reporting.SummaryWriter(
    bucket, 'train', flush_interval_s=3600.0
  ) as writer:
    writer.scalars(1, {'loss': 0.5})
    writer.flush()
    assert len(reporting.read_metrics(bucket, 'train')) == 1


def test_a_status_in_a_store_is_read_back(bucket):
  assert reporting.read_status(bucket, 'train') is None
  reporting.write_status(bucket, 'train', state='done', step=3)
  status = reporting.read_status(bucket, 'train')
  assert status is not None
  assert status.step == 3


def test_a_killed_decode_goes_on_in_a_store(bucket):
  def job(world, *, last: int):
    writer = reporting.KeyValueWriter(
      bucket, 'x', step=1, num_batches=6, batches_per_commit=2, world=world
    )
    done = []
    for position in writer.pending():
      if position > last:
        return done
      writer.write(position, [(f'{position} {world.process_index}', None)])
      done.append(position)
    writer.finish()
    return done

  assert fake_world.run(2, lambda w: job(w, last=4)) == [[0, 1, 2, 3, 4]] * 2
  assert fake_world.run(1, lambda w: job(w, last=9)) == [[4, 5]]
  pairs = reporting.read_key_values(f'{bucket}/decoder_out/x/decoder_out_1*')
  assert [key for key, _ in pairs] == [
    *(f'{p} {i}' for p in range(4) for i in range(2)),
    '4 0',
    '5 0',
  ]


def test_text_is_read_from_a_store_by_pattern(bucket):
  store = _object_store.for_scheme('s3')
  for name in ('b.jsonl', 'a.jsonl', 'c.txt'):
    text = json.dumps({'text': name})
    store.write_new(f'{bucket}/text/{name}', text.encode())
  source = inputs.TextInput(
    name='text',
    batch_size=1,
    seq_len=4,
    files=f'{bucket}/te*/*.jsonl',
    text_field='text',
  )
  assert source.corpus == b'a.jsonl\nb.jsonl\n'
