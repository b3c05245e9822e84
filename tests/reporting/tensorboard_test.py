import json
import re
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from paxlike import reporting


def write(directory, steps, *, start_step: int) -> None:
  with reporting.SummaryWriter(
    str(directory), 'train', start_step=start_step
  ) as writer:
    for step in steps:
      writer.scalars(step, {'loss': 1 / step})
    writer.text(start_step + 1, 'note', '# Model')
    writer.histogram(start_step + 1, 'weights', np.arange(9.0))
    writer.image(start_step + 1, 'sample', np.eye(4))


@pytest.mark.timeout(60)
@pytest.mark.parametrize('loader', ['--load_fast=true', '--load_fast=false'])
def test_a_real_tensorboard_shows_all_of_it_and_each_step_once(
  tmp_path, loader
):
  write(tmp_path, range(1, 151), start_step=0)
  write(tmp_path, range(101, 201), start_step=100)
  command = [sys.executable, '-m', 'tensorboard.main', loader]
  command += ['--logdir', str(tmp_path / 'summaries'), '--port', '0']
  with subprocess.Popen(
    [*command, '--host', '127.0.0.1', '--reload_interval', '0'],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  ) as server:
    try:
      assert server.stdout is not None
      said = iter(server.stdout)
      port = next(m[1] for s in said if (m := re.search(r':(\d+)/ \(', s)))

      def get(what: str):
        url = f'http://127.0.0.1:{port}/data/plugin/{what}'
        with urllib.request.urlopen(url, timeout=30) as answer:
          return json.load(answer)

      points = get('scalars/scalars?run=train&tag=loss')
      assert [step for _, step, _ in points] == list(range(1, 201))
      assert get('text/tags') == {'train': ['note']}
      assert list(get('histograms/tags')['train']) == ['weights']
      assert list(get('images/tags')['train']) == ['sample']
    finally:
      server.terminate()
