"""Compares a language model's bits per byte with gzip on the same bytes.

    python benchmarks/text_compression.py JOB_LOG_DIR

Reads the last evaluation of `JOB_LOG_DIR`, rebuilds its test inputs from the
recorded config, and compresses exactly the bytes that were predicted.
"""

import gzip
import pathlib
import sys

import numpy as np

from paxlike import config, reporting
from paxlike.runners import session


def evaluated_bytes(source) -> bytes:
  """Every byte that counts in an evaluation of `source`, in its order."""
  parts = []
  for position in range(source.num_batches):
    batch = source.read(position, range(source.batch_size))
    parts.append(batch['targets'][batch['weights'] > 0])
  return np.concatenate(parts).astype(np.uint8).tobytes()


def main() -> None:
  """Prints one line an input; exit status 1 if gzip wins."""
  job_log_dir = pathlib.Path(sys.argv[1]).expanduser()
  recorded = (job_log_dir / 'config' / 'eval.json').read_text()
  roots = config.dump.from_json(recorded)
  is_beaten = True
  for source in session.build_inputs(roots['eval_input_p']):
    last = reporting.read_metrics(str(job_log_dir), f'eval_test_{source.name}')
    ours = last[-1]['bits_per_byte']
    content = evaluated_bytes(source)
    theirs = 8 * len(gzip.compress(content, 9)) / len(content)
    print(
      f'{source.name} at step {last[-1]["step"]}: {ours:.3f} bits per byte '
      f'on {len(content)} held-out bytes; gzip -9 needs {theirs:.3f}'
    )
    is_beaten &= ours < theirs
  if not is_beaten:
    sys.exit('gzip -9 needs fewer bits: train for more steps.')


if __name__ == '__main__':
  main()
