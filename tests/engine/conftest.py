"""What holds for every test of an engine."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _nothing_touches_torch_s_generator() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)
