"""Choosing a step, and reading it on every process or on none.

Process 0 chooses and reads MANIFEST, all others get both from it, so no two
processes can restore different steps. A step that vanishes while it is being
read was swept: the newest one is looked for again.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

from absl import logging

from paxlike.checkpoint import (
  _boxes,
  _first,
  _history,
  _integrity,
  _jobs,
  _layout,
  _leases,
  _manifest,
  _state,
  _stores,
)
from paxlike.checkpoint import _restore as restore_lib
from paxlike.checkpoint._stores import requests
from paxlike.core import disks, errors, fs
from paxlike.protos import checkpoint_pb2 as pb

_MAX_TRIES = 50
_EMPTY_LOOKS = 5
_OK, _VANISHED, _DAMAGED, _DENIED, _MISMATCH, _FAILED = (
  'ok',
  'vanished',
  'damaged',
  'denied',
  'mismatch',
  'failed',
)
_ERRORS = {
  _VANISHED: errors.CheckpointNotFoundError,
  _DAMAGED: errors.CheckpointDamagedError,
  _DENIED: errors.CheckpointAccessError,
  _MISMATCH: errors.RestoreMismatchError,
  _FAILED: errors.CheckpointError,
}


@dataclasses.dataclass(frozen=True)
class _Chosen:
  """A step that process 0 chose.

  Attributes:
    step: Its number.
    path: Its directory.
    manifest: The bytes of its manifest, unchecked.
  """

  step: int
  path: str
  manifest: bytes


class Restoring:
  """One restore, on all processes together.

  Attributes:
    damaged: The steps that were passed over, the same on every process.
  """

  def __init__(
    self,
    place: _jobs.Place,
    *,
    name: str,
    selection: restore_lib.Selection,
    takes_lease: bool,
  ):
    self._place = place
    self._fs = place.file_system
    self._name = name
    self._selection = selection
    self._takes_lease = takes_lease
    self.damaged: set[int] = set()

  def run(self, target: Any, step: int | None) -> restore_lib.Restored:
    """Restores `step`, or the newest one that can be.

    Raises:
      CheckpointError: As told by `CheckpointManager.restore`.
    """
    for number in range(_MAX_TRIES):
      with contextlib.ExitStack() as stack:
        chosen = self._choose(number, step, stack)
        result, status, text = self._try(target, chosen)
        status, text, error = self._agree(number, status, text, result)
      if status == _OK:
        assert isinstance(result, restore_lib.Restored)
        logging.info(
          'Step %d restored from %s: %s.',
          chosen.step,
          chosen.path,
          result.report,
        )
        return result
      if status == _VANISHED and step is None:
        logging.info('%s was deleted while being read.', chosen.path)
        continue
      if status == _DAMAGED and step is None and self._place.config.fallback:
        logging.warning('%s Falling back to the step before.', text)
        self.damaged.add(chosen.step)
        continue
      if status == _DAMAGED and step is None:
        text += (
          ' To go on from the newest whole step: --set '
          'checkpoint_p.fallback=true. To see all damage: paxlike ckpt verify '
          f'{self._place.directory}'
        )
      raise _ERRORS[status](text) from error
    raise errors.CheckpointNotFoundError(
      f'No step of {self._place.directory} stayed long enough to be read, in '
      f'{_MAX_TRIES} tries.'
    )

  # --- process 0

  def _choose(
    self,
    number: int,
    step: int | None,
    stack: contextlib.ExitStack,
  ) -> _Chosen:
    def look() -> bytes:
      try:
        chosen = self._look(step, stack)
      except errors.PaxlikeError:
        raise
      except FileNotFoundError as e:
        raise errors.CheckpointNotFoundError(str(e)) from e
      except PermissionError as e:
        where = str(e.filename or self._place.directory)
        raise disks.unreadable(where, e) from e
      except OSError as e:
        raise errors.CheckpointError(str(e)) from e
      head = json.dumps({'step': chosen.step, 'path': chosen.path})
      return head.encode() + b'\n' + chosen.manifest

    data = _first.ask(
      self._place.world,
      f'{self._name}/{number}/chosen',
      look,
      timeout_s=self._place.config.timeout_s,
    )
    head, _, manifest = data.partition(b'\n')
    found = json.loads(head)
    return _Chosen(found['step'], found['path'], manifest)

  def _look(self, step: int | None, stack: contextlib.ExitStack) -> _Chosen:
    directory = self._place.directory
    for attempt in range(_MAX_TRIES):
      names = _history.committed_names(self._fs, directory)
      if not names and attempt < _EMPTY_LOOKS:
        # The only step that was listed may have been swept meanwhile, with
        # its successor in place only after the listing.
        # (disks_test.py::test_a_reader_beside_a_sweep_never_fails...)
        continue
      candidates = [s for s in names if s not in self.damaged]
      if step is None:
        _history.check_newest(
          self._fs, directory, names, fallback=self._place.config.fallback
        )
      if step is not None and step not in names:
        raise errors.CheckpointNotFoundError(
          self._nothing(f'no step {step}', list(names))
        )
      if not candidates:
        what = (
          f'only damaged steps, {sorted(self.damaged)}'
          if self.damaged
          else 'no step'
        )
        raise errors.CheckpointNotFoundError(self._nothing(what, []))
      chosen = candidates[-1] if step is None else step
      path = fs.join(directory, names[chosen])
      stack.enter_context(self._leased(path))
      try:
        return _Chosen(chosen, path, _manifest.read_raw(self._fs, path))
      except errors.CheckpointNotFoundError:
        if step is not None:
          raise
    raise errors.CheckpointNotFoundError(
      self._nothing('no step that stays', [])
    )

  def _nothing(self, what: str, steps: list[int]) -> str:
    wrong = _layout.explain_bad_directory(self._fs, self._place.directory)
    if wrong:
      return wrong
    has = f'It has {steps}.' if steps else 'No complete checkpoint is there.'
    beneath = fs.join(self._place.directory, 'checkpoints')
    if not steps and self._fs.is_dir(beneath):
      has = f'Did you mean {beneath}?'
    return f'There is {what} in {self._place.directory}. {has}'

  @contextlib.contextmanager
  def _leased(self, path: str) -> Iterator[None]:
    """Asks the trainer not to sweep a step while it is read.

    A reader that may not write there does without: its open files outlive
    the names, and else it looks for the next step.
    """
    if not self._takes_lease:
      yield
      return
    config, clock = self._place.config, self._place.clock
    lease = _leases.Lease(
      self._fs, path, duration_s=config.lease_s, clock=clock
    )
    try:
      yield
    finally:
      lease.release()

  # --- every process

  def _try(
    self, target: Any, chosen: _Chosen
  ) -> tuple[restore_lib.Restored | BaseException, str, str]:
    try:
      return self._read(target, chosen), _OK, ''
    except requests.VanishedError as e:
      is_there = self._fs.exists(fs.join(chosen.path, _layout.MANIFEST))
      return e, _DAMAGED if is_there else _VANISHED, str(e)
    except errors.CheckpointDamagedError as e:
      return e, _DAMAGED, str(e)
    except errors.CheckpointAccessError as e:
      return e, _DENIED, str(e)
    except errors.RestoreMismatchError as e:
      return e, _MISMATCH, str(e)
    except Exception as e:  # noqa: BLE001 (told to every process)
      return e, _FAILED, f'{type(e).__name__}: {e}'

  def _agree(
    self,
    number: int,
    status: str,
    text: str,
    result: restore_lib.Restored | BaseException,
  ) -> tuple[str, str, BaseException | None]:
    """The worst that happened to any process, on all of them."""
    world = self._place.world
    answers = [
      json.loads(data)
      for data in world.gather(
        f'{self._name}/{number}/read',
        json.dumps({'status': status, 'text': text}).encode(),
        timeout_s=self._place.config.timeout_s,
      )
    ]
    error = result if isinstance(result, BaseException) else None
    for kind in (_FAILED, _DENIED, _MISMATCH, _DAMAGED, _VANISHED):
      for process, answer in enumerate(answers):
        if answer['status'] == kind:
          where = '' if len(answers) == 1 else f' (process {process})'
          return kind, answer['text'] + where, error
    return _OK, '', None

  def _read(self, target: Any, chosen: _Chosen) -> restore_lib.Restored:
    started_s = time.monotonic()
    manifest = _manifest.parse_in(chosen.manifest, chosen.path)
    items = self._read_items(manifest, chosen.path)
    reader = _stores.open_step(
      self._fs,
      chosen.path,
      manifest,
      process=self._place.world.process_index,
      verify=self._place.config.verify,
    )
    try:
      if target is None:
        state, report = read_all(manifest, reader)
      else:
        found = restore_lib.match(
          target, manifest, self._selection, where=chosen.path
        )
        state = restore_lib.fill(target, found, manifest, reader)
        report = found.report
    finally:
      reader.close()
    report = dataclasses.replace(
      report,
      bytes_read=reader.bytes_read,
      duration_s=time.monotonic() - started_s,
    )
    return restore_lib.Restored(chosen.step, state, items, report)

  def _read_items(self, manifest: pb.Manifest, path: str) -> dict[str, Any]:
    return {
      item.name: read_item(self._fs, path, manifest, item)
      for item in manifest.items
    }


def read_item(
  file_system: fs.FileSystem, path: str, manifest: pb.Manifest, item: pb.Item
) -> Any:
  """Reads and checks one item of a step."""
  payload = requests.read_framed(
    file_system,
    fs.join(path, item.file),
    kind=_integrity.Kind.ITEM,
    manifest=manifest,
    size=item.size,
    crc=item.crc32c,
  )
  return _jobs.decode_item(item.encoding, payload)


def read_all(
  manifest: pb.Manifest, reader: _stores.Reader
) -> tuple[Any, restore_lib.Report]:
  """Reads a whole step into plain containers of NumPy arrays."""
  infos = _state.infos_of(manifest)
  wanted = [
    requests.make(i, _boxes.whole(info.shape), info)
    for i, info in enumerate(infos)
  ]
  reader.read([r for r in wanted if r.box.size])
  state = _state.rebuild(manifest.tree, lambda i: wanted[i].out)
  names = tuple(_state.leaves_of(manifest.tree))
  return state, restore_lib.Report(restored=names)
