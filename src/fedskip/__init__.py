"""fedskip: federated learning by skipping.

>>> import fedskip
>>> from fedskip import FedAvg
>>> study = fedskip.Study(data="synthetic", methods=[FedAvg(), FedAvg(period=5)], rounds=200, seeds=3)
"""

__version__ = "0.1.0"

from fedskip.data import Arrays, Dataset, Partition, partition
from fedskip.errors import InputError
from fedskip.methods import FedAdam, FedAvg, FedAvgM, FedDyn, FedNova, FedProx, Method, Moon, Scaffold
from fedskip.methods.contract import check_method
from fedskip.study import Results, Study
from fedskip.weights import load

__all__ = [
    "Arrays",
    "Dataset",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedNova",
    "FedProx",
    "InputError",
    "Method",
    "Moon",
    "Partition",
    "Results",
    "Scaffold",
    "Study",
    "check_method",
    "load",
    "partition",
]
