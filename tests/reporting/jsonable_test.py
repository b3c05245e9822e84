import dataclasses
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from paxlike import reporting


@dataclasses.dataclass
class Point:
  x: float
  y: np.ndarray


@pytest.mark.parametrize(
  ('value', 'expected'),
  [
    (None, None),
    (True, True),
    ('text', 'text'),
    (3, 3),
    (np.int64(3), 3),
    (np.bool_(True), True),
    (np.float32(0.5), 0.5),
    (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    (np.array(7), 7),
    (np.zeros((0, 3)), []),
    (np.array(['a', 'b']), ['a', 'b']),
    (jnp.array([1.5, 2.0], jnp.bfloat16), [1.5, 2.0]),
    (np.array([1.0, np.nan, -np.inf]), [1.0, 'NaN', '-Infinity']),
    (math.nan, 'NaN'),
    (np.float32('inf'), 'Infinity'),
    ((1, (2, None)), [1, [2, None]]),
    ({'a': {3: np.ones(1)}}, {'a': {'3': [1.0]}}),
    ({'b', 'a'}, ['a', 'b']),
    (b'caf\xc3\xa9 \xff', 'café \\xff'),
    (Point(1.0, np.array([2])), {'x': 1.0, 'y': [2]}),
    (
      [np.ones(1), np.ones(2), 'ragged', None],
      [[1.0], [1.0, 1.0], 'ragged', None],
    ),
    (np.array([None, 'x', 1.5], object), [None, 'x', 1.5]),
    (np.array([1 + 2j]), {'real': [1.0], 'imag': [2.0]}),
  ],
)
def test_values_become_what_json_can_say(value, expected):
  result = reporting.to_jsonable(value)
  assert result == expected
  assert json.loads(json.dumps(result, allow_nan=False)) == expected


def test_what_has_no_form_is_named_by_its_type():
  with pytest.raises(TypeError, match='of type function'):
    reporting.to_jsonable({'a': [print, lambda: 0][1]})
  with pytest.raises(TypeError, match='key of type tuple'):
    reporting.to_jsonable({(1, 2): 3})
