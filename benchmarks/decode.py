"""Tokens a second of greedy decoding, beside transformers on torch.

A Llama-shaped float32 model of 100 M parameters continues the same prompts with
the same weights in both, runs interleaved, and both must give the same tokens.
Also compares with the bound that memory sets: the bytes of parameters and cache
that a token must read, over the bandwidth measured in the same run.

  python benchmarks/decode.py --peer_python=VENV/bin/python

where VENV holds torch and transformers; without it there is no comparison.
"""

import argparse
import functools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

_SHAPE = {
  'vocab_size': 32_000,
  'model_dim': 768,
  'num_layers': 12,
  'num_heads': 12,
  'num_kv_heads': 4,
  'mlp_dim': 2_048,
}
_NORM_EPSILON = 1e-6
_ROPE_BASE = 10_000.0
_BATCH_SIZES = (1, 8)


def main() -> None:
  """Runs both and prints the table."""
  args = _parse_args()
  if args.serve:
    _serve_torch(args)
    return
  ours = _Ours(args)
  with tempfile.TemporaryDirectory() as folder:
    peer = _Peer(args, folder, ours.params) if args.peer_python else None
    print(f'{ours.num_params / 1e6:.1f} M parameters, float32')
    print('| batch | ours tok/s | torch tok/s | ratio | of bound | GB/s |')
    print('|---|---|---|---|---|---|')
    for batch_size in _BATCH_SIZES:
      _measure(args, ours, peer, batch_size)
    if peer:
      peer.close()


def _measure(args, ours, peer, batch_size: int) -> None:
  prompts = np.random.default_rng(batch_size).integers(
    1, _SHAPE['vocab_size'], (batch_size, args.prompt_len), np.int32
  )
  our_s, peer_s, bandwidths = [], [], []
  for repeat in range(args.repeats + 1):
    ids, seconds = ours.run(prompts)
    peer_ids, peer_seconds = peer.run(prompts) if peer else (ids, float('nan'))
    if repeat == 0:  # Compiles.
      np.testing.assert_array_equal(ids, peer_ids)
      continue
    our_s.append(seconds)
    peer_s.append(peer_seconds)
    bandwidths.append(_read_bandwidth())
  per_token_s = statistics.median(our_s) / args.new_tokens
  peer_token_s = statistics.median(peer_s) / args.new_tokens
  bandwidth = statistics.median(bandwidths)
  bound_s = ours.bytes_read(batch_size) / bandwidth
  print(
    f'| {batch_size} | {batch_size / per_token_s:.1f} '
    f'| {batch_size / peer_token_s:.1f} | {peer_token_s / per_token_s:.2f} '
    f'| {bound_s / per_token_s:.2f} | {bandwidth / 1e9:.1f} |'
  )


class _Ours:
  """Our generate, compiled whole."""

  def __init__(self, args):
    import jax

    from paxlike import models

    self._args = args
    self._jax = jax
    template = functools.partial(
      models.TransformerLm,
      **_SHAPE,
      norm_epsilon=_NORM_EPSILON,
      rope_base=_ROPE_BASE,
    )
    model = models.functional(template)
    self._mdl_vars = jax.jit(model.init)(jax.random.key(0))
    self.params = self._mdl_vars['params']
    self.num_params = sum(a.size for a in jax.tree.leaves(self.params))
    config = models.GenerateConfig(max_new_tokens=args.new_tokens)
    # Once for all batches, as the decode job does.
    self._decoder = jax.jit(lambda v: model.apply(v, 'decoder')[0])(
      self._mdl_vars
    )

    def run(decoder, ids, lengths):
      return models.generate(decoder, ids, lengths, config=config).ids[:, 0]

    self._run = jax.jit(run)

  def run(self, prompts):
    """The new tokens and the seconds that they took."""
    lengths = np.full((prompts.shape[0],), prompts.shape[1], np.int32)
    start_s = time.perf_counter()
    ids = np.asarray(self._run(self._decoder, prompts, lengths))
    return ids, time.perf_counter() - start_s

  def bytes_read(self, batch_size: int) -> int:
    """By one token of each row at least, half of the new tokens in."""
    length = self._args.prompt_len + self._args.new_tokens // 2
    head_dim = _SHAPE['model_dim'] // _SHAPE['num_heads']
    width = 2 * _SHAPE['num_layers'] * _SHAPE['num_kv_heads'] * head_dim
    return 4 * (self.num_params + batch_size * length * width)


@functools.cache
def _reader():
  """A jitted pass over 512 MiB."""
  import jax
  import jax.numpy as jnp

  weights = jnp.ones((16_384, 8_192), jnp.float32)
  vector = jnp.ones((8_192, 1), jnp.float32)
  return jax.jit(lambda w, x: w @ x), weights, vector


def _read_bandwidth() -> float:
  """Bytes a second that a product of a matrix and a vector reads, at best."""
  product, weights, vector = _reader()
  seconds = []
  for _ in range(6):
    start_s = time.perf_counter()
    product(weights, vector).block_until_ready()
    seconds.append(time.perf_counter() - start_s)
  return weights.nbytes / min(seconds)


class _Peer:
  """The same model in torch, in another process and environment."""

  def __init__(self, args, folder: str, params):
    weights = pathlib.Path(folder, 'weights.npz')
    np.savez(weights, **_torch_names(params))
    self._folder = folder
    self._process = subprocess.Popen(
      [
        args.peer_python,
        __file__,
        f'--serve={folder}',
        f'--new_tokens={args.new_tokens}',
      ],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def run(self, prompts):
    """The new tokens and the seconds that they took."""
    np.save(pathlib.Path(self._folder, 'prompts.npy'), prompts)
    assert self._process.stdin
    assert self._process.stdout
    self._process.stdin.write('go\n')
    self._process.stdin.flush()
    line = self._process.stdout.readline()
    return np.load(pathlib.Path(self._folder, 'ids.npy')), float(line)

  def close(self) -> None:
    """Ends the process."""
    assert self._process.stdin
    self._process.stdin.close()
    self._process.wait(timeout=60)


def _torch_names(params) -> dict[str, np.ndarray]:
  """Our parameters under the names of transformers' Llama."""
  layers = params['layers']
  kernels = {
    'self_attn.q_proj': layers['attention']['query'],
    'self_attn.k_proj': layers['attention']['key'],
    'self_attn.v_proj': layers['attention']['value'],
    'self_attn.o_proj': layers['attention']['out'],
    'mlp.gate_proj': layers['mlp']['gate'],
    'mlp.up_proj': layers['mlp']['up'],
    'mlp.down_proj': layers['mlp']['down'],
  }
  norms = {
    'input_layernorm': layers['attention_norm'],
    'post_attention_layernorm': layers['mlp_norm'],
  }
  named = {
    'model.embed_tokens.weight': params['embedding']['table'],
    'lm_head.weight': params['embedding']['table'],
    'model.norm.weight': params['final_norm']['scale'],
  }
  for i in range(_SHAPE['num_layers']):
    for name, kernel in kernels.items():
      matrix = np.asarray(kernel['kernel'][i])
      # Both store (out, in); ours tells heads and their features apart.
      out = _SHAPE['model_dim'] if 'o_proj' in name else None
      rows = out or int(np.prod(matrix.shape[:-1]))
      named[f'model.layers.{i}.{name}.weight'] = matrix.reshape(rows, -1)
    for name, norm in norms.items():
      named[f'model.layers.{i}.{name}.weight'] = norm['scale'][i]
  return {name: np.asarray(value) for name, value in named.items()}


def _serve_torch(args) -> None:
  """Generates once for every line on stdin; runs in the peer's environment."""
  import torch
  import transformers

  torch.set_num_threads(os.cpu_count() or 1)
  config = transformers.LlamaConfig(
    vocab_size=_SHAPE['vocab_size'],
    hidden_size=_SHAPE['model_dim'],
    num_hidden_layers=_SHAPE['num_layers'],
    num_attention_heads=_SHAPE['num_heads'],
    num_key_value_heads=_SHAPE['num_kv_heads'],
    intermediate_size=_SHAPE['mlp_dim'],
    rms_norm_eps=_NORM_EPSILON,
    rope_theta=_ROPE_BASE,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
  )
  model = transformers.LlamaForCausalLM(config).eval()
  folder = pathlib.Path(args.serve)
  with np.load(folder / 'weights.npz') as weights:
    state = {name: torch.from_numpy(weights[name]) for name in weights.files}
  model.load_state_dict(state)
  for _ in sys.stdin:
    prompts = torch.from_numpy(np.load(folder / 'prompts.npy')).long()
    start_s = time.perf_counter()
    with torch.inference_mode():
      out = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        max_new_tokens=args.new_tokens,
      )
    seconds = time.perf_counter() - start_s
    np.save(folder / 'ids.npy', out[:, prompts.shape[1] :].numpy())
    print(seconds, flush=True)


def _parse_args():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--peer_python', default='')
  parser.add_argument('--prompt_len', type=int, default=32)
  parser.add_argument('--new_tokens', type=int, default=64)
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--serve', default='', help=argparse.SUPPRESS)
  return parser.parse_args()


if __name__ == '__main__':
  main()
