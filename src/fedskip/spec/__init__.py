"""What a study is: as written in YAML, on the command line or in Python, and resolved."""

from fedskip.spec.setting import Draft, Setting
from fedskip.spec.study import RECORD, StudySpec, build, dump, narrowed, plain
from fedskip.spec.tree import Tree, assigned, load_yaml

__all__ = [
    "RECORD", "Draft", "Setting", "StudySpec", "Tree", "assigned", "build", "dump", "load_yaml", "narrowed",
    "plain",
]  # fmt: skip
