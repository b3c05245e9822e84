"""Signals as requests, in this very process."""

import os
import signal
import threading

import pytest

from paxlike import sync
from paxlike.sync import _signals


def test_sigterm_asks_and_a_second_one_does_no_harm():
  heard, both = [], threading.Event()

  def ask(name):
    heard.append(name)
    if len(heard) == 2:
      both.set()

  with _signals.asking(ask):
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    # Pending at once, signals of one number are one: send till both came.
    while not both.wait(0.05):
      os.kill(os.getpid(), signal.SIGTERM)
  assert heard[:2] == ['SIGTERM', 'SIGTERM']


def test_the_third_ctrl_c_interrupts_and_the_second_says_so(caplog):
  heard = threading.Semaphore(0)
  with _signals.asking(lambda name: heard.release()):
    for _ in range(2):
      os.kill(os.getpid(), signal.SIGINT)
      assert heard.acquire(timeout=5.0)
    assert 'Stopping already' in caplog.text
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - where it lands varies
      os.kill(os.getpid(), signal.SIGINT)
      threading.Event().wait(5.0)


def test_the_handlers_of_before_come_back():
  before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
  with _signals.asking(lambda name: None):
    assert signal.getsignal(signal.SIGTERM) is not before[0]
  assert before == (
    signal.getsignal(signal.SIGTERM),
    signal.getsignal(signal.SIGINT),
  )


def test_a_process_alone_stops_on_sigterm():
  with sync.bootstrap() as world:
    assert not world.stop.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(200):
      if world.stop.poll():
        break
      threading.Event().wait(0.01)
    assert world.stop.poll()
    assert sync.world() is world
  assert sync.world() is not world
