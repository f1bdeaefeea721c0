"""A study to look at: figures as files, and report.html, one page that holds everything and loads nothing."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedskip.config.study import short_names
from fedskip.errors import InputError
from fedskip.files import write_bytes, write_text
from fedskip.report import page_sections as sections
from fedskip.report import sweeps
from fedskip.report.curves import ACROSS, Line, drawable
from fedskip.report.figure_io import new_axes, to_bytes
from fedskip.report.findings import Findings
from fedskip.report.page_sections import paragraphs, wide
from fedskip.report.results import Results, SettingInfo
from fedskip.report.style import look
from fedskip.report.tables import TextTable, notes
from fedskip.report.warnings import warnings

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

Pictures = dict[
    str, list[tuple[str, str, bytes]]
]  # by their heading: kind, description, and an SVG

# name of a file -> a function of `Figures`, its arguments, and a description
FIGURES: dict[str, tuple[str, dict[str, str], str]] = {
    "accuracy": ("curves", {}, "{metric} over rounds"),
    "bytes": ("bytes", {}, "{metric} over bytes sent"),
    "loss": ("curves", {"y": "train_loss"}, "training loss over rounds"),
    "drift": ("drift", {}, "drift of the slots from their mean"),
    "clients": ("clients", {}, "{metric} by client"),
    "routing": ("routing", {}, "the client that each slot visits"),
    "partition": ("partition", {}, "samples of each class and client"),
}
CURVES = ("curves", "bytes", "drift")  # kinds of which the page has charts
STILL = "accuracy"  # the one of these that is a picture, too, for where scripts are off
WORDS = (
    "FedSkip-k is FedAvg that averages models only every k-th round; in between each model travels on to "
    "another client. A merge is such an average, a slot one of the models, a visit one client training a model."
)


# --- files -------------------------------------------------------------------------------------------


def write_report(
    results: Results,
    to: Path | None = None,
    form: str = "svg",
    remarks: Sequence[str] = (),
    findings: Findings | None = None,
) -> None:
    """Write figures/* and report.html into a folder, by default the study's own.

    `remarks`: what a reader has to know on top of what the page says anyway. `findings`: for another
    baseline, score or target than usual.
    """
    to, pictures = to or results.out, Pictures()
    for figure in figures(results):
        with _left_out():
            axes = figure.draw()
            picture = to_bytes(axes, "svg")
            file = picture if form == "svg" else to_bytes(axes, form)
            write_bytes(to / "figures" / f"{figure.name}.{form}", file)
            if figure.kind not in CURVES or figure.name.endswith(f".{STILL}"):
                pictures.setdefault(figure.place, []).append((figure.kind, figure.words, picture))
    main = content(findings or Findings(results), pictures, remarks)
    write_text(to / "report.html", page(results.name, main))


@contextlib.contextmanager
def _left_out() -> Iterator[None]:
    """Leave out a figure of what was not measured or kept; where a file is damaged, warn."""
    try:
        yield
    except InputError as error:
        if Path(error.field.partition(" line ")[0]).is_file():
            log.warning("a figure is left out: %s", error)


class Figure(NamedTuple):
    """A figure to draw, if what it shows was measured."""

    place: str  # its heading on the page
    name: str  # of its file
    kind: str  # the function of `Figures`
    words: str  # what it shows
    draw: Callable[[], Axes]


def figures(results: Results) -> list[Figure]:
    """All figures of a study."""
    listed = []

    def add(place: str, name: str, kind: str, words: str, **how: str) -> None:
        listed.append(Figure(place, name, kind, words, partial(_draw, results, kind, how)))

    for setting in results.shown:
        place = setting.name
        for name, (kind, how, words) in FIGURES.items():
            if name == "clients" and not (setting.out / "clients.csv").exists():
                continue
            words = words.format(metric=setting.metric.words)
            add(place, f"{place}.{name}", kind, words, setting=place, **how)
        for metric in setting.metrics[1:] if not setting.by else ():
            column, words = metric.column, f"{metric.words} over rounds"
            add(place, f"{place}.{column}", "curves", words, setting=place, y=column)
    for sweep in sweeps.sweeps(results):
        for key, short in short_names(sweep.keys).items():
            place, name = f"{sweep.name}: swept values", f"{sweep.name}.sweep-{short}"
            add(place, name, "sweep", key, setting=sweep.name, parameter=key)
    words = "a score over the rounds from merge to merge"
    add("periods", "sweep", "sweep", words, parameter="period", score="mean_tail")
    return listed


def _draw(results: Results, kind: str, how: dict[str, Any]) -> Axes:
    axes: Axes = getattr(results.plot, kind)(**how, axes=new_axes(None))
    return axes


# --- the page ----------------------------------------------------------------------------------------


def page(title: str, main: str, *, served: bool = False) -> str:
    """A page as text. A file holds its own security policy; one that is `served` is sent with it."""
    style = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    rule = "" if served else f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{rule}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f"<body>{main}<script>{script()}</script></body></html>\n"
    )


@cache
def script() -> str:
    """The script that draws the charts."""
    return Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


@cache
def policy() -> str:
    """What a page may load and run: nothing but its own script, known by its hash."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    images, style = "img-src data:", "style-src 'unsafe-inline'"
    return f"default-src 'none'; {images}; {style}; script-src 'sha256-{digest}'"


def content(
    findings: Findings, pictures: Pictures, remarks: Sequence[str] = (), *, stamp: str = ""
) -> str:
    """All that a page shows, as HTML. `stamp`: its version, where a server keeps it up to date."""
    results = findings.results
    marks = [] if results.finished else ["Not finished: these are the numbers so far."]
    marks += [f"{one.name}, {remark}." for one in results.settings for remark in one.remarks]
    verdict = [*findings.sentences(), *warnings(results), *remarks]
    parts = [
        f"<h1>{html.escape(results.name)}</h1>{paragraphs(marks, 'mark')}",
        f'<div class="verdict">{paragraphs(verdict)}</div>' if verdict else "",
        _headed("Set-up", sections.setup(results)),
        _headed("Results", wide(findings.closing.html())),
        paragraphs([*notes(results), WORDS], "dim"),
        *(_headed(table.title, wide(table.html())) for table in findings.further),
        *(_headed(table.title, _with_note(table)) for table in findings.tables.values()),
    ]
    numbers = charts(results)
    charted = [setting.name for setting in results.shown] if numbers else []
    for place in dict.fromkeys([*charted, *pictures]):
        chart = f'<div data-chart="{html.escape(place)}"></div>' if place in charted else ""
        images = "".join(
            _image(kind, f"{place}: {words}", picture)
            for kind, words, picture in pictures.get(place, [])
        )
        parts.append(_headed(place, f'{chart}<div class="figures">{images}</div>'))
    parts += [
        sections.diverged(results),
        sections.timing(results),
        sections.all_keys(results),
        sections.provenance(results),
    ]
    data = f'<script type="application/json" id="numbers">{numbers}</script>' if numbers else ""
    return f'<main data-stamp="{stamp}">{"".join(parts)}{data}</main>'


def _headed(title: str, inside: str) -> str:
    return f"<h2>{html.escape(title)}</h2>{inside}"


def _with_note(table: TextTable) -> str:
    return wide(table.html()) + paragraphs([table.note], "dim")


def _image(kind: str, words: str, picture: bytes) -> str:
    """A picture that is part of the page."""
    source = f"data:image/svg+xml;base64,{base64.b64encode(_compact(picture)).decode()}"
    still = " class=still" if kind in CURVES else ""
    return f'<figure{still}><img alt="{html.escape(words)}" src="{source}"></figure>'


def _compact(picture: bytes) -> bytes:
    """An SVG with a decimal for each number, and without metadata and empty space."""
    text = re.sub(rb"<metadata>.*?</metadata>", b"", picture, flags=re.DOTALL)
    text = re.sub(rb"(?<![\w.#])-?\d+\.\d{2,}", lambda found: b"%.1f" % float(found[0]), text)
    text = re.sub(rb' transform="rotate\(-0 [^"]*"', b"", text)
    return re.sub(rb"\s*\n\s*", b"\n", text).replace(b"\nL ", b"L")


# --- the numbers of the charts, which page.js draws ----------------------------------------------------


def charts(results: Results) -> str:
    """The numbers of all charts, as JSON that may stand in a page; empty where there are none."""
    drawn = [_chart(results, one) for one in results.shown if results.labels(one.name)]
    drawn = [chart for chart in drawn if chart["views"]]
    if not drawn:
        return ""
    text = json.dumps({"across": ACROSS, "charts": drawn}, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _chart(results: Results, setting: SettingInfo) -> dict[str, Any]:
    """A setting: the looks of its methods, their values for the x axis, and lines by what they show."""
    labels = results.labels(setting.name)
    across: dict[str, list[dict[str, list[float]]]] = {label: [] for label in labels}
    views = {}
    for y in drawable(setting):
        shown = results.plot.lines(setting.name, y)
        if shown.lines:
            views[y] = {
                "name": shown.name, "log": shown.logarithmic, "limits": shown.limits, "banded": shown.banded,
                "note": "; ".join(shown.notes), "references": shown.references,
                "lines": {m: _line(line, shown.banded, across[m]) for m, line in shown.lines.items()},
            }  # fmt: skip
    looks = {label: look(label) for label in labels}
    methods = {label: {"colour": one.colour, "dash": one.line} for label, one in looks.items()}
    return {"name": setting.name, "methods": methods, "across": across, "views": views}


def _line(line: Line, banded: bool, across: list[dict[str, list[float]]]) -> dict[str, Any]:
    """A line; most share their values for the x axis: `at` says which of `across` are its own."""
    xs = {name: _short(values, 6) for name, values in line.across.items()}
    if xs not in across:
        across.append(xs)
    names = ("mean", "low", "high") if banded else ("mean",)
    return {"at": across.index(xs), **{name: _short(getattr(line, name), 4) for name in names}}


def _short(values: np.ndarray, digits: int) -> list[float]:
    """With as many digits as a chart can show."""
    rounded = (float(f"{value:.{digits}g}") for value in values)
    return [int(value) if value == int(value) else value for value in rounded]
