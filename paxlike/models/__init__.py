"""Models as flax nnx layers, and how the functional trainer calls them.

The door: a model is named by a template, `fdl.Partial(models.TransformerLm,
vocab_size=256, ...)`; `functional(template)` turns it into pure functions over
dicts of arrays. Nothing here knows losses, optimizers or meshes.
"""

from typing import TYPE_CHECKING

from paxlike.core import lazy

if TYPE_CHECKING:
  from paxlike.models._classifiers import CnnClassifier as CnnClassifier
  from paxlike.models._classifiers import MlpClassifier as MlpClassifier
  from paxlike.models._decoder import Decoder as Decoder
  from paxlike.models._decoder import KvCache as KvCache
  from paxlike.models._functional import Functional as Functional
  from paxlike.models._functional import MdlVars as MdlVars
  from paxlike.models._functional import functional as functional
  from paxlike.models._generate import GenerateConfig as GenerateConfig
  from paxlike.models._generate import Generated as Generated
  from paxlike.models._generate import generate as generate
  from paxlike.models._layer import Layer as Layer
  from paxlike.models._sampling import Sampling as Sampling
  from paxlike.models._score import Scores as Scores
  from paxlike.models._score import score as score
  from paxlike.models._transformer import TransformerLm as TransformerLm

__getattr__, __dir__, __all__ = lazy.attach(
  __name__,
  {
    'score': '_score',
    'Scores': '_score',
    'Sampling': '_sampling',
    'generate': '_generate',
    'Generated': '_generate',
    'GenerateConfig': '_generate',
    'KvCache': '_decoder',
    'Decoder': '_decoder',
    'CnnClassifier': '_classifiers',
    'MlpClassifier': '_classifiers',
    'Functional': '_functional',
    'Layer': '_layer',
    'MdlVars': '_functional',
    'TransformerLm': '_transformer',
    'functional': '_functional',
  },
)
