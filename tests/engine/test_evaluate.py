"""How good models are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedskip.engine.evaluate import ACTIVATION, Evaluator
from tiny import (
    task_of,
)  # fmt: skip


@pytest.mark.parametrize(("name", "chunk"), [("perceptron", 2500), ("resnet50", 25)])
def test_chunks_of_an_evaluation_fit_a_cache(name: str, chunk: int) -> None:
    """Small activations come in many samples, large ones in few; and it is the same to the scores."""
    task = task_of(name)
    evaluator, models = Evaluator(task, stacked=False), task.layout.pack(task.module)[None]
    if name == "resnet50":
        evaluator._sizes = 1 << 20, 1  # of the real one, on CIFAR
    index = torch.arange(len(task.samples))
    assert evaluator._chunk(models, index) == chunk
    whole = evaluator(models, index.numpy())
    evaluator._sizes = ACTIVATION, 1
    parts = evaluator(models, index.numpy())
    np.testing.assert_allclose([whole.metric, whole.loss], [parts.metric, parts.loss], rtol=1e-12)
