"""Addresses as users write them."""

import pytest

from paxlike.core import errors
from paxlike.sync import _sockets


@pytest.mark.parametrize('address', ['host', 'host:', ':80', 'host:port'])
def test_an_address_without_host_or_port_is_refused(address):
  with pytest.raises(errors.UsageError, match='HOST:PORT'):
    _sockets.split_address(address)


def test_an_ipv6_address_keeps_its_colons():
  assert _sockets.split_address('[fe80::1]:99') == ('fe80::1', 99)
