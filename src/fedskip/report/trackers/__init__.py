"""Trackers send the numbers of a study elsewhere while it trains."""

from fedskip.report.trackers.base import Start, TrackedRun, Tracker
from fedskip.report.trackers.mlflow import MLflow
from fedskip.report.trackers.tensorboard import TensorBoard
from fedskip.report.trackers.wandb import WandB

__all__ = ["MLflow", "Start", "TensorBoard", "TrackedRun", "Tracker", "WandB"]
