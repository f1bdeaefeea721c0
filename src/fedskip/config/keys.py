"""The keys of a study with the types that may be written for them: the arguments of `fedskip.Study`.

Type checkers and editors read this. What a value must be, its range and its default are declared by
`StudySpec` and `Setting`; a test compares the three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from torch import nn

from fedskip.data.dataset import Dataset
from fedskip.engine.local import Local
from fedskip.engine.upload_filters import Attack, Privacy
from fedskip.methods.base import Method

T = TypeVar("T")
OrGrid: TypeAlias = T | Iterable[T]  # several values are swept, each in a setting of its own
Methods = str | Method | Iterable[str | Method]
Seeds = int | str | Iterable[int | str]


class StudyKeys(TypedDict, total=False):
    """What may be written at the top level of a study. None leaves a key out."""

    name: str | None
    # of every setting
    data: OrGrid[str | Mapping[str, Any] | Dataset]
    partition: OrGrid[str | Mapping[str, Any]] | None
    model: OrGrid[str | Mapping[str, Any] | nn.Module | Callable[..., Any]] | None
    clients: OrGrid[int] | None
    cohort: OrGrid[int] | None
    cohort_policy: OrGrid[Literal["uniform", "fixed", "cyclic"]] | None
    local: Mapping[str, Any] | Local | None
    methods: Methods
    rounds: OrGrid[int] | None
    seeds: Seeds | None
    partition_seed: OrGrid[int] | None
    validation: OrGrid[float] | None
    init: OrGrid[str] | None
    privacy: Mapping[str, Any] | Privacy | None
    attack: Mapping[str, Any] | Attack | None
    loss: OrGrid[str | Callable[..., Any]] | None
    metric: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
    eval_every: OrGrid[int] | None
    eval_samples: OrGrid[int] | None
    slot_accuracy: OrGrid[bool] | None
    client_accuracy: OrGrid[bool] | None
    target: float | str | None
    note: str | None
    guard: OrGrid[Literal["nonfinite"]] | None
    reference: bool | None
    stop: Mapping[str, Any] | None
    settings: Sequence[Mapping[str, Any]] | None  # each entry lays its keys over those above
    # of the study
    engine: Literal["auto", "loop", "stacked"] | None
    device: str | None
    compile: bool | None
    workers: int | None
    processes: int | None
    groups: int | None
    cluster: str | None
    per_device: int | None
    threads: int | None
    precision: Literal["fp32", "tf32", "bf16", "fp64"] | None
    deterministic: bool | None
    rows: int | None
    streams: int | None
    checkpoint_every: int | None
    most_runs: int | None
