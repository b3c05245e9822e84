"""Fitting a saved state into the one that is asked for.

Promises: leaves that do not fit are all named in one error, before a byte of
them is read; every restored array has memory of its own, so that donating it
is safe and deleting the step does not change it.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from paxlike.checkpoint import _boxes, _config, _memory, _state, _stores
from paxlike.checkpoint._stores import requests
from paxlike.core import errors, trees
from paxlike.protos import checkpoint_pb2 as pb

_MAX_LISTED = 20


@dataclasses.dataclass(frozen=True)
class Report:
  """What became of every leaf.

  Attributes:
    restored: Leaves that came from the checkpoint.
    initialised: Leaves of the target that did not, and are as they were given.
    ignored: Leaves of the checkpoint that nobody asked for.
    bytes_read: Bytes of array data that this process read.
    duration_s: Seconds from the choice of the step to the last array.
  """

  restored: tuple[str, ...] = ()
  initialised: tuple[str, ...] = ()
  ignored: tuple[str, ...] = ()
  bytes_read: int = 0
  duration_s: float = 0.0

  def __str__(self) -> str:
    text = (
      f'{len(self.restored)} arrays, {self.bytes_read:,} bytes in '
      f'{self.duration_s:.2f} s'
    )
    if self.initialised:
      text += f'; {len(self.initialised)} more are not taken from it'
    if self.ignored:
      text += f'; {len(self.ignored)} others in it are not needed here'
    return text


@dataclasses.dataclass(frozen=True)
class Restored:
  """A restored step.

  Attributes:
    step: Its number.
    state: What was asked for, with its values.
    items: The further items, by name.
    report: Which leaves came from where.
  """

  step: int
  state: Any
  items: Mapping[str, Any]
  report: Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
  """Which leaves are to be restored, and what may differ.

  Attributes:
    only: Regular expression; only leaves whose whole name matches.
    allow_missing: Leaves that may be absent from the checkpoint.
    allow_extra: Leaves of the checkpoint that the target may lack.
    cast: Whether floating values may come back in another floating dtype.
  """

  only: str | None = None
  allow_missing: str | None = None
  allow_extra: str | None = None
  cast: bool = False

  def __post_init__(self) -> None:
    for name in ('only', 'allow_missing', 'allow_extra'):
      _config.check_pattern(name, getattr(self, name))

  def wants(self, name: str) -> bool:
    """Whether a leaf is to be restored at all."""
    return self.only is None or _matches(self.only, name)


def _matches(pattern: str | None, name: str) -> bool:
  return pattern is not None and re.fullmatch(pattern, name) is not None


@dataclasses.dataclass(frozen=True)
class _Fit:
  """A leaf of the target and where its value comes from.

  Attributes:
    name: Its name.
    target: What was asked for.
    number: Array of the manifest, or None if `value` is the answer.
    value: The answer where no array is read.
  """

  name: str
  target: Any
  number: int | None
  value: Any = None


@dataclasses.dataclass(frozen=True)
class Match:
  """How a target's leaves are filled, in the order of `jax.tree.leaves`."""

  fits: tuple[_Fit, ...]
  report: Report


def match(
  target: Any, manifest: pb.Manifest, selection: Selection, *, where: str
) -> Match:
  """Finds a saved leaf for every leaf that is asked for.

  Args:
    target: The state to fill: abstract or concrete arrays and scalars.
    manifest: Of the step.
    selection: Which leaves, and what may differ.
    where: The step's directory, for the message.

  Raises:
    RestoreMismatchError: Leaves are missing, too many, or differ; all of
      them are listed.
  """
  saved = _state.leaves_of(manifest.tree)
  infos = _state.infos_of(manifest)
  wanted = trees.flatten_with_names(target, keep_empty=True)
  fits: list[_Fit] = []
  restored: list[str] = []
  initialised: list[str] = []
  problems: list[str] = []
  for name, leaf in wanted:
    if not selection.wants(name):
      fit, problem = _Fit(name, leaf, None, leaf), ''
      initialised.append(name)
    elif name not in saved:
      fit, problem = _Fit(name, leaf, None, leaf), ''
      initialised.append(name)
      if not _matches(selection.allow_missing, name):
        problem = f'{name}: missing from the checkpoint, wanted {_text(leaf)}'
    else:
      fit, problem = _fit(name, leaf, saved[name], infos, selection)
      restored.append(name)
    if problem:
      problems.append(problem)
    if not isinstance(leaf, trees.Empty):
      fits.append(fit)
  names = {name for name, _ in wanted}
  ignored = [name for name in saved if name not in names]
  problems.extend(
    f'{name}: only in the checkpoint, {_saved_text(saved[name], infos)}'
    for name in ignored
    if selection.wants(name) and not _matches(selection.allow_extra, name)
  )
  if problems:
    raise _mismatch(problems, manifest.step, where)
  return Match(
    tuple(fits), Report(tuple(restored), tuple(initialised), tuple(ignored))
  )


def _mismatch(
  problems: list[str], step: int, where: str
) -> errors.RestoreMismatchError:
  lines = ''.join(f'\n  {p}' for p in problems[:_MAX_LISTED])
  more = len(problems) - _MAX_LISTED
  if more > 0:
    lines += f'\n  and {more} more'
  return errors.RestoreMismatchError(
    f'Step {step} in {where} does not fit this state: {len(problems)} leaves '
    f'differ.{lines}\nSee what it holds: paxlike ckpt show {where}'
  )


def _text(leaf: Any) -> str:
  if isinstance(leaf, trees.Empty):
    return f'empty {leaf.type_name}'
  info = _state.describe('', leaf)
  return f'a Python {type(leaf).__name__}' if info is None else str(info)


def _saved_text(leaf: Any, infos: list[_state.ArrayInfo]) -> str:
  if isinstance(leaf, _state.SavedArray):
    return str(infos[leaf.number])
  if isinstance(leaf, _state.SavedScalar):
    return f'a Python {type(leaf.value).__name__}'
  return f'empty {leaf.type_name}'


def _fit(
  name: str,
  leaf: Any,
  saved: Any,
  infos: list[_state.ArrayInfo],
  selection: Selection,
) -> tuple[_Fit, str]:
  """Fits one leaf; the text says what is wrong, '' if nothing is."""

  def problem() -> str:
    return (
      f'{name}: checkpoint {_saved_text(saved, infos)}, wanted {_text(leaf)}'
    )

  if isinstance(leaf, trees.Empty):
    return _Fit(name, leaf, None, leaf), '' if leaf == saved else problem()
  want = _state.describe(name, leaf)
  if want is None:
    if isinstance(saved, _state.SavedScalar) and (
      type(saved.value) is type(leaf)
    ):
      return _Fit(name, leaf, None, saved.value), ''
    return _Fit(name, leaf, None, leaf), problem()
  if not isinstance(saved, _state.SavedArray):
    return _Fit(name, leaf, None, leaf), problem()
  have = infos[saved.number]
  fits = (
    have.shape == want.shape
    and have.prng_impl == want.prng_impl
    and (
      have.dtype == want.dtype
      or (selection.cast and _is_float(have) and _is_float(want))
    )
  )
  if not fits:
    return _Fit(name, leaf, None, leaf), problem()
  uneven = _boxes.uneven(getattr(leaf, 'sharding', None), tuple(leaf.shape))
  text = f'{name}: {want} cannot be cut so: {uneven}' if uneven else ''
  return _Fit(name, leaf, saved.number), text


def _is_float(info: _state.ArrayInfo) -> bool:
  return bool(jax.numpy.issubdtype(info.dtype, np.floating))


def fill(
  target: Any, found: Match, manifest: pb.Manifest, reader: _stores.Reader
) -> Any:
  """Reads what a match needs and builds the state.

  Args:
    target: What was matched.
    found: The match.
    manifest: Of the step.
    reader: Its open files.

  Returns:
    The target's structure with the values of the checkpoint.
  """
  infos = _state.infos_of(manifest)
  slabs = _memory.Slabs()
  builds = [
    None if fit.number is None else _Build(fit.target, fit.number, infos, slabs)
    for fit in found.fits
  ]
  reader.read([r for b in builds if b is not None for r in b.requests])
  leaves = []
  for i, fit in enumerate(found.fits):
    build, builds[i] = builds[i], None
    leaves.append(fit.value if build is None else build.finish())
  return jax.tree.unflatten(jax.tree.structure(target), leaves)


class _Build:
  """One array that is being restored: what to read, then what to make."""

  def __init__(
    self,
    target: Any,
    number: int,
    infos: list[_state.ArrayInfo],
    slabs: _memory.Slabs,
  ):
    self._target = target
    self._info = infos[number]
    self._sharding = (
      None
      if isinstance(target, (np.ndarray, np.generic))
      else self._raw_sharding()
    )
    # A NumPy array may be kept for long, and would keep its neighbours' memory.
    self._slabs = None if self._sharding is None else slabs
    self._by_box: dict[_boxes.Box, requests.Request] = {}
    shape = self._info.shape
    if self._sharding is None:
      self._add(number, _boxes.whole(shape))
      return
    for box in _boxes.local_boxes(self._sharding, shape):
      self._add(number, box)

  def _add(self, number: int, box: _boxes.Box) -> None:
    if box not in self._by_box:
      self._by_box[box] = requests.make(number, box, self._info, self._slabs)

  @property
  def requests(self) -> list[requests.Request]:
    """What has to be read before `finish`."""
    return [r for r in self._by_box.values() if r.box.size]

  def _raw_sharding(self) -> jax.sharding.Sharding:
    sharding = getattr(self._target, 'sharding', None)
    if sharding is None:
      device = jax.local_devices()[0]
      return jax.sharding.SingleDeviceSharding(device)
    if not self._info.prng_impl:
      return sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
      # Of the key data: the words of a key are never apart.
      rank = len(self._info.shape)
      spec = [*sharding.spec, *([None] * (rank - len(sharding.spec)))]
      return jax.sharding.NamedSharding(
        sharding.mesh,
        jax.sharding.PartitionSpec(*spec),
        memory_kind=sharding.memory_kind,
      )
    return sharding

  def finish(self) -> Any:
    """Makes the array of what was read."""
    if self._sharding is None:
      (request,) = self._by_box.values()
      value = self._cast(request.out)
      if isinstance(self._target, np.generic):
        return value[()]
      return value
    values = {box: self._cast(r.out) for box, r in self._by_box.items()}
    self._by_box = {}
    shape = self._info.shape
    # The devices may take this memory over instead of copying it, several of
    # them the same; nobody writes to it again.
    # (restore_test.py::test_donating_a_restored_state_changes_only_it)
    array = jax.make_array_from_callback(
      shape,
      self._sharding,
      lambda index: values[_boxes.from_index(index or (), shape)],
    )
    if self._info.prng_impl:
      return jax.random.wrap_key_data(array, impl=self._info.prng_impl)
    if array.dtype != self._target.dtype:
      raise errors.RestoreMismatchError(
        f'{self._info.name}: JAX makes {array.dtype} of {self._target.dtype}; '
        'set jax_enable_x64 to restore it.'
      )
    return array

  def _cast(self, value: np.ndarray) -> np.ndarray:
    if self._info.prng_impl or value.dtype == self._target.dtype:
      return value
    return value.astype(self._target.dtype)
