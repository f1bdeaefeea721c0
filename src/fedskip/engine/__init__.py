"""Engines train visits and know no method: `Loop`, the readable truth, and `Stacked`, all visits at once."""

from fedskip.engine.local import Local
from fedskip.engine.loop import Loop
from fedskip.engine.plan import Plan
from fedskip.engine.stacked import Stacked
from fedskip.engine.task import Engine, Job, Task, Trained

__all__ = ["Engine", "Job", "Local", "Loop", "Plan", "Stacked", "Task", "Trained"]
