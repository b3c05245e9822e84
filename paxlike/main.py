"""The program: reads the command line, resolves the config, runs one job.

Promises: what a user did wrong ends in one clear line and status 2; a failed
run in one clear message and status 1; a run that was asked to stop in status
75. Help and listing load no array library. What a job does is the runners'.
"""

import os
import sys

if not __package__:  # run as a script: make `import paxlike` find this tree
  sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import contextlib
import dataclasses
import importlib
import pkgutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from absl import logging

from paxlike import flags
from paxlike.core import (
  compilation_cache,
  disks,
  errors,
  fs,
  processes,
  suggest,
)

if TYPE_CHECKING:
  from paxlike import experiment, sync

# By name alone: a command is loaded when it is given, and main and cli stand
# side by side.
_CLI = 'paxlike.cli'
_AGENT = 'PAXLIKE_AGENT'
_LAUNCHER = 'PAXLIKE_LAUNCHER'
_EXIT_INTERRUPTED = 130
_has_begun = threading.Event()
_Recording = contextlib.AbstractContextManager[str]


def console() -> NoReturn:
  """Entry point of the `paxlike` command."""
  is_job = len(sys.argv) > 1 and sys.argv[1].startswith('-')
  if is_job:
    for number in (signal.SIGTERM, signal.SIGINT):
      signal.signal(number, _stop_early)
    if _LAUNCHER in os.environ:  # its death, kill -9 included, is a request
      processes.end_with_parent(signal.SIGTERM)
  try:
    status = main(sys.argv)
    if is_job:  # all is written: nothing is left that a request could stop
      for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.flush()
  except BrokenPipeError:  # the reader, such as `head`, has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    status = errors.EXIT_FAILED
  sys.exit(status)


def main(argv: Sequence[str]) -> int:
  """Runs the program.

  Args:
    argv: The command line, program first.

  Returns:
    The exit status: 0 done, 1 failed, 2 wrong use, 75 stopped on request.

  Raises:
    Exception: Whatever is no `PaxlikeError`, for its traceback to be seen.
  """
  try:
    if len(argv) > 1 and not argv[1].startswith('-'):
      return _run_command(argv[1], argv[2:])
    return _run_job(argv)
  except errors.PaxlikeError as error:
    return _report(error)
  except OSError as error:
    if not disks.is_refusal(error):
      raise
    return _report(_disk_error(error))
  except KeyboardInterrupt:
    print('paxlike: interrupted', file=sys.stderr)
    return _EXIT_INTERRUPTED


def _disk_error(error: OSError) -> errors.PaxlikeError:
  """Tells of a disk in a line: nothing in the program is wrong."""
  where = f' {error.filename}' if error.filename else ''
  remedy = disks.remedy(error)
  if isinstance(error, PermissionError):
    return errors.UsageError(
      f'Not allowed{where}: {error.strerror}. {remedy}, or run as a user who '
      'may.'
    )
  return errors.PaxlikeError(
    f'Cannot write{where}: {error.strerror}. {remedy} or set another --job_log_dir, then start the job again: it goes '
    'on from its last checkpoint.'
  )


def _report(error: errors.PaxlikeError) -> int:
  """Says what went wrong, without a traceback, and gives the status."""
  # Fiddle wraps what a constructor raises, to add lines about the place.
  bare = getattr(error, 'proxy_base_exception', error)
  logging.debug('Where it happened:', exc_info=error)
  logging.flush()
  print(f'paxlike: {bare}', file=sys.stderr)
  return error.exit_status


def _run_command(name: str, arguments: Sequence[str]) -> int:
  """Runs `paxlike NAME ...`, which is `paxlike.cli.NAME.main`."""
  known = _commands()
  if name not in known:
    raise errors.UsageError(
      f'There is no command {name!r}. {suggest.hint(name, known)} To run a '
      'job, give flags: paxlike --help'
    )
  command: Callable[[Sequence[str]], int] = importlib.import_module(
    f'{_CLI}.{name}'
  ).main
  return command(arguments)


def command_names() -> list[str]:
  """The commands that there are, `paxlike NAME ...`."""
  return list(_commands())


def _commands() -> dict[str, str]:
  """Names of commands with what each does, from its file's first line."""
  found = {}
  (directory,) = importlib.import_module(_CLI).__path__
  for module in pkgutil.iter_modules([directory]):
    if not module.name.startswith('_'):
      path = os.path.join(directory, f'{module.name}.py')
      with open(path, encoding='utf-8') as file:
        found[module.name] = file.readline().strip().strip('"')
  return found


def _run_job(argv: Sequence[str]) -> int:
  values = flags.parse(argv)
  if values.help:
    print(flags.help_text(values, _commands()), end='')
    return errors.EXIT_DONE
  if values.version:
    from paxlike import __version__

    print(f'paxlike {__version__}')
    return errors.EXIT_DONE
  flags.check(values)
  _set_up_logging(values.verbosity)
  if not values.dump_config:
    _set_up_compilation_cache(values)

  from paxlike import config, experiment

  with experiment.mistakes_told(values.exp):
    found = experiment.get(values.exp)
  resolved = experiment.resolve(found, values.set)
  if values.dump_config:
    print(f'# experiment: {resolved.name}')
    print(config.dump.to_text(resolved.roots()), end='')
    return errors.EXIT_DONE
  _run_mode(values, resolved, argv)
  return errors.EXIT_DONE


def _stop_early(number: int, frame: object) -> None:
  """Ends a job that was asked to stop before it had begun."""
  del number, frame
  if _has_begun.is_set():
    return  # And has ended: while it runs, requests are heard by `sync`.
  print('paxlike: stopped before the job began', file=sys.stderr, flush=True)
  os._exit(errors.EXIT_PREEMPTED)


def _run_mode(
  values: flags.Values,
  resolved: 'experiment.Resolved',
  argv: Sequence[str],
) -> None:
  from paxlike import sync

  if _AGENT in os.environ:  # an agent has started this process
    _run_for_agent(values, resolved, argv)
    return
  with sync.bootstrap(
    coordinator_address=values.coordinator_address,
    num_processes=values.num_processes,
    process_id=values.process_id,
  ) as world:
    _run_in(world, values, resolved, argv)


def _run_for_agent(
  values: flags.Values,
  resolved: 'experiment.Resolved',
  argv: Sequence[str],
) -> None:
  """Loads everything, waits for a plan, then runs as a part of it."""
  from paxlike import (
    checkpoint,
    elastic,
    parallel,
    programs,
    reporting,
    runners,
    sync,
    tasks,
  )

  for room in (checkpoint, parallel, programs, reporting, runners, sync, tasks):
    for name in dir(room):  # rooms load on first use, which is now
      getattr(room, name)
  source = runners.session.built(resolved.train_input_p)
  if source is not None:
    _ = source.fingerprint  # opens the data ahead of the plan
  with (
    elastic.worker.attached() as worker,
    sync.bootstrap(**worker.place) as world,
    worker.running(world),
  ):
    _run_in(world, values, resolved, argv, source)


def _run_in(
  world: 'sync.World',
  values: flags.Values,
  resolved: 'experiment.Resolved',
  argv: Sequence[str],
  source: Any = None,
) -> None:
  """Runs the job as a process of `world`.

  Args:
    world: The processes.
    values: The flags.
    resolved: The config.
    argv: The command line, to be recorded.
    source: The training input, if it was opened ahead.
  """
  from paxlike import experiment, sync

  _has_begun.set()
  job_log_dir = fs.expand(values.job_log_dir)
  if world.process_count > 1:
    _set_up_logging(values.verbosity, f' p{world.process_index}')
    facts = experiment.facts(resolved)
    sync.check_same(f'{values.mode}/config', facts, world=world)
  if values.mode != 'train':
    _find_checkpoints(world, values, resolved, job_log_dir)
  recording = (
    experiment.recording(job_log_dir, values.mode, resolved, command=argv)
    if world.process_index == 0
    else contextlib.nullcontext('')
  )
  if source is not None:
    resolved = dataclasses.replace(resolved, train_input_p=source)
  run = {'train': _train, 'eval': _evaluate, 'decode': _decode}[values.mode]
  with _permission_told(values, job_log_dir):
    run(values, resolved, job_log_dir, recording)


@contextlib.contextmanager
def _permission_told(values: flags.Values, job_log_dir: str) -> Iterator[None]:
  """Says what to type where the job's directory may not be written to."""
  try:
    yield
  except PermissionError as error:
    where = str(error.filename)
    # The parent of a directory that is yet to be made counts too.
    if not (where.startswith(job_log_dir) or job_log_dir.startswith(where)):
      raise
    source = f'--restore_checkpoint_dir={fs.join(job_log_dir, "checkpoints")}'
    also = '' if values.mode == 'train' else f' and {source}'
    raise errors.UsageError(
      f'{where}: {error.strerror}. Give a --job_log_dir that you may write '
      f'to{also}.'
    ) from error


def _find_checkpoints(
  world: 'sync.World',
  values: flags.Values,
  resolved: 'experiment.Resolved',
  job_log_dir: str,
) -> None:
  """Sees to it that there is something to read, before anything is written."""
  from paxlike import runners

  given = values.restore_checkpoint_dir
  follows = values.follow
  if follows is None:
    follows = (
      values.mode == 'eval'
      and given is None
      and not values.restore_checkpoint_step
    )
  if follows:
    if given is None:
      timeout_s = resolved.task_p.train.follow_timeout_s
      runners.place.wait_for(job_log_dir, world=world, timeout_s=timeout_s)
  elif not values.allow_random_init:
    runners.place.check(
      job_log_dir, None if given is None else fs.expand(given)
    )


def _train(
  values: flags.Values,
  resolved: 'experiment.Resolved',
  job_log_dir: str,
  recording: _Recording,
) -> None:
  from paxlike import runners

  if resolved.train_input_p is None:
    raise errors.ConfigError(
      f'{resolved.name} has nothing to train on: input_p() gives no input '
      'with is_training=True.'
    )
  runners.train.train_and_evaluate_spmd_model(
    resolved.task_p,
    resolved.train_input_p,
    job_log_dir,
    eval_input_p=resolved.eval_input_p,
    eval_on_test=values.eval_on_test,
    decode_input_p=resolved.decode_input_p,
    decode=resolved.decode,
    restore_checkpoint_step=next(iter(values.restore_checkpoint_step), None),
    recording=recording,
    **_common(values, resolved),
  )


def _evaluate(
  values: flags.Values,
  resolved: 'experiment.Resolved',
  job_log_dir: str,
  recording: _Recording,
) -> None:
  from paxlike import runners

  runners.evaluate.evaluate_spmd_model(
    resolved.task_p,
    resolved.eval_input_p,
    job_log_dir,
    restore_checkpoint_step=values.restore_checkpoint_step,
    follow=values.follow,
    recording=recording,
    **_common(values, resolved),
  )


def _decode(
  values: flags.Values,
  resolved: 'experiment.Resolved',
  job_log_dir: str,
  recording: _Recording,
) -> None:
  from paxlike import runners

  runners.decode.decode_once_spmd_model(
    resolved.task_p,
    resolved.decode_input_p,
    job_log_dir,
    restore_checkpoint_step=values.restore_checkpoint_step,
    decode=resolved.decode,
    allow_random_init=values.allow_random_init,
    follow=bool(values.follow),
    recording=recording,
    **_common(values, resolved),
  )


def _common(
  values: flags.Values, resolved: 'experiment.Resolved'
) -> dict[str, Any]:
  directory = values.restore_checkpoint_dir
  return {
    'checkpoint_p': resolved.checkpoint_p,
    'mesh_p': resolved.mesh_p,
    'restore_checkpoint_dir': None
    if directory is None
    else fs.expand(directory),
  }


def _set_up_logging(verbosity: str, who: str = '') -> None:
  """One line a message, on stderr: the time, who, how bad, what."""
  import logging as std_logging

  logging.use_absl_handler()
  logging.set_verbosity(verbosity)
  logging.get_absl_handler().setFormatter(
    std_logging.Formatter(
      f'%(asctime)s{who} %(levelname).1s %(message)s', '%H:%M:%S'
    )
  )
  if verbosity != 'debug':  # of no use to who did not ask: backends it lacks
    std_logging.getLogger('jax').setLevel(std_logging.WARNING)
  # XLA's C++ code logs past Python; its informative lines are for its authors.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')


def _set_up_compilation_cache(values: flags.Values) -> None:
  if values.compilation_cache:
    compilation_cache.turn_on(values.compilation_cache_dir)
  else:
    compilation_cache.turn_off()


if __name__ == '__main__':
  console()
