"""What a study holds of each data set, once, whatever the number of its settings."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data.base import Dataset
from fedskip.data.catalogue import load
from fedskip.files import digest
from fedskip.input.errors import InputError


@dataclass(frozen=True, eq=False)
class Pool:
    """A data set, and what is known of it."""

    dataset: Dataset

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """Of the arrays that the samples hold in memory, and of who owns them."""
        held = getattr(self.dataset.samples, "__dict__", {})
        found = {
            name: digest(array.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            for name, array in held.items() if isinstance(array, Tensor)
        }  # fmt: skip
        if self.dataset.owner is not None:
            found["owner"] = digest(self.dataset.owner.astype(np.int64).data)
        return found


class Pools:
    """The data sets of a study: each is loaded and checked once."""

    def __init__(self) -> None:
        self._found: list[tuple[Mapping[str, Any] | Dataset, Pool]] = []

    def get(self, data: Mapping[str, Any] | Dataset) -> Pool:
        for known, pool in self._found:
            if known == data:
                return pool
        dataset = data if isinstance(data, Dataset) else load(**data)
        _check_finite(dataset)
        pool = Pool(dataset)
        self._found.append((data, pool))
        return pool


def _check_finite(dataset: Dataset) -> None:
    """Refuse NaN and infinity before they spread."""
    for name in ("x", "y"):
        array = getattr(dataset.samples, name, None)
        if isinstance(array, Tensor) and array.is_floating_point() and not bool(torch.isfinite(array).all()):
            bad = int((~torch.isfinite(array)).reshape(len(array), -1).any(1).nonzero()[0])
            raise InputError(
                f"data.{name}",
                f"must be finite; sample {bad} of {dataset.name!r} is not",
                ...,
                "remove or fill it",
            )
