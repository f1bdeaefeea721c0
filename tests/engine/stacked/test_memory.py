"""How many rows fit a GPU."""

from __future__ import annotations

from dataclasses import replace

from fedskip.engine.stacked.memory import GIB, Footprint


def test_how_many_rows_fit() -> None:
    """A batched row needs its step's memory for itself; rows on streams share that of the streams."""
    batched = Footprint(row=1 * GIB, step=3 * GIB, free=100 * GIB)
    streamed = replace(batched, streams=4)
    assert (batched.rows, streamed.rows) == (20, 68)
    assert batched.of(20) == streamed.of(68) == 80 * GIB
    assert replace(batched, free=1).rows == 1, (
        "a row too large for the card fails there, with torch's message"
    )
