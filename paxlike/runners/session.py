"""Everything a job needs before its first step, built whole and then frozen."""

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fiddle as fdl
import jax
from absl import logging

from paxlike import checkpoint, inputs, parallel, reporting, sync, tasks
from paxlike.core import errors, fs, processes
from paxlike.core import typing as ptyping

CHECKPOINTS = 'checkpoints'
# Ending of the file that says which results a job writes.
CLAIMS = 'writes'
STATUS_INTERVAL_S = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
  """One job in one mode.

  Attributes:
    mode: 'train', 'eval' or 'decode'.
    job_log_dir: Where everything of the job goes.
    task: What to learn, evaluate or decode with.
    partitioner: Where arrays live.
    world: The processes of the job.
    checkpoint_config: How checkpoints are stored.
    goes_on_after: Whether an error ends only this process, and the job goes
      on in another one.
  """

  mode: str
  job_log_dir: str
  task: tasks.Task
  partitioner: parallel.Partitioner
  world: sync.World
  checkpoint_config: checkpoint.CheckpointConfig
  goes_on_after: Callable[[BaseException], bool] = lambda _: False

  @property
  def is_writer(self) -> bool:
    """Whether this process writes what is written once a job."""
    return self.world.process_index == 0

  @property
  def checkpoint_dir(self) -> str:
    """The directory of the job's own checkpoints."""
    return fs.join(self.job_log_dir, CHECKPOINTS)

  def write_status(self, state: str, step: int, reason: str = '') -> None:
    """Tells followers and people how the job is doing."""
    if self.is_writer:
      reporting.write_status(
        self.job_log_dir, self.mode, state=state, step=step, reason=reason
      )

  def _last_status(self) -> reporting.Status | None:
    """What the job said last; what nobody can read is written anew."""
    try:
      return reporting.read_status(self.job_log_dir, self.mode)
    except errors.ReportingError as error:
      logging.warning('%s It is written anew.', error)
      return None

  def check_alone(self) -> None:
    """Refuses to be the second job of its mode in one directory.

    A job that was killed leaves 'running' behind, so what counts is whether
    the process that wrote it lives, which can be told on its own host only.

    Raises:
      UsageError: Another one is at work there.
    """
    found = self._last_status()
    if (
      self.is_writer
      and found is not None
      and found.state == 'running'
      and found.host == socket.gethostname()
      and found.pid != os.getpid()
      and time.time() - found.updated_s < 3 * STATUS_INTERVAL_S
      and processes.is_alive(found.pid)
    ):
      raise errors.UsageError(
        f'Process {found.pid} on this host is at work in {self.job_log_dir} '
        f'(--mode={self.mode}, step {found.step}). Two would overwrite each '
        f'other: end that one (kill {found.pid}), or take another '
        '--job_log_dir.'
      )

  @contextlib.contextmanager
  def status(self, note: str = '') -> Iterator['Progress']:
    """Keeps `status/<mode>.json` true from start to end, errors included.

    Args:
      note: What to say beside 'running'.

    Yields:
      Where to say which step the job has come to.
    """
    progress = Progress()
    before = self._last_status()
    # The first write is also the test whether the directory can be written
    # to, before anything is compiled.
    self.write_status('running', progress.step, note)
    beat = _Beat(lambda: self.write_status('running', progress.step, note))

    def end(error: BaseException) -> None:
      beat.stop()
      self._write_end(error, progress.step, before)

    try:
      with sync.last_words(end), beat:
        yield progress
    except BaseException as error:
      if not self.goes_on_after(error):  # which is not to be held up
        self._write_end(self.world.explain(error), progress.step, before)
      raise
    self.write_status('done', progress.step)

  def watchdog(self) -> sync.Watchdog:
    """Finds out when no step is done any more; to be used as a context."""
    train = self.task.train
    return sync.Watchdog(
      self.world,
      fs.join(self.job_log_dir, 'status', 'stacks'),
      factor=train.stall_factor,
      floor_s=train.stall_floor_s,
      end_job=train.on_stall == 'stop',
    )

  def check_same(self, abstract_state: ptyping.PyTree) -> None:
    """Refuses processes that see other devices, or a model of another shape.

    Raises:
      DivergenceError: On every process: what differs, and where.
    """
    mesh = self.partitioner.mesh
    kinds = sorted({d.device_kind for d in mesh.devices.flat})
    leaves = jax.tree.leaves_with_path(abstract_state)
    sizes = ' '.join(f'{axis}={size}' for axis, size in mesh.shape.items())
    sync.check_same(
      f'{self.mode}/start',
      {
        'mesh': f'{sizes} of {", ".join(kinds)}',
        'shapes': '\n'.join(
          f'{jax.tree_util.keystr(path)}: {leaf.dtype}{list(leaf.shape)} '
          f'{leaf.sharding.spec}'
          for path, leaf in leaves
        ),
      },
      world=self.world,
    )

  def _write_end(
    self, error: BaseException, step: int, before: reporting.Status | None
  ) -> None:
    if self.goes_on_after(error) or _was_taken_over(error):
      return
    if self._must_write_for(error):
      with contextlib.suppress(OSError, errors.ReportingError):
        reporting.write_status(
          self.job_log_dir,
          self.mode,
          state='failed',
          step=step,
          reason=f'{type(error).__name__}: {error}',
        )
      return
    status = getattr(error, 'exit_status', errors.EXIT_FAILED)
    if status == errors.EXIT_USAGE and before is not None:
      # Wrong use changes nothing: the run is where it was, and whose it was.
      if self.is_writer:
        reporting.put_status(self.job_log_dir, self.mode, before)
      return
    if status == errors.EXIT_USAGE and step == 0:
      # Nor does it make a run: there is none, as before.
      if self.is_writer:
        for suffix in ('json', CLAIMS):
          path = status_path(self.job_log_dir, self.mode, suffix)
          fs.for_path(path).remove(path)
      return
    if isinstance(error, errors.PreemptedError):
      self.write_status('preempted', step, str(error))
      return
    with contextlib.suppress(OSError):  # a full disk: the cause counts
      self.write_status('failed', step, f'{type(error).__name__}: {error}')

  def _must_write_for(self, error: BaseException) -> bool:
    """Whether process 0, whose it is to tell the end, was lost before it."""
    if (
      self.world.process_index != 1
      or not isinstance(error, errors.PeerFailedError)
      or error.process_index != 0
    ):
      return False
    last = reporting.read_status(self.job_log_dir, self.mode)
    return last is not None and last.state == 'running'


def _was_taken_over(error: BaseException) -> bool:
  """Whether another job is at work in the directory: the status is that one's.

  Not of an error that is raised when the directory is asked for.
  """
  cause = error.__cause__
  while cause is not None:
    if isinstance(cause, errors.CheckpointBusyError):
      return True
    cause = cause.__cause__
  return False


class _Beat:
  """Calls `beat` every few seconds, so that followers see a job alive."""

  def __init__(self, beat: Callable[[], None]):
    self._beat = beat
    self._lock = threading.Lock()
    self._over = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='status', daemon=True
    )

  def __enter__(self) -> None:
    self._thread.start()

  def __exit__(self, *unused: object) -> None:
    self.stop()
    self._thread.join()

  def stop(self) -> None:
    """When it returns, nothing is written any more."""
    self._over.set()
    with self._lock:
      pass

  def _run(self) -> None:
    while not self._over.wait(STATUS_INTERVAL_S):
      with self._lock, contextlib.suppress(OSError):  # a save will complain
        if not self._over.is_set():
          self._beat()


@dataclasses.dataclass
class Progress:
  """How far a job has come."""

  step: int = 0


def build(
  mode: str,
  task_p: Any,
  job_log_dir: str,
  *,
  mesh_p: Any = None,
  checkpoint_p: Any = None,
) -> Session:
  """Builds a session.

  Args:
    mode: 'train', 'eval' or 'decode'.
    task_p: Config of a task, or a task.
    job_log_dir: Where everything of the job goes.
    mesh_p: Config of the mesh, a `parallel.MeshConfig`, or a mesh with its
      axes over the devices to use; None: all devices in `data`.
    checkpoint_p: Config of how checkpoints are stored; None: the defaults.

  Raises:
    ConfigError: Some value is nonsense, by itself or beside another.
  """
  mesh = built(mesh_p) or parallel.MeshConfig()
  rules = parallel.DEFAULT_RULES
  if isinstance(mesh, parallel.MeshConfig):
    mesh, rules = parallel.make_mesh(mesh), mesh.rules
  return Session(
    mode=mode,
    job_log_dir=job_log_dir,
    task=built(task_p),
    partitioner=parallel.Partitioner(mesh, rules),
    # Its own room for names: a notebook may run several jobs.
    world=sync.world().scoped(mode),
    checkpoint_config=built(checkpoint_p) or checkpoint.CheckpointConfig(),
  )


def status_path(job_log_dir: str, mode: str, suffix: str) -> str:
  """A file by which a job of that mode tells of itself."""
  return fs.join(job_log_dir, 'status', f'{mode}.{suffix}')


def built(config_or_object: Any) -> Any:
  """What a Fiddle config builds; anything else is returned as it is."""
  if isinstance(config_or_object, fdl.Buildable):
    return fdl.build(config_or_object)
  return config_or_object


def build_inputs(configs: Any) -> list[inputs.Input]:
  """The inputs of one config or of several.

  Raises:
    ConfigError: Two of them have one name, so their outputs would mix.
  """
  if configs is None:
    configs = ()
  elif not isinstance(configs, Sequence):
    configs = (configs,)
  sources = [built(config) for config in configs]
  names = [source.name for source in sources]
  for name in names:
    if names.count(name) > 1:
      raise errors.ConfigError(
        f'Two inputs are called {name!r}, so their metrics would mix. Give '
        'each its own: --set eval_input_p[1].name=...'
      )
  return sources
