"""Models: the bundled ones, a module as a vector, losses, metrics, and weights in files.

Every bundled model has `features(x) -> (output, z)` beside `forward(x)`: one pass gives the output
and the representation z that MOON contrasts.
"""

from fedskip.models.forms import Dropout, key_dropout
from fedskip.models.zoo import MODELS, build

__all__ = ["MODELS", "Dropout", "build", "key_dropout"]
