"""Speed and memory of a language-model train step, beside plain JAX.

Runs the same byte-level Transformer, loss, AdamW and batches twice in one
process, steps interleaved: through `models.TransformerLm`, and written by hand
as functions over a dict of (in, out) matrices, its layers unrolled or scanned.
Both must give the same loss. Prints medians and their ratios.

  python benchmarks/step_speed.py [--steps=12] [--model_dim=256]
"""

import argparse
import functools
import pathlib
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from paxlike import models

_VOCAB_SIZE = 256
_EPSILON = 1e-6
_ROPE_BASE = 10_000.0


def main() -> None:
  """Runs the contenders and prints the table."""
  args = _parse_args()
  if args.only:
    _run_alone(args)
    return
  batches = _batches(args)
  contenders = {name: _contender(name, args) for name in _CONTENDERS}
  compiled, states = {}, {}
  for name, (step, state) in contenders.items():
    compiled[name] = step.lower(state, batches[0]).compile()
    states[name] = state
  seconds: dict[str, list[float]] = {name: [] for name in contenders}
  losses: dict[str, list[float]] = {name: [] for name in contenders}
  for batch in batches:
    for name, step in compiled.items():
      start_s = time.perf_counter()
      states[name], loss = step(states[name], batch)
      losses[name].append(float(loss))
      seconds[name].append(time.perf_counter() - start_s)
  np.testing.assert_allclose(
    losses['paxlike'][:3], losses['plain_unrolled'][:3], rtol=1e-4
  )
  _report(args, compiled, seconds)


def _report(args, compiled, seconds) -> None:
  tokens = args.batch_size * args.seq_len
  best_s = min(
    statistics.median(times[2:])
    for name, times in seconds.items()
    if name != 'paxlike'
  )
  print('| step | tokens/s | time / best plain | temp MiB | peak RSS MiB |')
  print('|---|---|---|---|---|')
  for name, times in seconds.items():
    median_s = statistics.median(times[2:])
    temp = compiled[name].memory_analysis().temp_size_in_bytes / 2**20
    peak = _peak_rss_mib(name) if args.rss else float('nan')
    print(
      f'| {name} | {tokens / median_s:.0f} | {median_s / best_s:.3f} '
      f'| {temp:.0f} | {peak:.0f} |'
    )


def _peak_rss_mib(name: str) -> float:
  """Highest resident size of a process that runs only this one."""
  argv = [arg for arg in sys.argv if arg != '--rss']
  out = subprocess.run(
    [sys.executable, *argv, f'--only={name}'],
    check=True,
    capture_output=True,
    text=True,
  )
  return float(out.stdout.split()[-1])


def _run_alone(args) -> None:
  step, state = _contender(args.only, args)
  for batch in _batches(args)[:4]:
    state, loss = step(state, batch)
    loss.block_until_ready()
  # Not getrusage: its maximum is the parent's where that was larger.
  status = pathlib.Path('/proc/self/status').read_text()
  print(int(status.split('VmHWM:')[1].split()[0]) / 1024)


def _batches(args) -> list[jax.Array]:
  draw = np.random.default_rng(0)
  shape = (args.steps, args.batch_size, args.seq_len + 1)
  return list(jnp.asarray(draw.integers(0, _VOCAB_SIZE, shape, np.int32)))


def _train_step(optimizer, loss_fn):
  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, batch):
    params, opt_state = state
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss

  return step


def _cross_entropy(logits, targets):
  return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def _contender(name: str, args):
  """The jitted step and its first state."""
  model = models.functional(
    functools.partial(
      models.TransformerLm,
      vocab_size=_VOCAB_SIZE,
      model_dim=args.model_dim,
      num_layers=args.num_layers,
      num_heads=args.num_heads,
    )
  )
  params = jax.jit(model.init)(jax.random.key(0))['params']
  if name == 'paxlike':

    def loss_fn(params, batch):
      mdl_vars = {'params': params, 'non_trainable': {}}
      logits, _ = model.apply(mdl_vars, '__call__', batch[:, :-1])
      return _cross_entropy(logits, batch[:, 1:])

  else:
    params = _plain_params(params)
    scanned = name == 'plain_scanned'
    if not scanned:
      layers = [
        jax.tree.map(lambda a, i=i: a[i], params['layers'])
        for i in range(args.num_layers)
      ]
      params = {**params, 'layers': layers}

    def loss_fn(params, batch):
      logits = _plain_logits(params, batch[:, :-1], args.num_heads, scanned)
      return _cross_entropy(logits, batch[:, 1:])

  optimizer = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.1)
  )
  return _train_step(optimizer, loss_fn), (params, optimizer.init(params))


_CONTENDERS = ('paxlike', 'plain_unrolled', 'plain_scanned')


def _plain_params(params):
  """The same values as (in, out) matrices, under short names."""
  dim = params['embedding']['table'].shape[1]

  def matrix(kernel, out_dims: int):
    layers, *shape = kernel.shape
    out = int(np.prod(shape[:out_dims]))
    return kernel.reshape(layers, out, -1).swapaxes(1, 2).copy()

  layers = params['layers']
  attention, mlp = layers['attention'], layers['mlp']
  return {
    'embed': params['embedding']['table'].copy(),
    'norm': jnp.ones((dim,)),
    'layers': {
      'norm1': layers['attention_norm']['scale'].copy(),
      'norm2': layers['mlp_norm']['scale'].copy(),
      'q': matrix(attention['query']['kernel'], 2),
      'k': matrix(attention['key']['kernel'], 2),
      'v': matrix(attention['value']['kernel'], 2),
      'o': matrix(attention['out']['kernel'], 1),
      'gate': matrix(mlp['gate']['kernel'], 1),
      'up': matrix(mlp['up']['kernel'], 1),
      'down': matrix(mlp['down']['kernel'], 1),
    },
  }


def _plain_norm(x, scale):
  return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + _EPSILON) * scale


def _plain_rope(x):
  half = x.shape[-1] // 2
  frequency = _ROPE_BASE ** (-jnp.arange(half) / half)
  angle = jnp.arange(x.shape[1])[:, None, None] * frequency
  a, b = x[..., :half], x[..., half:]
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _plain_layer(x, p, num_heads):
  b, t, d = x.shape
  y = _plain_norm(x, p['norm1'])
  q, k, v = (
    (y @ p[name]).reshape(b, t, num_heads, d // num_heads) for name in 'qkv'
  )
  q, k = _plain_rope(q), _plain_rope(k)
  scores = jnp.einsum('bthd,bshd->bhts', q, k) / np.sqrt(d // num_heads)
  scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e30)
  weights = jax.nn.softmax(scores)
  x += jnp.einsum('bhts,bshd->bthd', weights, v).reshape(b, t, d) @ p['o']
  y = _plain_norm(x, p['norm2'])
  return x + (jax.nn.silu(y @ p['gate']) * (y @ p['up'])) @ p['down']


def _plain_logits(params, ids, num_heads, scanned):
  x = params['embed'][ids]
  if scanned:
    x, _ = jax.lax.scan(
      lambda x, p: (_plain_layer(x, p, num_heads), None), x, params['layers']
    )
  else:
    for layer in params['layers']:
      x = _plain_layer(x, layer, num_heads)
  return _plain_norm(x, params['norm']) @ params['embed'].T


def _parse_args():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--steps', type=int, default=12)
  parser.add_argument('--batch_size', type=int, default=8)
  parser.add_argument('--seq_len', type=int, default=256)
  parser.add_argument('--model_dim', type=int, default=256)
  parser.add_argument('--num_layers', type=int, default=4)
  parser.add_argument('--num_heads', type=int, default=4)
  parser.add_argument('--rss', action='store_true', help='measure peak RSS too')
  parser.add_argument('--only', default='', help=argparse.SUPPRESS)
  return parser.parse_args()


if __name__ == '__main__':
  main()
