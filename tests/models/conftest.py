"""Tiny models, each made once a session."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from tests.models import tiny


@pytest.fixture(scope='session')
def tiny_lm() -> Callable[..., tiny.TinyLm]:
  """Makes a tiny model of these knobs, once a session."""

  @functools.lru_cache
  def make(**knobs: Any) -> tiny.TinyLm:
    return tiny.TinyLm(**knobs)

  return make
