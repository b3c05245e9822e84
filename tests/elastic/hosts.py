"""A lighthouse's decisions, and hosts that obey them as fast as can be."""

import dataclasses

from paxlike.elastic import _facts, _membership


class Hosts:
  """Plays a job in steps of a tenth of a second."""

  def __init__(self, *names: str, **policy):
    self.policy = _facts.Policy(
      **{'max_hosts': len(names), 'snapshot_steps': 10, **policy}
    )
    self.now_s = 100.0
    self.membership = _membership.Membership(self.policy, now_s=self.now_s)
    self.agents: dict[str, _facts.Agent] = {}
    self.events: list[dict] = []
    for name in names:
      self.join(name)

  def join(self, name: str, **fields) -> None:
    self.agents[name] = _facts.Agent(
      **{
        'name': name,
        'incarnation': f'{name}-{self.now_s}',
        'host': name,
        'address': f'{name}:1',
        'is_ready': True,
        'port': 5000,
        **fields,
      }
    )

  def change(self, name: str, **fields) -> None:
    self.agents[name] = dataclasses.replace(self.agents[name], **fields)

  def work(self, name: str, **fields) -> None:
    worker = self.agents[name].worker
    assert worker is not None
    self.change(name, worker=dataclasses.replace(worker, **fields))

  def lose(self, name: str) -> None:
    del self.agents[name]
    self.membership.close(name, now_s=self.now_s)

  def run(self, seconds: float = 0.2) -> _facts.Order | None:
    """Lets time pass while hosts beat and obey."""
    order = None
    for _ in range(max(1, round(seconds / 0.1))):
      self.now_s += 0.1
      for agent in list(self.agents.values()):
        self.membership.hear(agent, now_s=self.now_s)
      order = self.membership.look(now_s=self.now_s)
      self.events += self.membership.take_events()
      if order is not None:
        self.obey(order)
    return order

  def obey(self, order: _facts.Order) -> None:
    for name, agent in list(self.agents.items()):
      worker = agent.worker
      generation = worker.generation if worker else -1
      if order.wish is _facts.Wish.HOLD:
        if worker is not None and worker.end is None:
          self.work(name, end=_facts.End.ALONG, text='ended along')
      elif (
        order.plan is not None
        and order.generation > generation
        and name in order.plan.members
        and agent.is_ready
      ):
        rank = order.plan.members.index(name)
        worker = _facts.Worker(generation=order.generation, rank=rank, pid=1)
        self.change(name, worker=worker, plan=order.plan)
      elif name in order.stuck and order.generation == generation:
        self.work(name, end=_facts.End.KILLED, text='was stuck')

  def start(self) -> _facts.Order:
    """Runs until a generation runs; its workers are at step 20."""
    order = self.run(2.0)
    assert order is not None
    assert order.wish is _facts.Wish.RUN
    assert order.plan is not None
    for name in order.plan.members:
      self.work(name, step=20)
    return order

  def told(self, event: str) -> list[dict]:
    return [found for found in self.events if found['event'] == event]


def pieces(process: int, *steps: int, generation: int = 1, count: int = 3):
  return tuple(
    _facts.Piece(
      step=step,
      generation=generation,
      process=process,
      count=count,
      files='',
    )
    for step in steps
  )


def stall(hosts: Hosts, **steps: int) -> None:
  """Workers have done these steps, and no more for 9 seconds."""
  for name, step in steps.items():
    hosts.work(name, step=step, is_timed=True, idle_s=9.0, median_step_s=0.1)


def agent(
  name: str, *pieces: _facts.Piece, incarnation: str = ''
) -> _facts.Agent:
  """An agent with pieces of snapshots."""
  return _facts.Agent(
    name=name,
    incarnation=incarnation,
    host=name,
    address=f'{name}:1',
    pieces=pieces,
  )
