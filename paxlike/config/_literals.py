"""Python literals in which words need no quotes: [data, mdl], {a: 1}."""

import ast
from typing import Any

# What the parser raises on text that is no literal.
FAILURES = (SyntaxError, ValueError, RecursionError, MemoryError)
WORDS = {
  'none': None,
  'true': True,
  'false': False,
  'inf': float('inf'),
  'nan': float('nan'),
}


def parse(text: str) -> Any:
  """The value that `text` spells; bare words are strings.

  Raises:
    ValueError: It spells none. Or another of `FAILURES`.
  """
  return _value(ast.parse(text.strip(), mode='eval').body)


def _value(node: ast.expr) -> Any:
  match node:
    case ast.Constant(value=value):
      return value
    case ast.Name(id=name):
      return WORDS.get(name.lower(), name)
    case ast.UnaryOp(op=ast.USub(), operand=operand):
      value = _value(operand)
      if isinstance(value, int | float):
        return -value
      raise ValueError(value)
    case ast.Tuple(elts=items):
      return tuple(_value(item) for item in items)
    case ast.List(elts=items):
      return [_value(item) for item in items]
    case ast.Set(elts=items):
      return {_value(item) for item in items}
    case ast.Dict(keys=keys, values=items):
      return {
        _value(key): _value(item)
        for key, item in zip(keys, items, strict=True)
        if key is not None
      }
    case _:
      raise ValueError(node)
