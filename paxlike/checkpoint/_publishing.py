"""Gives a step that is written its manifest, its name and its record.

Process 0 alone does this, once all have written their files durably. From
`write_manifest` on the step exists; nothing that fails later undoes it.
"""

from collections.abc import Sequence

from absl import logging

from paxlike.checkpoint import (
  _following,
  _history,
  _integrity,
  _jobs,
  _layout,
  _manifest,
  _sweep,
)
from paxlike.core import fs
from paxlike.protos import checkpoint_pb2 as pb


class Publication:
  """The end of one attempt, on process 0."""

  def __init__(
    self, place: _jobs.Place, job: _jobs.Job, attempt: _jobs.Attempt
  ):
    self._place = place
    self._job = job
    self._attempt = attempt
    self._fs = place.file_system

  def write_manifest(self, files: list[pb.ProcessFiles]) -> None:
    """Makes the step exist, durably and under its name.

    Raises:
      CheckpointBusyError: Somebody else has taken the directory over.
      OSError: The disk refuses; there is no step.
    """
    job = self._job
    manifest = _manifest.build(
      step=job.step,
      attempt=self._attempt.id,
      kind=self._place.config.type,
      timestamp_s=self._attempt.timestamp_s,
      state=job.state,
      layouts=job.layouts,
      files=files,
      items=[self._write_item(name) for name in sorted(job.items)],
      metrics=job.metrics,
    )
    path = fs.join(self._attempt.directory, _layout.MANIFEST)
    # Whoever has taken over meanwhile may have a step of this number by now.
    self._place.claim.check()
    if not self._fs.atomic_rename:
      self._fs.write_atomic(path, _manifest.pack(manifest))
      self._drop_replaced()
      return
    self._fs.write_new(path, _manifest.pack(manifest))
    self._fs.sync_dir(self._attempt.directory)
    # Rename last: a reader takes the final name as the commit mark.
    # (commit_test.py::test_a_crash_at_any_call_leaves_a_whole_step)
    self._move_into_place()
    self._fs.sync_dir(self._place.directory)

  def _drop_replaced(self) -> None:
    """Removes files of a step that was overwritten in place."""
    if not self._job.overwrite:
      return
    try:
      if _sweep.hides_damage(self._fs, self._attempt.directory):
        return
      self._drop_replaced_in(self._attempt.directory)
    except OSError as e:
      # The new version is there; the manifest does not name the old files.
      logging.warning('Step %d: old files stay: %s', self._job.step, e)

  def _drop_replaced_in(self, directory: str) -> None:
    for name in self._fs.list_dir(directory):
      path = fs.join(directory, name)
      if self._fs.is_dir(path):  # of one process
        self._drop_replaced_in(path)
      elif not (_layout.is_mark(name) or self._attempt.tag in name):
        self._fs.remove(path)

  def _write_item(self, name: str) -> pb.Item:
    encoding, payload = self._job.items[name]
    data = _integrity.pack(
      payload,
      kind=_integrity.Kind.ITEM,
      step=self._job.step,
      attempt=self._attempt.id,
    )
    file = f'{name}{self._attempt.tag}'
    self._fs.write_new(fs.join(self._attempt.directory, file), data)
    return pb.Item(
      name=name,
      file=file,
      encoding=encoding,
      size=len(data),
      crc32c=_integrity.crc32c(data),
    )

  def _move_into_place(self) -> None:
    final = fs.join(self._place.directory, _layout.step_name(self._job.step))
    if self._fs.exists(final):
      self._make_way(final)
      if not self._fs.exists(self._attempt.directory):
        return
    self._fs.rename(self._attempt.directory, final)

  def _make_way(self, final: str) -> None:
    """Takes away what has the name: a step to overwrite, or a broken one."""
    if self._fs.exists(fs.join(final, _layout.PIN)):
      # The pin is on the step, whatever version of it is there.
      self._fs.write_new(fs.join(self._attempt.directory, _layout.PIN), b'')
      self._fs.sync_dir(self._attempt.directory)
    if not self._fs.exists(fs.join(final, _layout.MANIFEST)):
      # It had one when it got its name: somebody has damaged it.
      _sweep.set_aside(self._fs, final, now_s=self._place.clock.now_s())
      return
    if self._fs.exchange(self._attempt.directory, final):
      old = self._attempt.directory
      name = _layout.step_name(self._job.step)
      target = fs.join(
        self._place.directory,
        _layout.deleting_name(
          name, now_s=self._place.clock.now_s(), count=9999
        ),
      )
      self._fs.rename(old, target)
      _sweep.remove(self._fs, [target])
      return
    _sweep.remove(
      self._fs,
      _sweep.hide(
        self._fs,
        self._place.directory,
        [fs.base_name(final)],
        clock=self._place.clock,
      ),
    )

  def new_history(self) -> tuple[list[_history.Record], list[str]]:
    """The history with this step, written down, and what it has no more."""
    place, job = self._place, self._job
    reasons = {r.step: r.keep_reason for r in job.records}
    record = _history.Record(
      job.step,
      self._attempt.timestamp_s,
      place.config.type,
      # What was preserved for good stays so when it is overwritten.
      reasons.get(job.step, ''),
      dict(job.metrics),
    )
    records = sorted(
      [*(r for r in job.records if r.step != job.step), record],
      key=lambda r: r.step,
    )
    # The step exists, whatever fails from here on.
    kept, surplus = records, []
    try:
      kept, surplus = _apply_policy(place, records, spare=job.step)
    except OSError as e:
      logging.warning('Step %d: old steps stay for now: %s', job.step, e)
    try:
      _history.store(self._fs, place.directory, kept)
    except OSError as e:
      # The next start rebuilds the file.
      logging.warning('Step %d: history not written: %s', job.step, e)
      if not self._fs.atomic_rename:
        # What is listed must stay there, else it would be taken for damaged.
        kept, surplus = records, []
    return kept, surplus

  def hide(self, surplus: Sequence[str]) -> list[str]:
    """Takes surplus steps out of sight, now that the new one is durable."""
    try:
      return _sweep.hide(
        self._fs, self._place.directory, surplus, clock=self._place.clock
      )
    except OSError as e:
      logging.warning('Old steps not removed, left for later: %s', e)
      return []


def _apply_policy(
  place: _jobs.Place, records: Sequence[_history.Record], *, spare: int
) -> tuple[list[_history.Record], list[str]]:
  """Decides what goes; a pinned or leased step, and `spare`, never do.

  Steps that somebody removed by hand are forgotten and count for nothing.

  Returns:
    The records that stay and the names of the directories that go.
  """
  names = _history.committed_names(place.file_system, place.directory)
  records = [record for record in records if record.step in names]
  decision = _sweep.decide(records, place.keep_policy)
  now_s = place.clock.now_s()
  held = _following.held(
    place.file_system, place.directory, decision.surplus, now_s=now_s
  )
  surplus = {}
  for step in decision.surplus:
    path = fs.join(place.directory, names[step])
    if (
      step not in (spare, *held)
      and not _sweep.is_held(place.file_system, path, now_s=now_s)
      and not _sweep.hides_damage(place.file_system, path)
    ):
      surplus[step] = names[step]
  marked = {record.step: record for record in decision.kept}
  kept = [marked.get(r.step, r) for r in records if r.step not in surplus]
  return kept, list(surplus.values())
