"""A study in a line, and as a table of its settings for notebooks."""

import html
from collections.abc import Mapping
from typing import Any

from fedskip.methods.grammar import text
from fedskip.records.table import Table
from fedskip.spec import StudySpec
from fedskip.spec.counted import counted
from fedskip.study.machine import resolve_device

SHOWN = ("name", "data", "partition", "model", "clients", "cohort", "methods", "seeds", "rounds")


def in_a_line(spec: StudySpec, out: object = None) -> str:
    """Its runs, its device, and its folder if it has one."""
    device = resolve_device("auto") if spec.device == "auto" else spec.device
    place = f", in {out}" if out else ""
    return f"Study({spec.name!r}: {counted([draft.keys for draft in spec.settings])}, {device}{place})"


def as_html(spec: StudySpec, out: object = None) -> str:
    """The same, and below it what was written of its settings."""
    rows = [
        {key: _word(key, draft.keys[key]) for key in SHOWN if key in draft.keys} for draft in spec.settings
    ]
    columns = [key for key in SHOWN if any(key in row for row in rows)]
    return f"<b>{html.escape(in_a_line(spec, out))}</b>{Table(columns, rows)._repr_html_()}"


def _word(key: str, value: Any) -> Any:
    """What a cell shows of a key."""
    if key == "methods":
        return ", ".join(map(text, value))
    if key == "seeds":
        return f"{len(value)} ({value[0]} to {value[-1]})" if len(value) > 3 else ", ".join(map(str, value))
    if isinstance(value, Mapping):  # a name, and what was chosen beside it
        return ", ".join(str(v) if k in ("name", "kind") else f"{k}={v}" for k, v in value.items())
    if key in ("data", "model"):
        return getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__)
    return value
