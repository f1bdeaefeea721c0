"""Many runs side by side: prepared, rehearsed, trained in groups, evaluated, recorded, checkpointed."""

from fedskip.study.study import Interrupted, Study

__all__ = ["Interrupted", "Study"]
