"""Asks, while a meeting waits, whether those who are missing can still come.

Done by one of those that wait, and only for meetings that main threads have
called: these come in one order, so a main thread beyond the place of a call
will never make it.
"""

import re
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from absl import logging

from paxlike.sync import _report, _signs
from paxlike.sync import _where as where_lib

if TYPE_CHECKING:
  from paxlike.sync import _meeting

FIRST_S = 2.0
_EVERY_S = 5.0
_SELDOM_AFTER_S = 30.0
_SELDOM_EVERY_S = 30.0
_TELL_AFTER_S = 10.0


def kind_of(name: str) -> str:
  """What the meetings of one line of a program have in common."""
  return re.sub(r'\d+', '#', name)


class Doubt:
  """The doubts about one meeting, kept by one process."""

  def __init__(
    self,
    meeting: '_meeting.Meeting',
    reporter: '_report.Reporter',
    monotonic_s: Callable[[], float],
    *,
    is_proven: bool,
  ):
    """Asks nobody yet.

    Args:
      meeting: Which one.
      reporter: Asks the others.
      monotonic_s: The time.
      is_proven: Whether all processes have come to one of its kind before:
        then the program has the call right, and who is missing is late.
    """
    self._meeting = meeting
    self._reporter = reporter
    self._monotonic_s = monotonic_s
    self._is_proven = is_proven
    self._is_told = False
    self._still: dict[int, tuple[float, _signs.Signs]] = {}
    self.next_s = meeting.since_s + FIRST_S

  def look(self) -> tuple[str, list[int]] | None:
    """Asks if it is time; the error text and who will not come, or None."""
    if self._monotonic_s() < self.next_s:
      return None
    missing, answers = self._reporter.missing(self._meeting)
    now_s = self._monotonic_s()
    waited_s = now_s - self._meeting.since_s
    seldom = waited_s > _SELDOM_AFTER_S
    self.next_s = now_s + (_SELDOM_EVERY_S if seldom else _EVERY_S)
    for index in sorted(missing):
      if index in answers and (why := self._why(answers[index], now_s)):
        return self._text(answers[index], why, missing), [index]
    if answers and waited_s >= _TELL_AFTER_S and not self._is_told:
      self._is_told = True
      self._tell(waited_s, answers)
    return None

  def _why(self, where: where_lib.Where, now_s: float) -> str:
    signs, meeting = where.signs, self._meeting
    if signs is None or meeting.ordinal is None:
      return ''
    why = signs.went_past(ordinal=meeting.ordinal, ticks=meeting.ticks)
    if why or self._is_proven:
      return why
    index = where.process_index
    since_s, before = self._still.get(index, (now_s, signs))
    # Those that announce a call have done with their devices before.
    may_be_busy = meeting.call == meeting.name
    if not signs.sleeps_since(before, may_be_busy=may_be_busy):
      since_s, before = now_s, signs
    self._still[index] = since_s, before
    if now_s - since_s < _signs.ASLEEP_S:
      return ''
    return (
      f'has slept for {now_s - since_s:.0f} s at {signs.place}, and no call of '
      'this kind has ever brought all processes together'
    )

  def _text(self, where: where_lib.Where, why: str, missing: set[int]) -> str:
    meeting = self._meeting
    lines = [
      f'Process {where.process_index} never called {meeting.call!r}: it {why}. '
      f'Every process must make this call; {_report.CONDITION}',
      f'  {where}',
      textwrap.indent(where.stack, '    '),
    ]
    if len(missing) > 1:
      lines.append(f'  Not there either: {_report.indices(missing)}.')
    return '\n'.join(lines)

  def _tell(self, waited_s: float, answers: dict[int, where_lib.Where]) -> None:
    shown = '\n'.join(
      f'  {where}\n{textwrap.indent(where.stack, "    ")}'
      for _, where in sorted(answers.items())
    )
    logging.warning(
      '%r still lacks processes after %.0f s; they are here:\n%s',
      self._meeting.name,
      waited_s,
      shown,
    )
