"""The local disk: whole files, durable names, and disks of lesser kinds."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from paxlike.core import errors, fs

LOCAL = fs.LOCAL


def block(size, fill=7):
  memory = np.full(size + 4096, fill, np.uint8)
  skip = -memory.ctypes.data % 4096
  return memoryview(memory[skip : skip + size].data)


def test_importing_it_loads_nothing_heavy():
  program = (
    'import sys; from paxlike.core import fs; '
    'print([m for m in ("numpy", "jax", "fsspec") if m in sys.modules])'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], check=True, capture_output=True, text=True
  )
  assert done.stdout.strip() == '[]'


def test_an_atomic_write_replaces_and_leaves_no_other_file(tmp_path):
  path = fs.join(str(tmp_path), 'x')
  for data in (b'one', b'two'):
    LOCAL.write_atomic(path, data)
    assert LOCAL.read_bytes(path) == data
  assert LOCAL.list_dir(str(tmp_path)) == ['x']


def test_an_atomic_write_that_fails_leaves_the_old_file(tmp_path):
  class Full(fs.LocalFileSystem):
    def rename(self, source, target):
      raise OSError(errno.ENOSPC, 'No space left on device')

  path = fs.join(str(tmp_path), 'x')
  LOCAL.write_atomic(path, b'old')
  with pytest.raises(OSError, match='No space'):
    Full().write_atomic(path, b'new')
  assert LOCAL.read_bytes(path) == b'old'
  assert LOCAL.list_dir(str(tmp_path)) == ['x']


@pytest.mark.parametrize('where', ['disk', 'memory'])
def test_pieces_land_where_they_are_written(tmp_path, where):
  path = str(tmp_path / 'x') if where == 'disk' else f'/dev/shm/{os.getpid()}.x'
  try:
    writer = LOCAL.create(path, 3 * 8192)
    writer.write_at(8192, block(8192, 2))
    writer.write_at(0, block(8192, 1))
    writer.write_at(16384, block(8192, 3))
    writer.finish()
    data = LOCAL.read_bytes(path)
    assert [data[0], data[8191], data[8192], data[-1]] == [1, 1, 2, 3]
    assert LOCAL.size(path) == len(data) == 3 * 8192
  finally:
    LOCAL.remove(path)


def test_an_unaligned_piece_is_written_all_the_same(tmp_path):
  path = str(tmp_path / 'x')
  writer = LOCAL.create(path, 5000)
  writer.write_at(0, memoryview(b'a' * 100))
  writer.write_at(100, memoryview(b'b' * 4900))
  writer.finish()
  assert LOCAL.read_bytes(path) == b'a' * 100 + b'b' * 4900


def test_a_disk_without_direct_writes_is_written_through_the_cache(
  tmp_path, monkeypatch
):
  really_open = os.open

  def refusing(path, flags, mode=0o777):
    if flags & os.O_DIRECT:
      raise OSError(errno.EINVAL, 'Invalid argument')
    return really_open(path, flags, mode)

  monkeypatch.setattr(os, 'open', refusing)
  monkeypatch.setattr(os, 'posix_fallocate', None)
  path = str(tmp_path / 'x')
  writer = LOCAL.create(path, 8192)
  writer.write_at(0, block(8192))
  writer.finish()
  reader = LOCAL.open_read(path)
  out = bytearray(8192)
  assert reader.read_into(0, memoryview(out)) == 8192
  reader.close()
  assert out == b'\7' * 8192


def test_a_file_that_is_there_is_never_written_into(tmp_path):
  path = str(tmp_path / 'x')
  LOCAL.write_new(path, b'old')
  with pytest.raises(FileExistsError):
    LOCAL.create(path, 4096)
  assert LOCAL.read_bytes(path) == b'old'


@pytest.mark.parametrize('is_cached', [False, True])
def test_any_range_is_read(tmp_path, is_cached):
  path = str(tmp_path / 'x')
  expected = np.random.default_rng(0).bytes(3 << 20)
  LOCAL.write_new(path, expected)
  if not is_cached:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
  reader = LOCAL.open_read(path)
  for offset, length in [
    (0, 3 << 20),
    (4096, 1 << 20),
    (4097, 1 << 20),
    (0, 100),
    ((3 << 20) - 10, 10),
    (8192, (1 << 20) + 5),
  ]:
    out = block(length, 0)
    assert reader.read_into(offset, out) == length
    assert bytes(out) == expected[offset : offset + length]
  assert reader.read_into((3 << 20) - 10, block(8192, 0)) == 10
  reader.close()
  reader.close()


def test_an_open_file_outlives_its_name(tmp_path):
  path = str(tmp_path / 'x')
  LOCAL.write_new(path, b'abc')
  with fs.reading(LOCAL, path) as reader:
    LOCAL.remove(path)
    out = bytearray(3)
    reader.read_into(0, memoryview(out))
  assert out == b'abc'


def test_removing_what_is_absent_is_fine(tmp_path):
  LOCAL.remove(str(tmp_path / 'none'))
  (tmp_path / 'file').write_bytes(b'')
  LOCAL.remove(str(tmp_path / 'file' / 'none'))
  LOCAL.remove_tree(str(tmp_path / 'none'))
  LOCAL.make_dirs(str(tmp_path / 'a' / 'b'))
  LOCAL.write_new(str(tmp_path / 'a' / 'b' / 'x'), b'12')
  assert LOCAL.tree_bytes(str(tmp_path / 'a')) == 2
  LOCAL.remove_tree(str(tmp_path / 'a'))
  assert not LOCAL.exists(str(tmp_path / 'a'))


def test_two_directories_change_places(tmp_path):
  for name in ('a', 'b'):
    (tmp_path / name).mkdir()
    (tmp_path / name / name).write_bytes(b'')
  assert LOCAL.exchange(str(tmp_path / 'a'), str(tmp_path / 'b'))
  assert LOCAL.list_dir(str(tmp_path / 'a')) == ['b']


def test_appending_adds_to_the_end(tmp_path):
  path = str(tmp_path / 'x')
  for text in (b'a', b'b'):
    with LOCAL.open_append(path) as f:
      f.write(text)
  assert LOCAL.read_bytes(path) == b'ab'


@pytest.mark.parametrize(
  'path', ['S3://b/j', 'gs:/b', 'file:///b', 'https://b']
)
def test_a_store_that_is_not_served_is_no_local_path(path):
  with pytest.raises(errors.UsageError, match='neither gs://'):
    fs.expand(path)
  assert fs.expand(f'./{path}').startswith('/')


def test_paths_are_joined_and_taken_apart():
  assert fs.join('/a/', 'b', 'c') == '/a/b/c'
  assert fs.join('gs://x', 'b') == 'gs://x/b'
  assert fs.join('/', 'b') == '/b'
  assert fs.base_name('/a/b/') == 'b'
  assert fs.parent_dir('/a/b') == '/a'
  assert fs.parent_dir('/a') == '/'
  assert fs.parent_dir('a') == '.'
  assert fs.expand('s3://x/') == 's3://x'
  assert fs.expand('~/x') == os.path.expanduser('~/x')
  assert fs.for_path('/tmp') is fs.LOCAL


def test_asking_what_is_in_memory_does_not_change_the_answer(tmp_path):
  path = str(tmp_path / 'file')
  with open(path, 'wb') as f:
    for _ in range(256):
      f.write(os.urandom(1 << 20))
    f.flush()
    os.fsync(f.fileno())
    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
  readers = [LOCAL.open_read(path) for _ in range(10)]
  if readers[0]._direct_fd < 0:
    pytest.skip('this disk keeps its files in memory')
  for reader in readers:
    assert reader._direct_fd >= 0, 'nobody has read it'
    reader.close()
