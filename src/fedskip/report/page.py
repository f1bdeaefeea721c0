"""A study to look at: figures as files, and report.html, one page that holds everything and loads nothing."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedskip.files import write_bytes, write_text
from fedskip.input.errors import InputError
from fedskip.report import parts, reach, sweep
from fedskip.report.canvas import drawn, new_axes
from fedskip.report.charts import charts, scripts
from fedskip.report.closing import further, notes, scored
from fedskip.report.parts import paragraphs, wide
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet
from fedskip.report.verdict import compared
from fedskip.report.warned import warnings
from fedskip.spec.grid import short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

Pictures = dict[str, list[tuple[str, str, bytes]]]  # by their place on the page: kind, words, and an SVG

# name of a file -> the figure of `Plot`, its arguments, and what it shows; {metric} is the setting's
FIGURES: dict[str, tuple[str, dict[str, str], str]] = {
    "accuracy": ("curves", {}, "{metric} over rounds"),
    "bytes": ("bytes", {}, "{metric} over what was sent"),
    "loss": ("curves", {"y": "train_loss"}, "training loss over rounds"),
    "drift": ("drift", {}, "how far the slots are apart"),
    "clients": ("clients", {}, "{metric} by client"),
    "routing": ("routing", {}, "which client each slot visits"),
    "partition": ("partition", {}, "who has how much of what"),
}
WORDS = (
    "FedSkip-k is FedAvg that averages only every k-th round; in between each model travels on to another "
    "client. A merge is such an average, a slot one of the models, a visit one client training one of them."
)
CURVES = ("curves", "bytes", "drift")  # which charts show, too, where scripts run


def write_report(
    results: Results, to: Path | None = None, form: str = "svg", said: Sequence[str] = (), **how: Any
) -> None:
    """Write figures/* and report.html into a folder, the study's own unless told otherwise.

    `said`: what has to be known to read the results, on top of what the page says anyway. `how`: the
    baseline and the score by which methods are compared, and the target that they are to reach.
    """
    to, pictures = to or results.out, Pictures()
    for figure in figures(results):
        with _left_out():
            axes = figure.draw()
            picture = drawn(axes, "svg")
            file = picture if form == "svg" else drawn(axes, form)
            write_bytes(to / "figures" / f"{figure.name}.{form}", file)
            pictures.setdefault(figure.place, []).append((figure.kind, figure.words, picture))
    write_text(to / "report.html", page(results.name, content(results, pictures, said, **how)))


@contextlib.contextmanager
def _left_out() -> Iterator[None]:
    """A figure of what was not measured or not kept is left out; of what is damaged, with a word."""
    try:
        yield
    except InputError as error:
        if Path(error.field.partition(" line ")[0]).is_file():
            log.warning("a figure is left out: %s", error)


class Figure(NamedTuple):
    """A figure to draw, if what it shows was measured."""

    place: str  # on the page
    name: str  # of its file
    kind: str  # of `Plot`
    words: str  # what it shows
    draw: Callable[[], Axes]


def figures(results: Results) -> list[Figure]:
    """All figures of a study."""
    wanted: list[tuple[str, str, str, str, dict[str, str]]] = []
    for setting in sweep.looked_at(results):
        known = {
            name: (kind, how, words.format(metric=setting.metric.words))
            for name, (kind, how, words) in FIGURES.items()
        }
        if not setting.by:
            known |= {
                metric.column: ("curves", {"y": metric.column}, f"{metric.words} over rounds")
                for metric in setting.metrics[1:]
            }
        wanted += [
            (setting.name, f"{setting.name}.{name}", kind, words, {"setting": setting.name, **how})
            for name, (kind, how, words) in known.items()
        ]
    for one in sweep.sweeps(results):
        for key, short in short_names(one.keys).items():
            how = {"setting": one.name, "parameter": key}
            wanted.append((f"{one.name}: what was swept", f"{one.name}.sweep-{short}", "sweep", key, how))
    words, how = "a score over the rounds from merge to merge", {"score": "mean_tail", "parameter": "period"}
    wanted.append(("periods", "sweep", "sweep", words, how))
    return [
        Figure(place, name, kind, words, partial(_draw, results, kind, how))
        for place, name, kind, words, how in wanted
    ]


def _draw(results: Results, kind: str, how: dict[str, Any]) -> Axes:
    axes: Axes = getattr(results.plot, kind)(**how, axes=new_axes(None))
    return axes


def page(title: str, main: str, *, served: bool = False) -> str:
    """A page as text. The policy of one that is `served` comes with it; a file holds its own."""
    style = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    rule = "" if served else f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
    code = "".join(f"<script>{script}</script>" for script in scripts())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{rule}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body>{main}{code}</body></html>\n"
    )


@cache
def policy() -> str:
    """What a page may load and run: nothing but its own scripts, known by their hashes."""
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts()]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {allowed}"


def content(
    results: Results,
    pictures: Pictures,
    said: Sequence[str] = (),
    *,
    stamp: str = "",
    baseline: str | None = None,
    score: str = "mean_tail",
    target: reach.Target = None,
) -> str:
    """All that a page shows, as HTML. `stamp`: what a server knows it by, if one keeps it up to date."""
    how: dict[str, Any] = {"baseline": baseline, "score": score}
    marks = [] if results.finished else ["Not finished: these are the numbers so far."]
    marks += [f"{setting.name}, {words}." for setting in results.settings for words in setting.marks]
    words, bill = parts.verdict(results, **how), reach.in_words(results, target)
    said = [*warnings(results), *said]
    tuned = sweep.in_words(results)
    found = [
        f"<h1>{html.escape(results.name)}</h1>{paragraphs(marks, 'mark')}{parts.about(results)}",
        f'<div class="verdict">{paragraphs([*tuned, *words, *bill, *said])}</div>'
        if tuned or words or bill or said
        else "",
        f"<h2>Set-up</h2>{parts.brief(results)}",
        f"<h2>Results</h2>{wide(scored(results).html())}{paragraphs([*notes(results), WORDS], 'dim')}",
    ]
    for sheet in further(results):
        found.append(f"<h2>{html.escape(sheet.title)}</h2>{wide(sheet.html())}")
    if tuned:
        found.append(f"<h2>Best values</h2>{described(sweep.sheet(results))}")
    if words:
        sheet = compared(results, **how)
        found.append(f"<h2>Differences ({html.escape(sheet.title)})</h2>{described(sheet)}")
    if reach.reachable(results, target):
        sheet = reach.reached(results, target)
        found.append(f"<h2>{html.escape(sheet.title)}</h2>{described(sheet)}")
    numbers = charts(results)
    charted = [setting.name for setting in sweep.looked_at(results)] if numbers else []
    for place in dict.fromkeys([*charted, *pictures]):
        some = pictures.get(place, [])
        chart = f'<div data-chart="{html.escape(place)}"></div>' if place in charted else ""
        images = "".join(image(kind, f"{place}: {words}", picture) for kind, words, picture in some)
        found.append(f'<h2>{html.escape(place)}</h2>{chart}<div class="figures">{images}</div>')
    found += [parts.lost(results), parts.timing(results), parts.setup(results), parts.provenance(results)]
    data = f'<script type="application/json" id="numbers">{numbers}</script>' if numbers else ""
    return f'<main data-stamp="{stamp}">{"".join(found)}{data}</main>'


def described(sheet: Sheet) -> str:
    return wide(sheet.html()) + paragraphs([sheet.note], "dim")


def image(kind: str, words: str, picture: bytes) -> str:
    """A picture that is part of the page."""
    source = f"data:image/svg+xml;base64,{base64.b64encode(picture).decode()}"
    still = " class=still" if kind in CURVES else ""
    return f'<figure{still}><img alt="{html.escape(words)}" src="{source}"></figure>'
