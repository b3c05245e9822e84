"""What a config node can hold: the names, types and defaults of its fields.

Works alike for `fdl.Config`, `fdl.Partial` and frozen dataclasses, and for
classes whose metaclass hides the constructor's signature.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

_EMPTY = inspect.Parameter.empty
# typing.get_type_hints raises these on annotations that only a type checker
# can follow, such as names imported under TYPE_CHECKING.
_UNREADABLE = (NameError, AttributeError, TypeError, SyntaxError, ValueError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
  """One field of a config node.

  Attributes:
    name: As written in a path.
    annotation: Its type; `Any` where none is given or none can be read.
    default: The value if unset; `Field.REQUIRED` where it must be set.
    factory: Makes the default, for a dataclass field that has one.
    is_keyword_only: Whether it cannot be given by position.
  """

  REQUIRED: typing.ClassVar[Any] = _EMPTY

  name: str
  annotation: Any = Any
  default: Any = _EMPTY
  factory: Callable[[], Any] | None = None
  is_keyword_only: bool = False

  def value_if_unset(self) -> Any:
    """The default, made anew if a factory makes it; or `REQUIRED`."""
    return self.factory() if self.factory is not None else self.default


def of(target: Callable[..., Any]) -> dict[str, Field]:
  """The fields that can be set by name when `target` is called.

  Args:
    target: A class or function.

  Returns:
    Field by name, in the order of the signature; `*args` and `**kwargs` have
    none.
  """
  try:
    signature, source = _signature(target)
  except ValueError:  # some builtins have none
    return {}
  annotations = _annotations(source, signature)
  factories = _factories(target)
  return {
    name: Field(
      name=name,
      annotation=annotations.get(name, Any),
      default=_EMPTY if name in factories else parameter.default,
      factory=factories.get(name),
      is_keyword_only=parameter.kind is parameter.KEYWORD_ONLY,
    )
    for name, parameter in signature.parameters.items()
    if parameter.kind
    in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
  }


def annotations_of(cls: type) -> dict[str, Any]:
  """The readable annotations in the bodies of a class and its bases."""
  found: dict[str, Any] = {}
  for base in reversed(cls.__mro__):
    module = inspect.getmodule(base)
    scope = {**vars(module)} if module else {}
    for name, annotation in inspect.get_annotations(base).items():
      found[name] = _evaluate(annotation, scope)
  return found


def is_config(value: Any) -> bool:
  """Whether `value` is a dataclass instance, thus has fields to reach into."""
  return dataclasses.is_dataclass(value) and not isinstance(value, type)


def arguments_of(value: Any) -> dict[str, Any]:
  """The constructor arguments that make a dataclass instance again."""
  return {
    field.name: getattr(value, field.name)
    for field in dataclasses.fields(value)
    if field.init
  }


def _signature(
  target: Callable[..., Any],
) -> tuple[inspect.Signature, Any]:
  """The most telling signature, and the function its annotations belong to."""
  source = target.__init__ if isinstance(target, type) else target
  signature = inspect.signature(target)
  kinds = {parameter.kind for parameter in signature.parameters.values()}
  hidden = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
  if isinstance(target, type) and kinds == hidden:
    # A metaclass call, as with nnx modules: look at what it calls in the end.
    own = list(inspect.signature(source).parameters.values())
    signature = signature.replace(parameters=own[1:])
  is_data = isinstance(target, type) and dataclasses.is_dataclass(target)
  return signature, target if is_data else source


def _annotations(source: Any, signature: inspect.Signature) -> dict[str, Any]:
  if isinstance(source, type):
    return annotations_of(source)
  scope = getattr(inspect.unwrap(source), '__globals__', {})
  return {
    name: _evaluate(parameter.annotation, scope)
    for name, parameter in signature.parameters.items()
    if parameter.annotation is not _EMPTY
  }


def _evaluate(annotation: Any, scope: dict[str, Any]) -> Any:
  probe = types.SimpleNamespace(__annotations__={'field': annotation})
  try:
    return typing.get_type_hints(probe, globalns=scope)['field']
  except _UNREADABLE:
    return Any


def _factories(target: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
  if not (isinstance(target, type) and dataclasses.is_dataclass(target)):
    return {}
  return {
    field.name: field.default_factory
    for field in dataclasses.fields(target)
    if field.default_factory is not dataclasses.MISSING
  }
