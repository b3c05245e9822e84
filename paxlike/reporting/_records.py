"""The framing of TFRecord and event files, without TensorFlow.

A record is its length, the masked crc32c of that, the data and their masked
crc32c. Reading stops quietly at a torn last record, which is what a killed
writer leaves, and raises on a damaged one.
"""

import struct
from collections.abc import Iterator

from awscrt import checksums

from paxlike.core import errors

_LENGTH = struct.Struct('<Q')
_CRC = struct.Struct('<I')


def frame(data: bytes) -> bytes:
  """One record that holds `data`."""
  length = _LENGTH.pack(len(data))
  return b''.join(
    (length, _CRC.pack(_masked(length)), data, _CRC.pack(_masked(data)))
  )


def split(content: bytes, *, source: str) -> Iterator[bytes]:
  """Yields the data of each whole record in `content`.

  Args:
    content: A file of records; its last one may be torn.
    source: Names the file in errors.

  Raises:
    ReportingError: A record before the last has other bytes than were written.
  """
  start = 0
  while start + 12 <= len(content):
    length_bytes = content[start : start + 8]
    (length,) = _LENGTH.unpack(length_bytes)
    _check(length_bytes, content[start + 8 : start + 12], source, start)
    end = start + 12 + length
    if end + 4 > len(content):
      return
    data = content[start + 12 : end]
    _check(data, content[end : end + 4], source, start)
    yield data
    start = end + 4


def _check(data: bytes, crc: bytes, source: str, start: int) -> None:
  if _CRC.pack(_masked(data)) != crc:
    raise errors.ReportingError(
      f'The record at byte {start} of {source} is damaged: its checksum does '
      'not fit.'
    )


def _masked(data: bytes) -> int:
  crc = checksums.crc32c(data)
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
