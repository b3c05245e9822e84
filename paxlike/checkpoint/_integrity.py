"""Checksums, and frames that make a small file prove itself.

Promises: every flipped bit, cut, hole or exchange of a framed file is found
when it is opened, the frame's own header included. What is inside is the
caller's.

A frame is 48 bytes, little-endian, then the payload:

    8 bytes  magic 'paxl.ckp'      8 bytes  step
    2 bytes  format                16 bytes attempt id
    2 bytes  kind                  8 bytes  length of the payload
    4 bytes  crc32c of these 44 bytes (magic..length) and then the payload
"""

import enum
import struct
from typing import Any

import numpy as np
from awscrt import checksums

from paxlike.core import errors

MAGIC = b'paxl.ckp'
FORMAT = 1
BLOCK_BYTES = 1 << 20
_HEAD = struct.Struct('<8sHHq16sQ')
_CRC = struct.Struct('<I')
HEADER_BYTES = _HEAD.size + _CRC.size


class Kind(enum.IntEnum):
  """What a frame holds, so that one file cannot pass for another."""

  MANIFEST = 1
  INDEX = 2
  ITEM = 3
  MSGPACK = 4
  DATA_HEADER = 5


def crc32c(data: Any, start: int = 0) -> int:
  """CRC-32C of bytes or of a uint8 array, going on from `start`.

  Other threads go on meanwhile.
  """
  return checksums.crc32c(data, start)


def block_crcs(extent: np.ndarray) -> list[int]:
  """CRC-32C of each 1 MiB of a flat uint8 array."""
  return [
    crc32c(extent[at : at + BLOCK_BYTES])
    for at in range(0, extent.size, BLOCK_BYTES)
  ]


def pack(payload: bytes, *, kind: Kind, step: int, attempt: bytes) -> bytes:
  """Puts a payload into a frame."""
  head = _HEAD.pack(MAGIC, FORMAT, kind, step, attempt, len(payload))
  crc = crc32c(payload, crc32c(head))
  return b''.join((head, _CRC.pack(crc), payload))


class Frame:
  """A framed file that is seen part after part and judged at its end.

  Args:
    head: Its first bytes; more of them are not looked at.
    path: The file's name, for the messages.
    size_bytes: Of the whole file.

  Raises:
    CheckpointDamagedError: It does not begin as a frame.
  """

  def __init__(self, head: bytes, *, path: str, size_bytes: int):
    self._path = path
    self._size_bytes = size_bytes
    if len(head) < HEADER_BYTES:
      raise self._damaged(
        f'it has {len(head)} bytes, fewer than the {HEADER_BYTES} of a header'
      )
    self._fields = _HEAD.unpack_from(head)
    if self._fields[0] != MAGIC:
      raise self._damaged(f'it begins with {self._fields[0]!r}, not {MAGIC!r}')
    (self._wanted_crc,) = _CRC.unpack_from(head, _HEAD.size)
    self._crc = crc32c(head[: _HEAD.size])

  def _damaged(self, what: str) -> errors.CheckpointDamagedError:
    return errors.CheckpointDamagedError(f'{self._path} is damaged: {what}.')

  def add(self, payload: Any) -> None:
    """Sums up the next part of the payload."""
    self._crc = crc32c(payload, self._crc)

  def check(
    self,
    *,
    kind: Kind,
    step: int | None = None,
    attempt: bytes | None = None,
    verify: bool = True,
  ) -> None:
    """Says what is wrong with the file; arguments as those of `unpack`.

    Raises:
      CheckpointDamagedError: The file is not what was written.
    """
    _, version, found_kind, found_step, found_attempt, length = self._fields
    # The sum is looked at before the fields: a flipped bit in a field must read
    # as damage, not as another version or another step.
    if verify and self._crc != self._wanted_crc:
      payload_bytes = self._size_bytes - HEADER_BYTES
      if length != payload_bytes:
        raise self._damaged(
          f'its payload has {payload_bytes} bytes where its header says '
          f'{length}'
        )
      raise self._damaged(
        f'bytes 0 to {self._size_bytes} do not match their checksum'
      )
    if version != FORMAT:
      raise errors.CheckpointDamagedError(
        f'{self._path} has format {version}; this version of paxlike reads '
        f'{FORMAT}.'
      )
    if found_kind != kind:
      raise self._damaged(f'it holds kind {found_kind}, not {kind.name}')
    if step is not None and found_step != step:
      raise self._damaged(f'it belongs to step {found_step}, not {step}')
    if attempt is not None and found_attempt != attempt:
      raise self._damaged(
        'it belongs to another attempt to save this step than the MANIFEST '
        'beside it'
      )


def unpack(
  data: bytes,
  *,
  kind: Kind,
  path: str,
  step: int | None = None,
  attempt: bytes | None = None,
  verify: bool = True,
) -> bytes:
  """Takes the payload out of a frame, or says what is wrong with the file.

  Args:
    data: The whole file.
    kind: What it must hold.
    path: The file's name, for the message.
    step: The step that it must belong to; None takes any.
    attempt: The attempt that it must belong to; None takes any.
    verify: Whether to look at the sum; False trusts the payload.

  Returns:
    The payload.

  Raises:
    CheckpointDamagedError: The file is not what was written.
  """
  frame = Frame(data[:HEADER_BYTES], path=path, size_bytes=len(data))
  payload = memoryview(data)[HEADER_BYTES:].tobytes()
  if verify:
    frame.add(payload)
  frame.check(kind=kind, step=step, attempt=attempt, verify=verify)
  return payload


def attempt_of(data: bytes) -> bytes:
  """The attempt id in a frame that `unpack` has accepted."""
  return _HEAD.unpack_from(data)[4]
