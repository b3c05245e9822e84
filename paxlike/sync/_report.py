"""Who is missing from a meeting, and where they are instead.

Made by one process when a meeting has failed; nothing here runs in a job that
goes well.
"""

import dataclasses
import itertools
import textwrap
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from paxlike.core import clock as clock_lib
from paxlike.sync import _progress as progress_lib
from paxlike.sync import _signs
from paxlike.sync import _store as store_lib
from paxlike.sync import _where as where_lib

if TYPE_CHECKING:
  from paxlike.sync import _meeting

_ANSWER_WAIT_S = 3.0
_LOOK_EVERY_S = 0.1
_PUBLISHING_S = 1.0
_MOST_ASKED = 8

CONDITION = 'is it under a condition such as `if jax.process_index() == 0:`?'


class Reporter:
  """Publishes where this process is, and asks where others are."""

  def __init__(
    self,
    store: store_lib.Store,
    *,
    process_index: int,
    process_count: int,
    main_thread: threading.Thread,
    clock: clock_lib.Clock,
    progress: progress_lib.Progress,
    open_names: Callable[[], list[str]],
    calls: Callable[[str], tuple[bool, int]],
    ask: Callable[[str, list[int], str], None],
  ):
    """Publishes nothing yet.

    Args:
      store: What all processes share.
      process_index: This process.
      process_count: How many there are.
      main_thread: Whose stack comes first.
      clock: For waiting.
      progress: Of this process.
      open_names: The meetings that this process waits in.
      calls: Whether its main thread has made a call, and how many in all.
      ask: Sends a question (its id, to whom, about which call).
    """
    self._store = store
    self._index = process_index
    self._count = process_count
    self._main_thread = main_thread
    self._clock = clock
    self._progress = progress
    self._open_names = open_names
    self._calls = calls
    self._ask = ask
    self._serial = itertools.count()

  def here(self, *, with_stack: bool) -> where_lib.Where:
    """Where this process is now."""
    return where_lib.here(
      self._index,
      at=str(self._progress.mark()),
      meetings=self._open_names(),
      with_stack=with_stack,
      main_thread=self._main_thread,
    )

  def publish_here(self) -> None:
    """Leaves word where this process waits, in case it cannot answer later."""
    self._store.set(
      f'here/{self._index}',
      self.here(with_stack=False).to_bytes(),
      overwrite=True,
    )

  def answer(self, question: str, *, with_stack: bool, about: str = '') -> None:
    """Tells where this process is, and how far in respect of a call."""
    signs = self._signs(about) if about else None
    where = dataclasses.replace(self.here(with_stack=with_stack), signs=signs)
    self._store.set(f'answer/{question}/{self._index}', where.to_bytes())

  def _signs(self, about: str) -> _signs.Signs:
    # The count of ticks first: a call that is made in between was not missed.
    mark = self._progress.mark()
    called, calls = self._calls(about)
    return _signs.read(
      self._main_thread,
      called=called,
      calls=calls,
      ticks=mark.ticks,
      is_patient=mark.is_patient,
    )

  def ask(
    self, processes: Iterable[int], *, about: str = ''
  ) -> dict[int, where_lib.Where]:
    """Where processes are, with stacks; those that do not answer are left out.

    Takes until all have answered, three seconds at most. Only the first eight
    are asked.

    Args:
      processes: Which ones.
      about: A call: how far are they in respect of it?
    """
    asked = sorted(processes)[:_MOST_ASKED]
    if not asked:
      return {}
    return self.collect(
      len(asked),
      lambda question: self._ask(question, asked, about),
      timeout_s=_ANSWER_WAIT_S,
    )

  def collect(
    self,
    count: int,
    post: Callable[[str], None],
    *,
    timeout_s: float,
  ) -> dict[int, where_lib.Where]:
    """Posts a question and waits for its answers.

    Args:
      count: How many answers are expected.
      post: Sends the question, given its name.
      timeout_s: How long to wait for answers.
    """
    question = f'{self._index}-{next(self._serial)}'
    post(question)
    deadline_s = self._clock.monotonic_s() + timeout_s
    answers: dict[str, bytes] = {}
    while len(answers) < count and self._clock.monotonic_s() < deadline_s:
      self._clock.sleep_s(_LOOK_EVERY_S)
      answers = self._store.list(f'answer/{question}')
    found = map(where_lib.Where.from_bytes, answers.values())
    return {where.process_index: where for where in found}

  def not_seen(self, meeting: '_meeting.Meeting') -> set[int]:
    """Those who have not left word that they wait in a meeting.

    Who has only just come has not either.
    """
    missing = set(meeting.needed) - {self._index}
    known = self._known()
    return missing - {i for i in known if meeting.name in known[i].meetings}

  def missing(
    self, meeting: '_meeting.Meeting'
  ) -> tuple[set[int], dict[int, where_lib.Where]]:
    """Who has not made the call of a meeting, as far as known; and answers."""
    missing = self.not_seen(meeting)
    answers = self.ask(missing, about=meeting.call)
    here = {i for i, at in answers.items() if at.signs and at.signs.called}
    return missing - here, {i: answers[i] for i in answers.keys() - here}

  def timeout_text(self, meeting: '_meeting.Meeting') -> tuple[str, list[int]]:
    """The error text and the missing processes of a meeting that expired."""
    known = self._known()
    missing = self.not_seen(meeting)
    answers = self.ask(missing)
    missing -= {i for i, at in answers.items() if meeting.name in at.meetings}
    first = (
      f'The {meeting.kind} {meeting.name!r} did not end within '
      f'{meeting.timeout_s:.0f} s: {len(missing)} of {self._count} processes '
      f'did not come: {indices(missing)}.'
    )
    return self._text(first, missing, known, answers), sorted(missing)

  def mismatch_text(self, meeting: '_meeting.Meeting', other: str) -> str:
    """The error text of two meetings that wait for each other."""
    known = self._known_soon()
    there = {i for i, at in known.items() if other in at.meetings}
    ours = {i for i, at in known.items() if meeting.name in at.meetings}
    ours |= {self._index}
    answers = self.ask([*sorted(there)[:1], *sorted(ours)[:1]])
    first = (
      'Processes wait for each other in different barriers.\n'
      f'  {other!r}: processes {indices(there)}\n'
      f'  {meeting.name!r}: processes {indices(ours)}\n'
      'Every process must make the same calls in the same order. One of these '
      f'is made by some alone; {CONDITION}'
    )
    shown = sorted(there)[:1] + sorted(ours)[:1]
    return self._text(first, shown, known, answers)

  def _known_soon(self) -> dict[int, where_lib.Where]:
    """Like `_known`, once those who came with us had time to leave word."""
    deadline_s = self._clock.monotonic_s() + _PUBLISHING_S
    known = self._known()
    while len(known) < self._count and self._clock.monotonic_s() < deadline_s:
      self._clock.sleep_s(_LOOK_EVERY_S)
      known = self._known()
    return known

  def _known(self) -> dict[int, where_lib.Where]:
    found = map(where_lib.Where.from_bytes, self._store.list('here').values())
    return {where.process_index: where for where in found}

  def _text(
    self,
    first: str,
    shown: Iterable[int],
    known: dict[int, where_lib.Where],
    answers: dict[int, where_lib.Where],
  ) -> str:
    lines = [first]
    for index in sorted(shown)[:_MOST_ASKED]:
      if index in answers:
        lines.append(f'  {answers[index]}')
        lines.append(textwrap.indent(answers[index].stack, '    '))
        continue
      last = known.get(index)
      lines.append(
        f'  process {index} does not answer: dead, stopped, or cut off'
        + (f'; when last heard of, {last}' if last else '')
      )
    return '\n'.join(lines)


def indices(processes: Iterable[int]) -> str:
  """Process numbers for people: '0-3, 7'; 'none' if there are none."""
  ordered = sorted(processes)
  runs = []
  for _, run in itertools.groupby(
    enumerate(ordered), lambda item: item[1] - item[0]
  ):
    members = [index for _, index in run]
    first, last = members[0], members[-1]
    runs.append(str(first) if first == last else f'{first}-{last}')
  return ', '.join(runs) or 'none'
