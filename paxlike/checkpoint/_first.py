"""What process 0 finds or decides is everyone's, and so is its failure."""

import json
from collections.abc import Callable

from paxlike import sync
from paxlike.core import errors


def ask(
  world: sync.World,
  name: str,
  make: Callable[[], bytes],
  *,
  timeout_s: float,
) -> bytes:
  """Runs `make` on process 0 and gives what it returned to all.

  Args:
    world: The processes; all of them call this.
    name: Of the meeting; serves once.
    make: Called on process 0 alone.
    timeout_s: Longest wait for process 0.

  Returns:
    The same bytes on every process.

  Raises:
    PaxlikeError: What `make` raised, of the same class on every process. What
      is none of ours is raised as it is on process 0, and on the others as a
      CheckpointError that names it.
  """
  data: bytes | None = None
  error: Exception | None = None
  if world.process_index == 0:
    try:
      data = b'+' + make()
    except Exception as e:  # noqa: BLE001 (told to every process)
      error = e
      data = b'-' + _describe(e)
  answer = world.broadcast(name, data, timeout_s=timeout_s)
  if error is not None:
    raise error
  if answer[:1] == b'-':
    raise _rebuild(answer[1:])
  return answer[1:]


def _describe(error: Exception) -> bytes:
  # A class that another module derives for itself stands for its parent, and
  # so does one that asks for more than a message.
  ours = (
    kind.__name__
    for kind in type(error).__mro__
    if kind.__module__ == errors.__name__ and '__init__' not in vars(kind)
  )
  name = next(ours, '')
  text = str(error) if name else f'{type(error).__name__}: {error}'
  return json.dumps({'class': name, 'text': text}).encode()


def _rebuild(data: bytes) -> errors.PaxlikeError:
  told = json.loads(data)
  if not told['class']:
    return errors.CheckpointError(f'Process 0 failed with {told["text"]}')
  return getattr(errors, told['class'])(told['text'])
