"""What a study is: as written in YAML, on the command line or in Python, and resolved."""

from fedskip.config.setting import RECORD, Draft, Record, Runs, Setting
from fedskip.config.study import StudySpec, build, dump, narrowed, plain
from fedskip.config.tree import Places, Tree, assigned, load_yaml

__all__ = [
    "RECORD", "Draft", "Places", "Record", "Runs", "Setting", "StudySpec", "Tree", "assigned", "build", "dump",
    "load_yaml", "narrowed", "plain",
]  # fmt: skip
