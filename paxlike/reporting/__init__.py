"""What a run leaves to be read: summaries, metrics, status, decode outputs.

Promises: nothing here touches a device; a killed process leaves files that
the next one goes on from, with each step and each key once. What is worth
reporting, and when, is the runners'.
"""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.reporting._goodput import goodput as goodput
  from paxlike.reporting._goodput_log import GoodputLog as GoodputLog
  from paxlike.reporting._jsonable import to_jsonable as to_jsonable
  from paxlike.reporting._key_values import KeyValueWriter as KeyValueWriter
  from paxlike.reporting._key_values import drop_unfinished as drop_unfinished
  from paxlike.reporting._key_values import is_unfinished as is_unfinished
  from paxlike.reporting._key_values import unfinished_steps as unfinished_steps
  from paxlike.reporting._metrics_log import read_metrics as read_metrics
  from paxlike.reporting._pairs import WriteKeyValuePairs as WriteKeyValuePairs
  from paxlike.reporting._pairs import read_key_values as read_key_values
  from paxlike.reporting._params import DecodeParams as DecodeParams
  from paxlike.reporting._progress import ProgressLine as ProgressLine
  from paxlike.reporting._status import Status as Status
  from paxlike.reporting._status import put_status as put_status
  from paxlike.reporting._status import read_status as read_status
  from paxlike.reporting._status import write_status as write_status
  from paxlike.reporting._summaries import SummaryWriter as SummaryWriter

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'DecodeParams': '_params',
    'GoodputLog': '_goodput_log',
    'KeyValueWriter': '_key_values',
    'ProgressLine': '_progress',
    'Status': '_status',
    'SummaryWriter': '_summaries',
    'WriteKeyValuePairs': '_pairs',
    'drop_unfinished': '_key_values',
    'goodput': '_goodput',
    'is_unfinished': '_key_values',
    'put_status': '_status',
    'read_key_values': '_pairs',
    'read_metrics': '_metrics_log',
    'read_status': '_status',
    'to_jsonable': '_jsonable',
    'unfinished_steps': '_key_values',
    'write_status': '_status',
  },
)
