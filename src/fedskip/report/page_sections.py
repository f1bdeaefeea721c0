"""Sections of report.html: the set-up, diverged runs, timing, every key, and where the study comes from."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Sequence
from typing import Any

from fedskip.config import RECORD
from fedskip.config.tree import flatten
from fedskip.errors import InputError
from fedskip.methods.grammar import parse
from fedskip.records.folder import Facts, Folder
from fedskip.report import divergence, units
from fedskip.report.results import Results, SettingInfo
from fedskip.report.tables import test_samples
from fedskip.report.units import count


def setup(results: Results) -> str:
    """The settings at a glance; every key stands at the end of the page."""
    rows: dict[str, list[str]] = {}
    for setting in results.shown:
        keys, local, division = setting.keys, setting.keys.get("local", {}), setting.division
        clients = division.get("clients", keys.get("clients"))
        size = setting.noted.get("parameters")
        facts = {
            "methods": ", ".join(map(spelled_out, _texts(keys.get("methods")))),
            "data": named(keys.get("data")),
            "training samples": f"{division['train']:,}" if "train" in division else units.NONE,
            "partition": named(keys.get("partition")),
            "clients": f"{clients}, {keys.get('cohort')} of them in a round",
            "model": named(keys.get("model")) + (f", {size:,} numbers" if size else ""),
            "a visit": f"{count(local.get('epochs'), 'epoch')} of SGD in batches of {local.get('batch')}, rate "
            f"{local.get('lr')}, momentum {local.get('momentum')}, weight decay {local.get('weight_decay')}",
            "rounds": f"{setting.rounds:,}",
            "metrics": f"{units.listed([one.words for one in setting.metrics])}, on {test_samples([setting])}",
            "seeds": ", ".join(map(str, _seeds(results, setting))),
        }
        for name, value in facts.items():
            rows.setdefault(name, []).append(value)
    names = [setting.name for setting in results.shown]
    return wide(grid(names if len(names) > 1 else [], rows.items()))


def diverged(results: Results) -> str:
    """The runs that diverged, where, and what their numbers are of."""
    items = [
        f"{row['run']} {row['where']}; its numbers are of the first {row['rounds']} rounds"
        for row in divergence.diverged_runs(results)
    ]
    listed = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    help_ = paragraphs([divergence.HELP])
    return f"<h2>Runs that diverged</h2><ul>{listed}</ul>{help_}" if items else ""


def timing(results: Results) -> str:
    """How long each setting took, how fast it went, and on what."""
    rows = []
    for study in results.studies or (results,):
        for setting in study.settings:
            runs = study.runs(setting.name)
            history = study.history[study.history["setting"] == setting.name]
            seconds = float(history["seconds"].max()) if len(history) else None
            rounds = int(history["round"].max()) if len(history) else 0
            visits = int(runs["rounds"].sum()) * int(setting.keys.get("cohort") or 0)
            machine = setting.noted.get("machine") or {}
            facts = [
                str(machine[k]) for k in ("device_name", "engine", "precision") if k in machine
            ]
            speed = f"{visits / seconds:,.0f} visits a second" if seconds else units.NONE
            cells = [count(len(runs), "run"), f"{rounds:,} rounds", units.clock(seconds), speed]
            folder = f" ({study.out.resolve().name})" if results.studies else ""
            name, where = f"{setting.name}{folder}", ", ".join(facts) or "an unknown machine"
            rows.append((name, [*cells, where]))
    head = ["runs", "rounds", "time (h:min:s)", "speed", "machine"]
    note = "A visit is one client training one model; the time includes evaluation and checkpoints."
    return f"<h2>Time and speed</h2>{wide(grid(head, rows, 'facts'))}{paragraphs([note], 'dim')}"


def all_keys(results: Results) -> str:
    """Every key of every setting."""
    flat = [
        flatten({key: value for key, value in setting.keys.items() if key != RECORD})
        for setting in results.settings
    ]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = [(key, [str(one.get(key, units.NONE)) for one in flat]) for key in keys]
    table = wide(grid([setting.name for setting in results.settings], rows))
    return folded("Every key of every setting", table)


def provenance(results: Results) -> str:
    """Of every study: its folder, versions, hash, the command that repeats it, and study.yaml."""
    parts = []
    for study in results.studies or (results,):
        record = study.record
        state = "." if study.finished else ": not finished."
        lines = [f"{study.name}, in the folder {study.out.resolve().name}{state}"]
        if versions := _versions(record):
            lines.append(f"Made with {versions}.")
        lines += _engines(record.get("settings") or {})
        lines += [f"Hash of the study: {record['study']}."] if "study" in record else []
        for part, facts in (record.get("added") or {}).items():
            setting, _, number = part.rpartition("~")
            when = facts.get("when", "when it was run")
            lines.append(f"Addition {number} to {setting}: {when}, with {_versions(facts)}.")
        lines.append(
            "To repeat it, save study.yaml below and run, elsewhere: fedskip run study.yaml"
        )
        source = html.escape(Folder(study.out).file.read_text(encoding="utf-8"))
        listing = folded(
            "study.yaml, with what the study noted about itself", f"<pre>{source}</pre>"
        )
        parts.append(paragraphs(lines, "dim") + listing)
    return f"<h2>Where it comes from</h2>{''.join(parts)}"


def _versions(facts: Facts) -> str:
    return ", ".join(f"{name} {number}" for name, number in (facts.get("versions") or {}).items())


def _engines(settings: Facts) -> list[str]:
    """The engine of each setting, and why it was chosen; settings with the same one share a line."""
    by_engine: dict[str, list[str]] = {}
    for name, noted in settings.items():
        why = f" ({noted['why']})" if noted.get("why") else ""
        engine = noted.get("machine", {}).get("engine", units.NONE)
        by_engine.setdefault(f"{engine}{why}", []).append(name)
    return [f"Engine of {units.listed(names)}: {engine}." for engine, names in by_engine.items()]


# --- HTML and names ------------------------------------------------------------------------------------


def grid(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], kind: str = "keys") -> str:
    """A table of text whose rows have names; the cells of one of `keys` may take several lines."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = [
        f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows
    ]
    start = f"<thead><tr><th></th>{top}</tr></thead>" if head else ""
    return f"<table class={kind}>{start}<tbody>{''.join(body)}</tbody></table>"


def paragraphs(lines: Iterable[str], kind: str = "") -> str:
    start = f"<p class={kind}>" if kind else "<p>"
    return "".join(f"{start}{html.escape(line)}</p>" for line in lines)


def folded(title: str, inside: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{inside}</details>"


def wide(table: str) -> str:
    """A table that scrolls sideways where the screen is narrow."""
    return f'<div class="wide">{table}</div>'


def spelled_out(text: str) -> str:
    """A method with all of its hyper-parameters; as it was written, where it cannot be read.

    >>> spelled_out("fedprox"), spelled_out("not_here:Mine(a=1)")
    ('FedProx(mu=0.01)', 'not_here:Mine(a=1)')
    """
    try:
        [method] = parse(text)
    except (InputError, ValueError):
        return text
    names = [one.name for one in dataclasses.fields(method) if one.name != "period"]
    return method.label_with(names)


def named(value: Any) -> str:
    """A data set, a partition or a model with its options, in one line.

    >>> named({"kind": "dirichlet", "beta": 0.5}), named("python:mine.Net")
    ('dirichlet (beta 0.5)', 'Net')
    """
    if not isinstance(value, dict):
        return str(value).rpartition(".")[2]
    tag = next((key for key in ("name", "kind", "file") if key in value), "")
    options = ", ".join(f"{key} {given}" for key, given in value.items() if key != tag)
    return f"{value.get(tag, '')} ({options})" if options else str(value.get(tag))


def _texts(methods: Any) -> list[str]:
    return [methods] if isinstance(methods, str) else list(methods or ())


def _seeds(results: Results, setting: SettingInfo) -> list[int]:
    return sorted(int(seed) for seed in results.runs(setting.name)["seed"].unique())
