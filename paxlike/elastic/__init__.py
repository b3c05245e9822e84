"""Hosts die and come back, and the training goes on.

A lighthouse decides, an agent on each host obeys, and crash-only workers
train; see docs/design/elastic.md. Nothing here is loaded by a plain run.
"""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.elastic import agent as agent
  from paxlike.elastic import lighthouse as lighthouse
  from paxlike.elastic import local as local
  from paxlike.elastic import worker as worker
  from paxlike.elastic._facts import Policy as Policy
  from paxlike.elastic._messages import load_secret as load_secret
  from paxlike.elastic.handler import elastic_handler as elastic_handler
  from paxlike.elastic.handler import legal_hosts as legal_hosts

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'Policy': '_facts',
    'agent': 'agent',
    'elastic_handler': 'handler',
    'legal_hosts': 'handler',
    'lighthouse': 'lighthouse',
    'load_secret': '_messages',
    'local': 'local',
    'worker': 'worker',
  },
)
