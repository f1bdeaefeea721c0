"""The parts of report.html: what was studied, the verdict, what was lost, where it comes from."""

import contextlib
import dataclasses
import html
from collections.abc import Iterable, Sequence
from typing import Any

from fedskip.input.errors import InputError
from fedskip.input.nest import flatten
from fedskip.methods.grammar import parse
from fedskip.records.provenance import Facts, Folder
from fedskip.report import broken, units
from fedskip.report import verdict as judged
from fedskip.report.closing import tested
from fedskip.report.recorded import About, Recorded
from fedskip.report.results import Results
from fedskip.report.sweep import looked_at
from fedskip.report.units import count


def about(results: Results) -> str:
    """What was studied: three sentences for each setting."""
    shown = looked_at(results)
    names = [f"{setting.name}: " if len(results.compared) > 1 else "" for setting in shown]
    said = [_sentences(results, setting) for setting in shown]
    return paragraphs(name + words for name, words in zip(names, said, strict=True))


def _sentences(results: Results, setting: About) -> str:
    keys, local = setting.keys, setting.keys.get("local", {})
    labels = results.labels(setting.name)
    clients = _division(setting).get("clients", keys.get("clients"))
    among = f"{clients:,} clients" if clients else "clients"
    return (
        f"{count(len(labels), 'method')} of federated learning {'are' if len(labels) > 1 else 'is'} tried on "
        f"{named(keys.get('data'))}, dealt to {among}. In each of {setting.rounds:,} rounds, "
        f"{keys.get('cohort')} of them train {named(keys.get('model'))} for "
        f"{count(local.get('epochs'), 'epoch')}. "
        f"All is done with {count(len(_seeds(results, setting)), 'seed')}, and scored by test "
        f"{units.listed([metric.words for metric in setting.metrics])} on {tested([setting])}."
    )


def brief(results: Results) -> str:
    """What makes a setting, at a glance; every key stands at the end of the page."""
    rows: dict[str, list[str]] = {}
    shown = looked_at(results)
    for setting in shown:
        keys, local, division = setting.keys, setting.keys.get("local", {}), _division(setting)
        noted = Folder(setting.out).record().get("settings", {}).get(keys["name"], {})
        clients = division.get("clients", keys.get("clients"))
        numbers = f", {noted['parameters']:,} numbers" if "parameters" in noted else ""
        facts = {
            "methods": ", ".join(map(whole, _texts(keys.get("methods")))),
            "data": named(keys.get("data")),
            "training samples": f"{division['train']:,}" if "train" in division else units.NONE,
            "partition": named(keys.get("partition")),
            "clients": f"{clients}, {keys.get('cohort')} of them in a round",
            "model": f"{named(keys.get('model'))}{numbers}",
            "a visit": f"{local.get('epochs')} epochs of SGD in batches of {local.get('batch')}, rate "
            f"{local.get('lr')}, momentum {local.get('momentum')}, weight decay {local.get('weight_decay')}",
            "rounds": f"{setting.rounds:,}",
            "seeds": ", ".join(map(str, _seeds(results, setting))),
        }
        for name, value in facts.items():
            rows.setdefault(name, []).append(value)
    names = [setting.name for setting in shown]
    return wide(grid(names if len(names) > 1 else [], rows.items()))


def verdict(results: Results, **how: Any) -> list[str]:
    """Who is better than the baseline, in words; nothing where there is nothing to compare."""
    with contextlib.suppress(InputError):
        return judged.in_words(results, **how) if len(results.labels()) > 1 else []
    return []


def lost(results: Results) -> str:
    """The runs that diverged, where each broke, and what is left of it."""
    rounds = [row["rounds"] for row in results.summary if row["diverged"]]
    items = [
        f"{where}; its numbers are of the first {done} rounds"
        for where, done in zip(broken.diverged(results), rounds, strict=True)
    ]
    listed = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<h2>Runs that diverged</h2><ul>{listed}</ul>{paragraphs([broken.HELPS])}" if items else ""


def timing(results: Results) -> str:
    """How long each setting took, how fast it went, and on what."""
    rows = []
    for part in results.parts or (results,):
        record = Folder(part.out).record()
        for setting in part.settings:
            runs = part.summary.where(setting=setting.name)
            seconds = max(part.history.where(setting=setting.name).column("seconds"), default=None)
            done = max(part.history.where(setting=setting.name).column("round"), default=0)
            visits = sum(run["rounds"] or 0 for run in runs) * int(setting.keys.get("cohort") or 0)
            machine = (record.get("settings") or {}).get(setting.keys["name"], {}).get("machine", {})
            facts = [str(machine[key]) for key in ("device_name", "engine", "precision") if key in machine]
            speed = f"{visits / seconds:,.0f} visits a second" if seconds else units.NONE
            cells = [count(len(runs), "run"), f"{done:,} rounds", units.clock(seconds), speed]
            name = f"{setting.name} ({part.out.resolve().name})" if results.parts else setting.name
            rows.append((name, [*cells, ", ".join(facts) or "an unknown machine"]))
    note = "A visit is one client training one model; the time holds evaluation and checkpoints."
    head = ["runs", "rounds", "time (h:min:s)", "speed", "machine"]
    return f"<h2>Time and speed</h2>{wide(grid(head, rows, 'facts'))}{paragraphs([note], 'dim')}"


def setup(results: Results) -> str:
    """Every key of every setting."""
    flat = [flatten(setting.keys) for setting in results.settings]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = [(key, [str(one.get(key, units.NONE)) for one in flat]) for key in keys]
    table = wide(grid([setting.name for setting in results.settings], rows))
    return folded("Every key of every setting", table)


def provenance(results: Results) -> str:
    """Of every study: its folder, versions, hash, the command that repeats it, and its file."""
    found = []
    for part in results.parts or (results,):
        folder = Folder(part.out)
        record = folder.record()
        versions = ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items())
        lines = [
            f"{part.name}, in the folder {part.out.resolve().name}"
            + ("." if part.finished else ": not finished."),
            *([f"Made with {versions}."] if versions else []),
            *_engines(record.get("settings") or {}),
            *([f"Hash of the study: {record['study']}."] if "study" in record else []),
            *(_added(key, made) for key, made in (record.get("added") or {}).items()),
            "To repeat it, save study.yaml below and run, in another folder: fedskip run study.yaml",
        ]
        source = html.escape(folder.file.read_text(encoding="utf-8"))
        listing = folded("study.yaml, and what the study noted about itself", f"<pre>{source}</pre>")
        found.append(paragraphs(lines, "dim") + listing)
    return f"<h2>Where it comes from</h2>{''.join(found)}"


def _engines(settings: dict[str, Any]) -> list[str]:
    """The engine of all settings, and why it was chosen; or a line for each where they differ."""
    found = {}
    for name, noted in settings.items():
        why = f" ({noted['why']})" if noted.get("why") else ""
        found[name] = f"{noted.get('machine', {}).get('engine', units.NONE)}{why}."
    if len(set(found.values())) == 1:
        return [f"Engine: {next(iter(found.values()))}"]
    return [f"Engine of {name}: {line}" for name, line in found.items()]


def _added(part: str, made: Facts) -> str:
    """When and with what runs were added to a setting."""
    setting, _, number = part.rpartition("~")
    versions = ", ".join(f"{name} {version}" for name, version in (made.get("versions") or {}).items())
    return f"Addition {number} to {setting}: {made.get('when', 'when it was run')}, with {versions}."


# --- what the parts are made of ------------------------------------------------------------------------


def grid(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], kind: str = "keys") -> str:
    """A table of text whose rows have names; the cells of one of `keys` may take several lines."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = [
        f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows
    ]
    start = f"<thead><tr><th></th>{top}</tr></thead>" if head else ""
    return f"<table class={kind}>{start}<tbody>{''.join(body)}</tbody></table>"


def whole(text: str) -> str:
    """A method with all that it was made with; as it was written, where it cannot be read.

    >>> whole("fedprox"), whole("not_here:Mine(a=1)")
    ('FedProx(mu=0.01)', 'not_here:Mine(a=1)')
    """
    try:
        [method] = parse(text)
    except (InputError, ValueError):
        return text
    return method.label_with([one.name for one in dataclasses.fields(method) if one.name != "period"])


def _texts(methods: Any) -> list[str]:
    return [methods] if isinstance(methods, str) else list(methods or ())


def named(value: Any) -> str:
    """A data set, a partition or a model with its options, in one line.

    >>> named({"kind": "dirichlet", "beta": 0.5}), named("python:mine.Net")
    ('dirichlet (beta 0.5)', 'Net')
    """
    if not isinstance(value, dict):
        return str(value).rpartition(".")[2]
    tag = next((key for key in ("name", "kind", "file") if key in value), "")
    listed = ", ".join(f"{key} {given}" for key, given in value.items() if key != tag)
    return f"{value.get(tag, '')} ({listed})" if listed else str(value.get(tag))


def _division(setting: About) -> dict[str, Any]:
    return next(iter(setting.divisions.values()), {})


def _seeds(results: Recorded, setting: About) -> list[int]:
    return sorted(set(results.summary.where(setting=setting.name).column("seed")))


def paragraphs(lines: Iterable[str], kind: str = "") -> str:
    return "".join(f"<p{f' class={kind}' if kind else ''}>{html.escape(line)}</p>" for line in lines)


def folded(title: str, inside: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{inside}</details>"


def wide(table: str) -> str:
    return f'<div class="wide">{table}</div>'
