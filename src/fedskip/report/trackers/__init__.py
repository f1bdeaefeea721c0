"""Trackers hear a study as it goes, and send its numbers elsewhere."""

from fedskip.report.trackers.base import Start, TrackedRun, Tracker
from fedskip.report.trackers.mlflow import MLflow
from fedskip.report.trackers.tensorboard import TensorBoard
from fedskip.report.trackers.wandb import WandB

__all__ = ["MLflow", "Start", "TensorBoard", "TrackedRun", "Tracker", "WandB"]
