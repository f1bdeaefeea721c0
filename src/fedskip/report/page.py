"""A study to look at: figures as files, and report.html, one page that holds everything and loads nothing."""

from __future__ import annotations

import base64
import contextlib
import html
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskip.files import write_bytes, write_text
from fedskip.input.errors import InputError
from fedskip.records.provenance import Folder
from fedskip.report import units
from fedskip.report.canvas import drawn, new_axes
from fedskip.report.closing import notes, scored
from fedskip.report.recorded import About
from fedskip.report.results import Results
from fedskip.report.verdict import compared, in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pictures = dict[str, list[tuple[str, bytes]]]  # by their place on the page: words, and an SVG

# name of a file -> the figure of `Plot`, its arguments, and what it shows
FIGURES: dict[str, tuple[str, dict[str, str], str]] = {
    "accuracy": ("curves", {}, "accuracy over rounds"),
    "bytes": ("bytes", {}, "accuracy over what was sent"),
    "loss": ("curves", {"y": "train_loss"}, "training loss over rounds"),
    "drift": ("drift", {}, "how far the slots are apart"),
    "clients": ("clients", {}, "accuracy by client"),
    "routing": ("routing", {}, "which client each slot visits"),
    "partition": ("partition", {}, "who has how much of what"),
}
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # what the page may load: nothing


def write_report(
    results: Results, to: Path | None = None, form: str = "svg", said: Sequence[str] = (), **how: Any
) -> None:
    """Write figures/* and report.html into a folder, the study's own unless told otherwise.

    `said`: what has to be known to read the results, on top of what the page says anyway. `how`: the
    baseline and the score by which methods are compared.
    """
    to, pictures = to or results.out, Pictures()
    for place, name, words, axes in figures(results):
        picture = drawn(axes, "svg")
        write_bytes(to / "figures" / f"{name}.{form}", picture if form == "svg" else drawn(axes, form))
        pictures.setdefault(place, []).append((words, picture))
    write_text(to / "report.html", page(results, pictures, said, **how))


def figures(results: Results) -> Iterator[tuple[str, str, str, Axes]]:
    """Where each figure stands on the page, the name of its file, what it shows, and the figure."""
    wanted = [
        (setting.name, f"{setting.name}.{name}", words, kind, {"setting": setting.name, **how})
        for setting in results.compared
        for name, (kind, how, words) in FIGURES.items()
    ]
    wanted.append(("periods", "sweep", "a score over the rounds from merge to merge", "sweep", {}))
    for place, name, words, kind, how in wanted:
        with contextlib.suppress(InputError):  # of what was not measured or kept
            yield place, name, words, getattr(results.plot, kind)(**how, axes=new_axes(None))


def page(results: Results, pictures: Pictures, said: Sequence[str] = (), script: str = "", **how: Any) -> str:
    """The page as text.

    `script`: what keeps it up to date, a tag with a nonce.
    """
    title = html.escape(results.name)
    under_way = "" if results.finished else "<p class=mark>Not finished: these are the numbers so far.</p>"
    parts = [
        f"<h1>{title}</h1>{under_way}{paragraphs([about(results, setting) for setting in results.compared])}",
        f'<div class="verdict">{paragraphs([*verdict(results, **how), *said])}</div>',
        f"<h2>Results</h2>{wide(scored(results).html())}{paragraphs(notes(results), 'dim')}",
    ]
    if verdict(results, **how):
        sheet = compared(results, **how)
        parts.append(f"<h2>Differences ({html.escape(sheet.title)})</h2>{wide(sheet.html())}")
    for place, found in pictures.items():
        images = "".join(image(f"{place}: {words}", picture) for words, picture in found)
        parts.append(f'<h2>{html.escape(place)}</h2><div class="figures">{images}</div>')
    parts += [lost(results), setup(results), provenance(results)]
    style = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        + ("" if script else f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">')
        + f"<style>{style}</style></head><body>{''.join(parts)}{script}</body></html>\n"
    )


def image(words: str, picture: bytes) -> str:
    """A picture that is part of the page."""
    source = f"data:image/svg+xml;base64,{base64.b64encode(picture).decode()}"
    return f'<figure><img alt="{html.escape(words)}" src="{source}"></figure>'


def about(results: Results, setting: About) -> str:
    """What a setting is, in words."""
    keys, labels = setting.keys, results.labels(setting.name)
    seeds = len(set(results.summary.where(setting=setting.name).column("seed")))
    division = next(iter(setting.divisions.values()), {})
    clients = f"{division['clients']:,} clients" if "clients" in division else "clients"
    train = f", {division['train']:,} training samples" if "train" in division else ""
    local, start = keys.get("local", {}), f"{setting.name}: " if len(results.compared) > 1 else ""
    return (
        f"{start}{len(labels)} method{'s' * (len(labels) > 1)} on {named(keys.get('data'))}, dealt "
        f"to {clients} ({named(keys.get('partition'))}{train}), {keys.get('cohort')} of them in a round, for "
        f"{setting.rounds:,} rounds with {seeds} seed{'s' * (seeds > 1)}. The model is "
        f"{named(keys.get('model'))}; a visit is {local.get('epochs')} epochs of SGD in batches of "
        f"{local.get('batch')} at a rate of {local.get('lr')}, momentum {local.get('momentum')}."
    )


def verdict(results: Results, **how: Any) -> list[str]:
    """Who is better than the baseline, in words; nothing where there is nothing to compare."""
    with contextlib.suppress(InputError):
        return in_words(results, **how) if len(results.labels()) > 1 else []
    return []


def lost(results: Results) -> str:
    """The runs that diverged, where each broke, and what is left of it."""
    items = []
    for row in results.summary:
        if row["diverged"]:
            at, client = row.get("broke_round"), row.get("broke_client")
            where = "its losses were finite" if at is None else f"in round {at}, at client {client}"
            items.append(f"{row['run']}: {where}; its numbers are of the first {row['rounds']} rounds")
    listed = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<h2>Runs that diverged</h2><ul>{listed}</ul>" if items else ""


def setup(results: Results) -> str:
    """Every key of every setting."""
    flat = [dict(flattened(setting.keys)) for setting in results.settings]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    head = "".join(f"<th>{html.escape(setting.name)}</th>" for setting in results.settings)
    rows = []
    for key in keys:
        cells = "".join(f"<td>{html.escape(str(one.get(key, units.NONE)))}</td>" for one in flat)
        rows.append(f"<tr><th>{html.escape(key)}</th>{cells}</tr>")
    body = f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return "<h2>Set-up</h2>" + wide(f"<table class=keys>{body}</table>")


def provenance(results: Results) -> str:
    """Time, machine, versions, and the file that the study can be run from again."""
    lines: list[str] = []
    versions: dict[str, str] = {}
    for setting in results.settings:
        record = Folder(setting.out).record()
        versions |= record.get("versions") or {}
        machine = (record.get("settings") or {}).get(setting.keys["name"], {}).get("machine", {})
        facts = [str(machine[key]) for key in ("device_name", "engine", "precision") if key in machine]
        seconds = max(results.history.where(setting=setting.name).column("seconds"), default=None)
        lines.append(f"{setting.name}: {units.clock(seconds)} on {', '.join(facts) or 'an unknown machine'}.")
    lines += [", ".join(f"{name} {version}" for name, version in versions.items())] if versions else []
    lines.append(f"From {results.out}. Run it again with: fedskip run study.yaml --out NEW")
    study = html.escape((results.out / "study.yaml").read_text(encoding="utf-8"))
    source = f"<details><summary>study.yaml</summary><pre>{study}</pre></details>"
    return f"<h2>Where it comes from</h2>{paragraphs(lines, 'dim')}{source}"


def named(value: Any) -> str:
    """A data set, a partition or a model with its options, in one line."""
    if not isinstance(value, dict):
        return str(value).rpartition(".")[2]
    tag = next((key for key in ("name", "kind", "file") if key in value), "")
    listed = ", ".join(f"{key} {given}" for key, given in value.items() if key != tag)
    return f"{value.get(tag, '')} ({listed})" if listed else str(value.get(tag))


def flattened(keys: dict[str, Any], at: str = "") -> list[tuple[str, Any]]:
    """Nested keys as dotted ones."""
    found = []
    for key, value in keys.items():
        found += flattened(value, f"{at}{key}.") if isinstance(value, dict) else [(f"{at}{key}", value)]
    return found


def paragraphs(lines: list[str], kind: str = "") -> str:
    return "".join(f"<p{f' class={kind}' if kind else ''}>{html.escape(line)}</p>" for line in lines)


def wide(table: str) -> str:
    return f'<div class="wide">{table}</div>'
