"""TensorBoard event files: their names and their messages.

Promises: TensorFlow is not imported. Values are the kinds that every
TensorBoard reader since 2015 knows for scalars, and the plugins' tensors for
text; images are PNG.
"""

import importlib
import os
import socket
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paxlike.core import fs
from paxlike.reporting import _records

_NUM_BUCKETS = 30
_PREFIX = 'events.out.tfevents.'


def new_file_name(directory: str, *, now_s: float) -> str:
  """A name that no other start takes and that sorts after those present.

  Readers take files in the order of their names, and purge by that order:
  neither a clock that went back nor two starts in one second may change it.
  """
  stamp_us = int(now_s * 1e6)
  for name in _names_in(directory):
    parts = name.removeprefix(_PREFIX).split('.')
    if name.startswith(_PREFIX) and len(parts) > 1:
      digits = f'{parts[0]}{parts[1]:0>6}'
      if digits.isdecimal() and len(parts[1]) <= 6:
        stamp_us = max(stamp_us, int(digits) + 1)
  second, micro = divmod(stamp_us, 1_000_000)
  return (
    f'{_PREFIX}{second:010d}.{micro:06d}.{socket.gethostname()}.{os.getpid()}.'
    f'{uuid.uuid4().hex[:8]}'
  )


def _names_in(directory: str) -> list[str]:
  try:
    return fs.for_path(directory).list_dir(directory)
  except FileNotFoundError:
    return []  # An object store has no empty directory.


def header(*, wall_time_s: float, purge_step: int | None) -> bytes:
  """The first records of a file.

  Args:
    wall_time_s: When the file was begun.
    purge_step: Readers drop what earlier files say of this step and of later
      ones; None drops nothing.
  """
  version = _new_event(wall_time_s, 0)
  version.file_version = 'brain.Event:2'
  records = _frame(version)
  if purge_step is not None:
    start = _new_event(wall_time_s, purge_step)
    start.session_log.status = start.session_log.START
    records += _frame(start)
  return records


def scalars(
  step: int, values: Mapping[str, int | float], *, wall_time_s: float
) -> bytes:
  """One record with a scalar for each tag."""
  event = _new_event(wall_time_s, step)
  for tag, value in values.items():
    event.summary.value.add(tag=tag, simple_value=value)
  return _frame(event)


def text(step: int, tag: str, content: str, *, wall_time_s: float) -> bytes:
  """One record with a text, which TensorBoard shows as Markdown."""
  event = _new_event(wall_time_s, step)
  value = event.summary.value.add(tag=tag)
  value.metadata.plugin_data.plugin_name = 'text'
  value.tensor.dtype = 7  # DT_STRING
  value.tensor.tensor_shape.dim.add(size=1)
  value.tensor.string_val.append(content.encode())
  return _frame(event)


def histogram(
  step: int, tag: str, values: np.ndarray, *, wall_time_s: float
) -> bytes:
  """One record with the histogram of the finite ones of `values`."""
  flat = np.asarray(values, np.float64).ravel()
  flat = flat[np.isfinite(flat)]
  event = _new_event(wall_time_s, step)
  histo = event.summary.value.add(tag=tag).histo
  if flat.size:
    counts, edges = _buckets(flat)
    histo.min, histo.max = float(flat.min()), float(flat.max())
    histo.num = float(flat.size)
    histo.sum, histo.sum_squares = float(flat.sum()), float(flat @ flat)
    # A bucket goes from the limit before it; the first one from -infinity.
    histo.bucket_limit.extend([float(edges[0]), *edges[1:].tolist()])
    histo.bucket.extend([0.0, *counts.astype(float).tolist()])
  return _frame(event)


def image(
  step: int, tag: str, pixels: np.ndarray, *, wall_time_s: float
) -> bytes:
  """One record with what `to_pixels` gave."""
  event = _new_event(wall_time_s, step)
  proto = event.summary.value.add(tag=tag).image
  proto.height, proto.width, proto.colorspace = pixels.shape
  proto.encoded_image_string = _png(pixels)
  return _frame(event)


def to_pixels(tag: str, values: Any) -> np.ndarray:
  """Bytes of [height, width, channels], as a copy.

  Args:
    tag: Names the image in errors.
    values: [height, width] or [height, width, 1, 3 or 4]; floats are in 0..1,
      integers in 0..255.
  """
  pixels = np.array(values)
  if pixels.ndim == 2:
    pixels = pixels[..., None]
  if pixels.ndim != 3 or pixels.shape[-1] not in (1, 3, 4):
    raise ValueError(
      f'Image {tag!r} has the shape {pixels.shape}, must be [height, width] '
      'or [height, width, 1, 3 or 4].'
    )
  if not np.issubdtype(pixels.dtype, np.integer):
    pixels = np.rint(np.nan_to_num(pixels.astype(np.float32)) * 255.0)
  return np.clip(pixels, 0, 255).astype(np.uint8)


def _buckets(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  try:
    return np.histogram(values, bins=_NUM_BUCKETS)
  except ValueError:
    # All values are too near each other to be told apart by 30 limits.
    return np.array([values.size]), np.array([values.min(), values.max()])


def _png(pixels: np.ndarray) -> bytes:
  height, width, channels = pixels.shape
  color_type = {1: 0, 3: 2, 4: 6}[channels]
  rows = np.zeros((height, 1 + width * channels), np.uint8)
  rows[:, 1:] = pixels.reshape(height, -1)
  size = struct.pack('>2I5B', width, height, 8, color_type, 0, 0, 0)
  chunks: Sequence[tuple[bytes, bytes]] = (
    (b'IHDR', size),
    (b'IDAT', zlib.compress(rows.tobytes())),
    (b'IEND', b''),
  )
  return b'\x89PNG\r\n\x1a\n' + b''.join(
    struct.pack('>I', len(data))
    + kind
    + data
    + struct.pack('>I', zlib.crc32(kind + data))
    for kind, data in chunks
  )


def _new_event(wall_time_s: float, step: int) -> Any:
  protos: Any = importlib.import_module('tensorboard.compat.proto.event_pb2')
  return protos.Event(wall_time=wall_time_s, step=step)


def _frame(event: Any) -> bytes:
  return _records.frame(event.SerializeToString())
