"""Nearest names, for errors that say what was probably meant."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, limit: int = 3) -> list[str]:
  """The known names that look most like `name`, best first.

  Case does not count, and a name is also near where only its last dotted part
  is.

  Args:
    name: What was typed.
    known: What could have been typed.
    limit: At most so many are returned.

  Returns:
    Near names; empty if none comes close.
  """
  candidates = list(dict.fromkeys(known))
  lowered = name.lower()
  last = lowered.rpartition('.')[2]

  def likeness(candidate: str) -> float:
    other = candidate.lower()
    return max(
      difflib.SequenceMatcher(None, lowered, other).ratio(),
      difflib.SequenceMatcher(None, last, other.rpartition('.')[2]).ratio(),
    )

  scored = [(likeness(candidate), candidate) for candidate in candidates]
  scored = [pair for pair in scored if pair[0] >= 0.6]
  scored.sort(key=lambda pair: -pair[0])
  return [candidate for _, candidate in scored[:limit]]


def hint(name: str, known: Iterable[str], *, limit: int = 12) -> str:
  """A sentence to end an error with: the near names, else all there are.

  Args:
    name: What was typed.
    known: What could have been typed.
    limit: When no name is near, at most so many of `known` are listed.

  Returns:
    'Did you mean a or b?', 'Known: a, b, c.', or 'There is none.'.
  """
  candidates = list(dict.fromkeys(known))
  near = nearest(name, candidates)
  if near:
    return f'Did you mean {" or ".join(near)}?'
  if not candidates:
    return 'There is none.'
  more = f', and {len(candidates) - limit} more' * (len(candidates) > limit)
  return f'Known: {", ".join(candidates[:limit])}{more}.'
