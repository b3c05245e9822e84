"""Real processes over jax.distributed save, and others restore, bit for bit."""

import pathlib

import numpy as np
import pytest

from paxlike.checkpoint import tools
from paxlike.cli import ckpt
from tests.checkpoint import real_jobs
from tests.multiprocess import harness

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
_JOBS = 'tests.checkpoint.real_jobs'
_STEP_NAME = f'checkpoint_{real_jobs.STEP:08d}'


def run(job: str, count: int, *arguments: object, says: str) -> float:
  """Runs a job whose every process must end well; seconds of the last one."""
  ended = harness.run(
    f'{_JOBS}:{job}', count, *map(str, arguments), timeout_s=120.0
  )
  harness.assert_all_ended(ended)
  for process in ended:
    assert process.status == 0, process.output
    process.said_s(says)
  return max(process.ended_s for process in ended)


def _saved_by(count: int, factory: pytest.TempPathFactory) -> pathlib.Path:
  directory = factory.mktemp(f'by_{count}')
  run('saves', count, directory, says='all saved')
  return directory


@pytest.fixture(scope='module')
def by_two(tmp_path_factory):
  return _saved_by(2, tmp_path_factory)


@pytest.fixture(scope='module')
def by_three(tmp_path_factory):
  return _saved_by(3, tmp_path_factory)


def test_processes_that_swapped_places_restore_every_bit(by_two):
  run('restores', 2, by_two, 'swapped', 2, says='all equal')


def test_one_process_restores_what_two_saved(by_two):
  run('restores', 1, by_two, 'straight', 2, says='all equal')


def test_three_processes_restore_what_two_saved(by_two):
  run('restores', 3, by_two, 'straight', 2, says='all equal')


def test_two_processes_restore_what_three_saved(by_three):
  run('restores', 2, by_three, 'swapped', 3, says='all equal')


def test_a_run_goes_on_with_more_and_with_fewer_processes(tmp_path):
  for count, order, at in ((2, 'straight', 3), (3, 'swapped', 6), (1, '', 9)):
    run('goes_on', count, tmp_path, order, says=f'at {at}')


def test_two_saves_in_a_row_fifty_times(tmp_path):
  run('saves_in_pairs', 2, tmp_path, says='hundred saved')


def test_a_writer_that_hangs_is_named_after_the_deadline(tmp_path):
  ended = harness.run(
    f'{_JOBS}:hangs_on_one', 2, str(tmp_path), timeout_s=120.0
  )
  harness.assert_all_ended(ended)
  ended[0].said_s('told: Step 1 was not saved')
  assert not list(tmp_path.glob('checkpoint_*'))


def test_saves_lists_and_deletes_beside_each_other_raise_nothing(tmp_path):
  run('saves_lists_deletes', 2, tmp_path, says='no error in 100 rounds')


def test_rows_that_the_mesh_does_not_divide_are_refused_by_name(tmp_path):
  run('indivisible', 2, tmp_path, says='all equal')


@pytest.mark.parametrize('on_save_error', ['stop', 'warn'])
def test_a_process_that_cannot_copy_is_told_to_all_at_once(
  tmp_path, on_save_error
):
  # The deadline is 60 s, which would outlast the job's.
  run('cannot_stage_on_one', 2, tmp_path, on_save_error, says='all told')


@pytest.mark.parametrize('count', [2, 3])
def test_each_replica_is_on_disk_once(by_two, by_three, count):
  step = (by_two if count == 2 else by_three) / 'GDA' / _STEP_NAME
  sizes = {p.name: p.stat().st_size for p in step.glob('*.data')}
  assert sorted(sizes) == [f'p{i:05d}.data' for i in range(count)]
  num_bytes = sum(
    np.prod(shape) * np.dtype(dtype).itemsize
    for shape, dtype, _ in real_jobs.LEAVES.values()
  )
  page = 4096
  # A page that names each file, and less than a page of zeros a large box.
  num_large = 2 + 2 * count
  slack = sum(sizes.values()) - num_bytes
  assert 0 < slack < page * (2 * count + num_large)
  # The two large replicated arrays are written by two different processes.
  large = 512 * 600 * 4
  own = 768 * 512 * 4 // count
  assert [s // (own + large) for s in sorted(sizes.values())][-2:] == [1, 1]
  flax = by_two if count == 2 else by_three
  names = sorted(
    str(p.relative_to(flax)) for p in flax.glob(f'*/{_STEP_NAME}/**/*.msgpack')
  )
  assert names == [
    f'FLAX/{_STEP_NAME}/state.msgpack',
    *(
      f'MULTI_HOST_FLAX/{_STEP_NAME}/{i:03d}/state.msgpack'
      for i in range(count)
    ),
  ]


# --- the tools, on what several processes wrote


@pytest.mark.parametrize('kind', real_jobs.KINDS)
def test_ls_show_and_verify_see_what_two_processes_wrote(by_two, kind, capsys):
  path = by_two / kind
  assert [s.step for s in tools.list_steps(path).steps] == [6, 7]
  assert ckpt.main(['ls', str(path)]) == 0
  assert kind in capsys.readouterr().out
  assert tools.verify(path).damage == ()
  found = {a.name: a for a in tools.show(path, stats=True).arrays}
  whole = real_jobs.values('whole').astype(np.float64)
  assert found['whole'].stats.mean == pytest.approx(whole.mean(), rel=1e-12)
  if kind == 'GDA':
    rows = real_jobs.values('rows').astype(np.float64)
    norm = float(np.sqrt((rows**2).sum()))
    assert found['rows'].stats.norm == pytest.approx(norm, rel=1e-12)
    assert 'x' in found['rows'].sharding


def test_damage_to_the_file_of_the_second_process_is_named(by_two, tmp_path):
  import shutil

  shutil.copytree(by_two, tmp_path / 'copy')
  for kind, name in (
    ('GDA', 'p00001.data'),
    ('MULTI_HOST_FLAX', '001/state.msgpack'),
  ):
    path = tmp_path / 'copy' / kind / _STEP_NAME / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    (damage,) = tools.verify(tmp_path / 'copy' / kind).damage
    assert name in damage.file


def test_diff_of_two_steps_and_of_two_worlds(by_two, by_three):
  found = tools.diff(by_two / 'GDA', by_two / 'GDA', step_a=6)
  assert found.arrays == ()
  assert found.items == ('input_state',)
  assert tools.diff(by_two / 'GDA', by_three / 'GDA').is_equal
  found = tools.diff(by_two / 'GDA', by_two / 'FLAX')
  assert not found.is_equal


@pytest.mark.parametrize('to', ['GDA', 'FLAX', 'safetensors', 'zarr3', 'orbax'])
def test_what_two_processes_wrote_converts(by_two, tmp_path, to):
  target = tmp_path / 'target'
  done = tools.convert(by_two / 'GDA', target, to=to)
  assert done.step == real_jobs.STEP
  back = tmp_path / 'back'
  tools.convert(target, back, source_format=to, step=real_jobs.STEP)
  pattern = 'rows|columns|both|whole'
  only = [
    tools.convert(path, tmp_path / name, only=pattern)
    for path, name in ((by_two / 'GDA', 'a'), (back, 'b'))
  ]
  assert [c.num_arrays for c in only] == [4, 4]
  assert not [
    a for a in tools.diff(tmp_path / 'a', tmp_path / 'b').arrays if a.differ
  ]


def test_the_state_of_each_process_converts_by_itself(by_two, tmp_path):
  for process in (0, 1):
    target = tmp_path / f'{process}'
    tools.convert(by_two / 'MULTI_HOST_FLAX', target, process=process)
    found = {a.name: a for a in tools.show(target, stats=True).arrays}
    assert found['own'].stats.mean == process


def test_pin_unpin_and_rm_of_what_two_processes_wrote(by_two, tmp_path):
  import shutil

  for kind in real_jobs.KINDS:
    path = tmp_path / kind
    shutil.copytree(by_two / kind, path)
    tools.pin(path, [6])
    kept = {s.step: s.keep for s in tools.list_steps(path).steps}
    assert 'pinned' in kept[6]
    tools.unpin(path, [6])
    tools.remove(path, [6])
    assert [s.step for s in tools.list_steps(path).steps] == [7]
    assert tools.verify(path).damage == ()
