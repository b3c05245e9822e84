"""Which of the workers that ended together was the cause of it.

One death ends all, and a survivor whose collective broke may be heard of
before the dead. So nobody is named until all have told how they ended; the
others wait for nothing else meanwhile, since none of them can begin anew
before.
"""

import dataclasses
from collections.abc import Collection, Mapping

from paxlike.elastic import _facts

# The strongest evidence that there is names the cause.
_OWN = 3
_EVIDENCE = {
  _facts.End.KILLED: _OWN,
  _facts.End.CRASHED: _OWN,
  _facts.End.DAMAGED: _OWN,
  _facts.End.ABORTED: 2,
  _facts.End.BROKEN: 1,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
  """A generation was given up.

  Attributes:
    what: Happened, in words.
    plan: Of that generation.
    until_s: When its cause is no longer waited for.
    named: The cause where it is known already.
  """

  what: str
  plan: _facts.Plan
  until_s: float
  named: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """What a fault was.

  Attributes:
    what: Happened, in words.
    culprits: Agents that are named; all that is known of how they ended.
    failed: Those of them whose worker is the cause, beyond doubt.
  """

  what: str
  culprits: tuple[str, ...]
  failed: tuple[str, ...] = ()

  def in_words(self, workers: Mapping[str, _facts.Worker]) -> str:
    """What happened, and the last words of whom it happened to."""
    texts = []
    for name in self.culprits:
      text = workers[name].text if name in workers else ''
      texts.append(f'{name}: {text}' if text else name)
    return f'{self.what}: {"; ".join(texts)}' if texts else self.what


def judge(
  fault: Fault,
  workers: Mapping[str, _facts.Worker],
  *,
  lost: Collection[str],
  now_s: float,
) -> Verdict | None:
  """Names the cause of a fault; None if that is not known yet.

  Args:
    fault: It.
    workers: Of its generation, by agent, as far as they are known.
    lost: Members that are gone, or were there anew.
    now_s: The time.
  """
  if fault.named:
    return Verdict(what=fault.what, culprits=fault.named)
  left = {name: w.end for name, w in workers.items() if name not in lost}
  if now_s < fault.until_s and not all(left.values()):
    return None
  evidence = {
    name: _EVIDENCE[end]
    for name, end in left.items()
    if end is not None and end in _EVIDENCE
  }
  most = max(evidence.values(), default=0)
  if lost and most < _OWN:
    return Verdict(what='a host was lost', culprits=tuple(sorted(lost)))
  culprits = tuple(name for name, found in evidence.items() if found == most)
  failed = tuple(
    name
    for name in culprits
    if most == _OWN and left[name] is not _facts.End.DAMAGED
  )
  return Verdict(what=fault.what, culprits=culprits, failed=failed)
