"""Reads event files as TensorBoard does, without importing TensorFlow."""

import pathlib
from typing import Any

from tensorboard.compat.proto import event_pb2

from paxlike.reporting import _records


def read_file(path: pathlib.Path) -> list[Any]:
  return [
    event_pb2.Event.FromString(record)
    for record in _records.split(path.read_bytes(), source=str(path))
  ]


def paths(job_log_dir: pathlib.Path, name: str) -> list[pathlib.Path]:
  directory = job_log_dir / 'summaries' / name
  return sorted(directory.iterdir()) if directory.exists() else []


def read_purged(job_log_dir: pathlib.Path, name: str) -> list[Any]:
  """The values of all files in order, each START purging steps from its on."""
  kept: list[Any] = []
  for path in paths(job_log_dir, name):
    for event in read_file(path):
      if event.session_log.status == event.session_log.START:
        kept = [e for e in kept if e.step < event.step]
      elif event.HasField('summary'):
        kept.append(event)
  return kept
