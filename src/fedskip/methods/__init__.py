"""Methods: one file each. FedSkip is `FedAvg(period=5)`, and every other method skips the same way."""

from fedskip.errors import require
from fedskip.methods.base import MODEL, TRAINABLE, Federation, Merged, Method, State, Visit, rows
from fedskip.methods.fedavg import FedAvg
from fedskip.methods.feddyn import FedDyn
from fedskip.methods.fednova import FedNova
from fedskip.methods.fedopt import FedAdam, FedAvgM
from fedskip.methods.fedprox import FedProx
from fedskip.methods.grammar import parse, parse_many, registry, text
from fedskip.methods.moon import Moon
from fedskip.methods.robust import Median, NormBounded, TrimmedMean
from fedskip.methods.scaffold import Scaffold
from fedskip.methods.terms import Contrast, Terms
from fedskip.parsing import Above, AtLeast, AtMost, In

__all__ = [
    "MODEL", "TRAINABLE", "Above", "AtLeast", "AtMost", "Contrast", "FedAdam", "FedAvg", "FedAvgM",
    "FedDyn", "FedNova", "FedProx", "Federation", "In", "Median", "Merged", "Method", "Moon",
    "NormBounded", "Scaffold", "State", "Terms", "TrimmedMean", "Visit", "parse", "parse_many",
    "registry", "require", "rows", "text",
]  # fmt: skip
