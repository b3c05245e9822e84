"""Small things to configure: every kind of field and of node."""

import dataclasses
import datetime
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional

import fiddle as fdl
import numpy as np

if TYPE_CHECKING:
  from nowhere import Unreadable


class Colour(enum.Enum):
  RED = 'r'
  BLUE = 'b'


FLOAT32 = np.dtype('float32')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
  peak: float = 1.0
  floor: float = 0.0

  def __post_init__(self) -> None:
    if self.floor > self.peak:
      raise ValueError('floor above peak')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
  steps: int
  rate: float = 0.1
  is_fast: bool = False
  name: str = 'train'
  limit: int | None = None
  clip: Optional[float] = None  # noqa: UP045 - the old spelling must work
  every: datetime.timedelta | None = None
  colour: Colour = Colour.RED
  mode: Literal['fast', 'slow', 3] = 'fast'
  sizes: tuple[int, ...] = (1, 2)
  pair: tuple[str, float] = ('a', 1.0)
  names: list[str] = dataclasses.field(default_factory=list)
  rules: tuple[tuple[str, str | None], ...] = ()
  table: Mapping[str, int] = dataclasses.field(default_factory=dict)
  dtype: np.dtype = FLOAT32
  loose_dtype: str | type[Any] | np.dtype = 'float32'
  anything: Any = None
  hook: Callable[..., Any] | None = None
  order: Sequence[int] = ()
  files: str | Sequence[str] = ''
  schedule: Schedule = Schedule()
  fresh: Schedule = dataclasses.field(default_factory=Schedule)
  unreadable: 'Unreadable' = 5


class Model:
  def __init__(
    self, *, width: int, depth: int = 2, act: Callable[..., Any] = abs
  ):
    self.width, self.depth, self.act = width, depth, act


class BigModel(Model):
  pass


class _HidingMeta(type):
  def __call__(cls, *args: Any, **kwargs: Any) -> Any:
    return super().__call__(*args, **kwargs)


class Hidden(metaclass=_HidingMeta):
  """A class whose metaclass hides its constructor, as nnx does."""

  def __init__(self, width: int, *, bias: bool = True):
    self.width, self.bias = width, bias


class Task:
  def __init__(
    self,
    *,
    model: Callable[..., Model],
    train: Train,
    layers: Sequence[Model] = (),
    options: dict[str, Any] | None = None,
  ):
    self.model, self.train = model, train
    self.layers, self.options = layers, options


def untyped(width=3, rate=0.5, flag=False, shape=(4, 4), note=None):
  return width, rate, flag, shape, note


def variadic(first, *rest, **named):
  return first, rest, named


def double(x: float) -> float:
  return 2 * x


def task_p() -> fdl.Config[Task]:
  return fdl.Config(
    Task,
    model=fdl.Partial(Model, width=8),
    train=fdl.Config(Train, steps=10),
    layers=[fdl.Config(Model, width=1), fdl.Config(Model, width=2)],
    options={'alpha': 1, 'inner': fdl.Config(untyped)},
  )


class WidthTag(fdl.Tag):
  """Marks widths."""
