"""The stacked engine: all visits that are under way, of all runs, in one batched step."""

from fedskip.engine.stacked.engine import Stacked
from fedskip.engine.stacked.plan import Plan

__all__ = ["Plan", "Stacked"]
