"""Data sets, and who owns which of their samples."""

from fedskip.data.base import Arrays, Dataset, Samples
from fedskip.data.catalogue import CATALOGUE, load
from fedskip.data.partitions import Partition, partition

__all__ = ["CATALOGUE", "Arrays", "Dataset", "Partition", "Samples", "load", "partition"]
