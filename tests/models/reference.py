"""A Transformer written again, in NumPy, float64 and loops, to be read."""

import numpy as np


def logits(params, ids, *, window=None, base=10_000.0, epsilon=1e-6):
  """Scores [time, vocab] of one sequence without padding."""
  table = np.asarray(params['embedding']['table'], np.float64)
  x = table[np.asarray(ids)]
  layers = params['layers']
  num_layers = layers['attention_norm']['scale'].shape[0]
  for i in range(num_layers):
    layer = _slice(layers, i)
    normed = _rms(x, layer['attention_norm']['scale'], epsilon)
    x = x + _attention(normed, layer['attention'], window, base)
    normed = _rms(x, layer['mlp_norm']['scale'], epsilon)
    gate = normed @ layer['mlp']['gate']['kernel'].T
    up = normed @ layer['mlp']['up']['kernel'].T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ layer['mlp']['down']['kernel'].T
  x = _rms(x, np.asarray(params['final_norm']['scale'], np.float64), epsilon)
  return x @ table.T


def _slice(node, i):
  if isinstance(node, dict):
    return {name: _slice(child, i) for name, child in node.items()}
  return np.asarray(node[i], np.float64)


def _rms(x, scale, epsilon):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


def _turn(vector, position, base):
  half = len(vector) // 2
  turned = np.empty_like(vector)
  for i in range(half):
    angle = position * base ** (-i / half)
    a, b = vector[i], vector[i + half]
    turned[i] = a * np.cos(angle) - b * np.sin(angle)
    turned[i + half] = b * np.cos(angle) + a * np.sin(angle)
  return turned


def _attention(x, weights, window, base):
  query, key = weights['query']['kernel'], weights['key']['kernel']
  value, out = weights['value']['kernel'], weights['out']['kernel']
  heads, head_dim, _ = query.shape
  shared_by = heads // key.shape[0]
  gathered = np.zeros((len(x), heads, head_dim))
  for head in range(heads):
    for t in range(len(x)):
      q = _turn(query[head] @ x[t], t, base)
      first = 0 if window is None else max(0, t - window + 1)
      seen = range(first, t + 1)
      scores = [
        q @ _turn(key[head // shared_by] @ x[s], s, base) / np.sqrt(head_dim)
        for s in seen
      ]
      weight = np.exp(scores - np.max(scores))
      weight /= weight.sum()
      for w, s in zip(weight, seen, strict=True):
        gathered[t, head] += w * (value[head // shared_by] @ x[s])
  return np.einsum('thd,ehd->te', gathered, out)
