"""Many runs side by side: prepared, rehearsed, trained in groups, evaluated, recorded, checkpointed."""

from fedskip.study.again import resume
from fedskip.study.interrupted import Interrupted
from fedskip.study.study import Study

__all__ = ["Interrupted", "Study", "resume"]
