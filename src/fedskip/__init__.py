"""fedskip: federated learning by skipping, in two layers.

A study compares many runs, records them, and can be stopped and resumed:

>>> import fedskip
>>> from fedskip import FedAvg
>>> study = fedskip.Study(data="synthetic", methods=[FedAvg(), FedAvg(period=5)], rounds=200, seeds=3)

The core trains a federation, and leaves everything else to you (docs/core.md): `make_task`, `make_run`,
`train`, and the parts that these put together.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from fedskip.version import __version__ as __version__

# The names that users need, by the module that has them. They are imported when they are first asked for,
# since torch takes seconds. Type checkers read the imports below; a test compares the two.
_NAMES = {
    "contract": ("check_method",),
    "data": (
        "Arrays",
        "Dataset",
        "Partition",
        "from_frame",
        "from_huggingface",
        "from_torch",
        "partition",
    ),
    "engine": ("Local", "Loop", "Stacked", "Task"),
    "engine.evaluate": ("Evaluator",),
    "errors": ("InputError",),
    "federation": ("Clients", "Run", "Server", "make_plan", "make_run", "make_task", "train"),
    "methods": (
        "FedAdam", "FedAvg", "FedAvgM", "FedDyn", "FedNova", "FedProx", "Median", "Method", "Moon",
        "NormBounded", "Scaffold", "TrimmedMean",
    ),
    "models.metrics": ("metric",),
    "models.export": ("export",),
    "models.weights": ("load",),
    "report.progress": ("Progress",),
    "report.results": ("Results",),
    "report.trackers": ("Tracker",),
    "study": ("Interrupted", "Study", "resume"),
}  # fmt: skip
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {module.name for module in pkgutil.iter_modules(__path__)}

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:
    from fedskip.contract import check_method as check_method
    from fedskip.data import Arrays as Arrays
    from fedskip.data import Dataset as Dataset
    from fedskip.data import Partition as Partition
    from fedskip.data import from_frame as from_frame
    from fedskip.data import from_huggingface as from_huggingface
    from fedskip.data import from_torch as from_torch
    from fedskip.data import partition as partition
    from fedskip.engine import Local as Local
    from fedskip.engine import Loop as Loop
    from fedskip.engine import Stacked as Stacked
    from fedskip.engine import Task as Task
    from fedskip.engine.evaluate import Evaluator as Evaluator
    from fedskip.errors import InputError as InputError
    from fedskip.federation import Clients as Clients
    from fedskip.federation import Run as Run
    from fedskip.federation import Server as Server
    from fedskip.federation import make_plan as make_plan
    from fedskip.federation import make_run as make_run
    from fedskip.federation import make_task as make_task
    from fedskip.federation import train as train
    from fedskip.methods import FedAdam as FedAdam
    from fedskip.methods import FedAvg as FedAvg
    from fedskip.methods import FedAvgM as FedAvgM
    from fedskip.methods import FedDyn as FedDyn
    from fedskip.methods import FedNova as FedNova
    from fedskip.methods import FedProx as FedProx
    from fedskip.methods import Median as Median
    from fedskip.methods import Method as Method
    from fedskip.methods import Moon as Moon
    from fedskip.methods import NormBounded as NormBounded
    from fedskip.methods import Scaffold as Scaffold
    from fedskip.methods import TrimmedMean as TrimmedMean
    from fedskip.models.export import export as export
    from fedskip.models.metrics import metric as metric
    from fedskip.models.weights import load as load
    from fedskip.report.progress import Progress as Progress
    from fedskip.report.results import Results as Results
    from fedskip.report.trackers import Tracker as Tracker
    from fedskip.study import Interrupted as Interrupted
    from fedskip.study import Study as Study
    from fedskip.study import resume as resume
else:  # a type checker that saw this would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"fedskip.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'fedskip' has no attribute {name!r}")
        thing = getattr(importlib.import_module(f"fedskip.{_HOMES[name]}"), name)
        globals()[name] = thing  # next time this function is not called
        return thing

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES, *_MODULES})
