"""Many runs side by side: prepared, rehearsed, trained in groups, evaluated, recorded, checkpointed."""

from fedskip.study.signals import Interrupted
from fedskip.study.study import Study, resume

__all__ = ["Interrupted", "Study", "resume"]
