"""Slow or astray: what a process's signs say, and what they do not."""

import dataclasses
import threading
import time

import pytest

from paxlike.sync import _signs

SLEEPING = _signs.Signs(
  called=False,
  calls=3,
  ticks=7,
  is_patient=False,
  is_own_code=True,
  is_in_jax=False,
  place='train.py:31 in main',
  switches=100,
  cpu_s=1.0,
)


def but(**changes):
  return dataclasses.replace(SLEEPING, **changes)


def test_who_has_begun_a_later_step_went_past_the_call():
  assert 'went on without it, 2 steps further' in SLEEPING.went_past(
    ordinal=3, ticks=5
  )


def test_who_has_made_another_call_in_its_place_went_past_it():
  assert 'another call' in SLEEPING.went_past(ordinal=2, ticks=7)


@pytest.mark.parametrize(('ordinal', 'ticks'), [(3, 7), (4, 8)])
def test_who_is_at_the_place_of_the_call_or_before_it_may_come(ordinal, ticks):
  assert SLEEPING.went_past(ordinal=ordinal, ticks=ticks) == ''


def test_who_has_made_the_call_never_went_past_it():
  assert but(called=True).went_past(ordinal=0, ticks=0) == ''


def test_one_system_call_of_own_code_and_no_computing_is_sleep():
  assert SLEEPING.sleeps_since(but(cpu_s=0.9), may_be_busy=True)


@pytest.mark.parametrize(
  'now',
  [
    but(switches=101),
    but(place='train.py:32 in main'),
    but(cpu_s=2.0),
    but(is_patient=True),
    but(is_own_code=False),
    but(called=True),
    but(ticks=8),
  ],
)
def test_any_sign_of_life_is_no_sleep(now):
  assert not now.sleeps_since(SLEEPING, may_be_busy=False)


def test_where_switches_are_unknown_nothing_is_sleep():
  unknown = but(switches=-1)
  assert not unknown.sleeps_since(unknown, may_be_busy=False)


def test_waiting_for_a_device_is_sleep_only_if_no_device_may_be_at_work():
  before = but(is_own_code=False, is_in_jax=True)
  now = dataclasses.replace(before, switches=150)
  assert now.sleeps_since(before, may_be_busy=False)
  assert not now.sleeps_since(before, may_be_busy=True)


def read(thread):
  return _signs.read(thread, called=False, calls=0, ticks=0, is_patient=False)


def test_a_thread_in_own_code_that_sleeps_is_told_with_its_line():
  over = threading.Lock()
  over.acquire()

  def sleep_here():
    over.acquire()

  thread = threading.Thread(target=sleep_here)
  thread.start()
  try:
    time.sleep(0.1)
    first, second = read(thread), read(thread)
  finally:
    over.release()
    thread.join()
  assert first.is_own_code
  assert first.place.startswith('signs_test.py:')
  assert first.place.endswith(' in sleep_here')
  assert first.switches == second.switches >= 0


def test_a_thread_in_a_library_may_be_at_work():
  over = threading.Event()
  thread = threading.Thread(target=over.wait)
  thread.start()
  try:
    assert not read(thread).is_own_code
  finally:
    over.set()
    thread.join()
