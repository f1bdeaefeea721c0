"""fedskip: federated learning by skipping.

>>> import fedskip
>>> from fedskip import FedAvg
>>> study = fedskip.Study(data="synthetic", methods=[FedAvg(), FedAvg(period=5)], rounds=200, seeds=3)
"""

from fedskip.contract import check_method
from fedskip.data import Arrays, Dataset, Partition, partition
from fedskip.input.errors import InputError
from fedskip.methods import FedAdam, FedAvg, FedAvgM, FedDyn, FedNova, FedProx, Method, Moon, Scaffold
from fedskip.models.weights import load
from fedskip.report.results import Results
from fedskip.report.trackers import Tracker
from fedskip.study import Study
from fedskip.version import __version__

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
    "Tracker",
    "__version__",
    "check_method",
    "load",
    "partition",
]
