"""Types of numbers by name, without loading NumPy or JAX to ask about them."""

import sys
from typing import Any


def is_dtype(value: Any) -> bool:
  """Whether `value` is a NumPy or JAX type of numbers."""
  numpy = sys.modules.get('numpy')
  if numpy is None:
    return False  # whoever holds a dtype has loaded NumPy
  if isinstance(value, type) and issubclass(value, numpy.generic):
    return True
  # jax.numpy.float32 and its like are objects of this metaclass.
  return isinstance(value, numpy.dtype) or type(value).__name__ == '_ScalarMeta'


def is_dtype_class(cls: Any) -> bool:
  """Whether `cls` is the class of dtypes itself."""
  return (
    isinstance(cls, type)
    and cls.__name__ == 'dtype'
    and cls.__module__ == 'numpy'
  )


def name_of(value: Any) -> str:
  """The name of a dtype in whatever form: 'bfloat16'."""
  return dtype_class()(value).name


def from_name(name: str) -> Any:
  """The NumPy dtype of a name, the types of machine learning included.

  Raises:
    TypeError: There is no such type.
  """
  import ml_dtypes  # noqa: F401 - teaches NumPy bfloat16 and the like

  return dtype_class()(name)


def dtype_class() -> Any:
  """`numpy.dtype`."""
  import numpy as np  # 0.1 s of import, which most settings do not need

  return np.dtype
