"""Data sets, and who owns which of their samples."""

from fedskip.data.base import Arrays, Dataset, Samples
from fedskip.data.catalogue import CATALOGUE, load
from fedskip.data.foreign import from_huggingface, from_torch
from fedskip.data.frames import from_frame
from fedskip.data.partitions import Partition, partition

__all__ = [
    "CATALOGUE", "Arrays", "Dataset", "Partition", "Samples", "from_frame", "from_huggingface", "from_torch",
    "load", "partition",
]  # fmt: skip
