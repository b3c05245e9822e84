"""Turns what models and NumPy give into what JSON can say, and no further.

NaN and the infinities have no number in JSON: they become the strings 'NaN',
'Infinity' and '-Infinity', which `float()` reads back.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def to_jsonable(value: Any) -> Any:
  """A copy of `value` out of dict, list, str, int, float, bool and None.

  Arrays (NumPy or JAX, bfloat16 included) become nested lists, their scalars
  numbers, tuples and sets lists, dataclasses dicts, bytes text in which what
  is no UTF-8 is escaped.

  Raises:
    TypeError: Something in it has no such form; the message names its type.
  """
  if value is None or isinstance(value, bool | str):
    return value
  if isinstance(value, int):
    return int(value)
  if isinstance(value, float):
    return _number(value)
  if isinstance(value, bytes):
    return value.decode('utf-8', errors='backslashreplace')
  if isinstance(value, Mapping):
    return {_name(key): to_jsonable(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [to_jsonable(item) for item in value]
  if isinstance(value, set | frozenset):
    return sorted((to_jsonable(item) for item in value), key=str)
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return to_jsonable(
      {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    )
  if hasattr(value, '__array__'):
    return _array(np.asarray(value))
  raise TypeError(
    f'A value of type {type(value).__name__} has no form in JSON: {value!r:.80}'
  )


def dumps(value: Any) -> str:
  """One line of strict JSON."""
  return json.dumps(to_jsonable(value), ensure_ascii=False, allow_nan=False)


def _number(value: float) -> float | str:
  if math.isfinite(value):
    return float(value)
  if math.isnan(value):
    return 'NaN'
  return 'Infinity' if value > 0 else '-Infinity'


def _name(key: Any) -> str:
  if isinstance(key, str):
    return key
  if isinstance(key, bool | int | float | np.generic):
    return str(key)
  raise TypeError(
    f'A key of type {type(key).__name__} has no form in JSON: {key!r:.80}'
  )


def _array(array: np.ndarray) -> Any:
  if array.dtype.kind in 'biu':
    return array.tolist()
  if array.dtype.kind in 'OSU':
    items = array.tolist()
    return to_jsonable(items)
  if array.dtype.kind == 'c':
    return to_jsonable({'real': np.real(array), 'imag': np.imag(array)})
  # The small floats of ml_dtypes are of kind 'V' and know only astype.
  values = array.astype(np.float64)
  if np.isfinite(values).all():
    return values.tolist()
  return to_jsonable(values.tolist())
