"""Data sets, and which client owns which of their samples."""

from fedskip.data.arrays import from_torch
from fedskip.data.catalogue import CATALOGUE, load
from fedskip.data.dataset import Arrays, Dataset, Samples
from fedskip.data.from_hugging_face import from_huggingface
from fedskip.data.partitions import Partition, partition
from fedskip.data.tables import from_frame

__all__ = [
    "CATALOGUE", "Arrays", "Dataset", "Partition", "Samples", "from_frame", "from_huggingface",
    "from_torch", "load", "partition",
]  # fmt: skip
