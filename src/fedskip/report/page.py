"""A study to look at: figures as files, and report.html, one page that holds everything and loads nothing.

`serve` shows the page on localhost while a study runs. It reads the folder and never writes. An open tab asks for
events: its connection looks at the folder twice a second and sends an event when there is something new.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedskip.config import RECORD
from fedskip.config.study import short_names
from fedskip.config.tree import flatten
from fedskip.errors import InputError, option
from fedskip.files import refuse_link, write_bytes, write_text
from fedskip.records.folder import Facts
from fedskip.report.figures import ACROSS, curves, drawable, look, new_axes, to_bytes
from fedskip.report.findings import Findings
from fedskip.report.results import Results, SettingInfo
from fedskip.report.statistics import sweeps
from fedskip.report.tables import (
    DIVERGED_HELP,
    NONE,
    clock,
    count,
    diverged_runs,
    listed,
    test_samples,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

# by their heading: kind, description, and an SVG
Pictures = dict[str, list[tuple[str, str, bytes]]]

# name of a file -> a function of `Figures`, its arguments, and a description
FIGURES: dict[str, tuple[str, dict[str, str], str]] = {
    "accuracy": ("curves", {}, "{metric} over rounds"),
    "bytes": ("curves", {"x": "bytes"}, "{metric} over bytes sent"),
    "loss": ("curves", {"y": "train_loss"}, "training loss over rounds"),
    "drift": ("curves", {"y": "drift_mean"}, "drift of the slots from their mean"),
    "clients": ("clients", {}, "{metric} by client"),
    "routing": ("routing", {}, "the client that each slot visits"),
    "partition": ("partition", {}, "samples of each class and client"),
}
CURVES = "curves"  # the kind of which the page has charts
STILL = "accuracy"  # the one of these that is a picture, too, for where scripts are off
STEADY = ("routing", "partition")  # kinds that do not change while a study runs
GLOSSARY = (
    "FedSkip-k is FedAvg that averages models only every k-th round; in between each model travels on to "
    "another client. A merge is such an average, a slot one of the models, a visit one client training a model."
)
IDLE = 20.0  # seconds after which a connection that asks for nothing is closed
LOOK, BEAT = 0.5, 15.0  # seconds between looks at the folder, and between signs of life
REST = 0.5  # share of the time that a page took, until the next look
HERE = ("127.0.0.1", "localhost")
# what a served page may do, beside what `policy` allows
SERVED_POLICY = "connect-src 'self'; base-uri 'none'; form-action 'none'"


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
    refuse_link(to / "figures")
    for figure in figures(results):
        try:
            axes = figure.draw()
        except InputError as error:  # not measured or kept; if a file is damaged, say so
            if Path(error.field.partition(" line ")[0]).is_file():
                log.warning("a figure is left out: %s", error)
            continue
        picture = to_bytes(axes, "svg")
        file = picture if form == "svg" else to_bytes(axes, form)
        write_bytes(to / "figures" / f"{figure.name}.{form}", file)
        if figure.kind != CURVES or figure.name.endswith(f".{STILL}"):
            pictures.setdefault(figure.place, []).append((figure.kind, figure.words, picture))
    main = content(findings or Findings(results), pictures, remarks)
    write_text(to / "report.html", page(results.name, main))


class Figure(NamedTuple):
    """A figure to draw, if what it shows was measured."""

    place: str  # its heading on the page
    name: str  # of its file
    kind: str  # the function of `Figures`
    words: str  # what it shows
    draw: Callable[[], Axes]


def figures(results: Results) -> list[Figure]:
    """All figures of a study."""
    drawn = []

    def add(place: str, name: str, kind: str, words: str, **how: str) -> None:
        function = getattr(results.plot, kind)
        drawn.append(Figure(place, name, kind, words, lambda: function(**how, axes=new_axes(None))))

    for setting in results.shown:
        place, words = setting.name, setting.metric.words
        for name, (kind, how, what) in FIGURES.items():
            if name != "clients" or (setting.out / "clients.csv").exists():
                what = what.format(metric=words)
                add(place, f"{place}.{name}", kind, what, setting=place, **how)
        for metric in setting.metrics[1:] if not setting.by else ():
            name, what = f"{place}.{metric.column}", f"{metric.words} over rounds"
            add(place, name, CURVES, what, setting=place, y=metric.column)
    for sweep in sweeps(results):
        for key, short in short_names(sweep.keys).items():
            place, name = f"{sweep.name}: swept values", f"{sweep.name}.sweep-{short}"
            add(place, name, "sweep", key, setting=sweep.name, parameter=key)
    periods = {label for label in results.labels() if label.startswith("FedSkip-")}
    if len(periods) > 1:
        words = "a score over the rounds from merge to merge"
        add("periods", "sweep", "sweep", words, parameter="period", score="mean_tail")
    return drawn


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
    verdict = [*findings.sentences(), *findings.warnings, *remarks]
    parts = [
        f"<h1>{html.escape(results.name)}</h1>{paragraphs(marks, 'mark')}",
        f'<div class="verdict">{paragraphs(verdict)}</div>' if verdict else "",
        f"<h2>Set-up</h2>{setup(results)}",
        f"<h2>Results</h2>{wide(findings.closing.html())}",
        paragraphs([*findings.closing.note.splitlines(), GLOSSARY], "dim"),
    ]
    for table in findings.further:
        parts.append(f"<h2>{html.escape(table.title)}</h2>{wide(table.html())}")
    for table in findings.tables.values():
        parts.append(f"<h2>{html.escape(table.title)}</h2>{wide(table.html())}")
        parts.append(paragraphs([table.note], "dim"))
    numbers = charts(results)
    charted = [setting.name for setting in results.shown] if numbers else []
    for place in dict.fromkeys([*charted, *pictures]):
        name = html.escape(place)
        chart = f'<div data-chart="{name}"></div>' if place in charted else ""
        images = "".join(_image(place, *picture) for picture in pictures.get(place, []))
        parts.append(f'<h2>{name}</h2>{chart}<div class="figures">{images}</div>')
    parts += [diverged(results), timing(results), all_keys(results), provenance(results)]
    data = f'<script type="application/json" id="numbers">{numbers}</script>' if numbers else ""
    return f'<main data-stamp="{stamp}">{"".join(parts)}{data}</main>'


def _image(place: str, kind: str, words: str, picture: bytes) -> str:
    """A picture that is part of the page: an SVG with a decimal for each number, and no metadata."""
    text = re.sub(rb"<metadata>.*?</metadata>", b"", picture, flags=re.DOTALL)
    text = re.sub(rb"(?<![\w.#])-?\d+\.\d{2,}", lambda found: b"%.1f" % float(found[0]), text)
    text = re.sub(rb' transform="rotate\(-0 [^"]*"', b"", text)
    text = re.sub(rb"\s*\n\s*", b"\n", text).replace(b"\nL ", b"L")
    source = f"data:image/svg+xml;base64,{base64.b64encode(text).decode()}"
    still = " class=still" if kind == CURVES else ""
    return f'<figure{still}><img alt="{html.escape(f"{place}: {words}")}" src="{source}"></figure>'


def paragraphs(lines: Iterable[str], kind: str = "") -> str:
    start = f"<p class={kind}>" if kind else "<p>"
    return "".join(f"{start}{html.escape(line)}</p>" for line in lines)


def wide(table: str) -> str:
    """A table that scrolls sideways where the screen is narrow."""
    return f'<div class="wide">{table}</div>'


def grid(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], kind: str = "keys") -> str:
    """A table of text whose rows have names; the cells of one of `keys` may take several lines."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = [
        f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows
    ]
    start = f"<thead><tr><th></th>{top}</tr></thead>" if head else ""
    return wide(f"<table class={kind}>{start}<tbody>{''.join(body)}</tbody></table>")


# --- its sections --------------------------------------------------------------------------------------


def setup(results: Results) -> str:
    """The settings at a glance; every key stands at the end of the page."""
    rows: dict[str, list[str]] = {}
    for setting in results.shown:
        keys, local = setting.keys, setting.keys.get("local", {})
        division: Facts = next(iter(setting.divisions.values()), {})
        clients = division.get("clients", keys.get("clients"))
        parameters = setting.noted.get("parameters")
        seeds = sorted(results.runs(setting.name)["seed"].unique())
        facts = {
            "methods": ", ".join(setting.methods),
            "data": named(keys.get("data")),
            "training samples": f"{division['train']:,}" if "train" in division else NONE,
            "partition": named(keys.get("partition")),
            "clients": f"{clients}, {keys.get('cohort')} of them in a round",
            "model": named(keys.get("model")) + (f", {parameters:,} numbers" if parameters else ""),
            "a visit": f"{count(local.get('epochs'), 'epoch')} of SGD in batches of {local.get('batch')}, rate "
            f"{local.get('lr')}, momentum {local.get('momentum')}, weight decay {local.get('weight_decay')}",
            "rounds": f"{setting.rounds:,}",
            "metrics": f"{listed([one.words for one in setting.metrics])}, on {test_samples([setting])}",
            "seeds": ", ".join(map(str, seeds)),
        }
        for name, value in facts.items():
            rows.setdefault(name, []).append(value)
    names = [setting.name for setting in results.shown]
    return grid(names if len(names) > 1 else [], rows.items())


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


def diverged(results: Results) -> str:
    """The runs that diverged, where, and what their numbers are of."""
    lines = [
        f"{row['run']} {row['where']}; its numbers are of the first {row['rounds']} rounds"
        for row in diverged_runs(results)
    ]
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    title = "<h2>Runs that diverged</h2>"
    return f"{title}<ul>{items}</ul>{paragraphs([DIVERGED_HELP])}" if lines else ""


def timing(results: Results) -> str:
    """How long each setting took, how fast it went, and on what."""
    rows = []
    for study in results.studies or (results,):
        for setting in study.settings:
            runs, history = study.runs(setting.name), study.rows(setting.name)
            seconds = float(history["seconds"].max()) if len(history) else None
            rounds = int(history["round"].max()) if len(history) else 0
            visits = int(runs["rounds"].sum()) * int(setting.keys.get("cohort") or 0)
            machine = setting.noted.get("machine") or {}
            facts = [machine.get(name) for name in ("device_name", "engine", "precision")]
            speed = f"{visits / seconds:,.0f} visits a second" if seconds else NONE
            cells = [count(len(runs), "run"), f"{rounds:,} rounds", clock(seconds), speed]
            folder = f" ({study.out.resolve().name})" if results.studies else ""
            where = ", ".join(str(fact) for fact in facts if fact) or "an unknown machine"
            rows.append((f"{setting.name}{folder}", [*cells, where]))
    head = ["runs", "rounds", "time (h:min:s)", "speed", "machine"]
    note = "A visit is one client training one model; the time includes evaluation and checkpoints."
    return f"<h2>Time and speed</h2>{grid(head, rows, 'facts')}{paragraphs([note], 'dim')}"


def all_keys(results: Results) -> str:
    """Every key of every setting."""
    flat = [
        flatten({key: value for key, value in setting.keys.items() if key != RECORD})
        for setting in results.settings
    ]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = [(key, [str(one.get(key, NONE)) for one in flat]) for key in keys]
    table = grid([setting.name for setting in results.settings], rows)
    return f"<details><summary>Every key of every setting</summary>{table}</details>"


def provenance(results: Results) -> str:
    """Of every study: its folder, versions, hash, the command that repeats it, and study.yaml."""
    parts = []
    for study in results.studies or (results,):
        record = study.record
        state = "." if study.finished else ": not finished."
        lines = [f"{study.name}, in the folder {study.out.resolve().name}{state}"]
        if versions := _versions(record):
            lines.append(f"Made with {versions}.")
        by_engine: dict[str, list[str]] = {}  # settings by their engine, and why it was chosen
        for name, noted in (record.get("settings") or {}).items():
            why = f" ({noted['why']})" if noted.get("why") else ""
            engine = noted.get("machine", {}).get("engine", NONE)
            by_engine.setdefault(f"{engine}{why}", []).append(name)
        lines += [f"Engine of {listed(names)}: {engine}." for engine, names in by_engine.items()]
        lines += [f"Hash of the study: {record['study']}."] if "study" in record else []
        for part, facts in (record.get("added") or {}).items():
            setting, _, number = part.rpartition("~")
            when = facts.get("when", "when it was run")
            lines.append(f"Addition {number} to {setting}: {when}, with {_versions(facts)}.")
        repeat = "To repeat it, save study.yaml below and run, elsewhere: fedskip run study.yaml"
        source = html.escape((study.out / "study.yaml").read_text(encoding="utf-8"))
        title = "<summary>study.yaml, with what the study noted about itself</summary>"
        listing = f"<details>{title}<pre>{source}</pre></details>"
        parts.append(paragraphs([*lines, repeat], "dim") + listing)
    return f"<h2>Where it comes from</h2>{''.join(parts)}"


def _versions(facts: Facts) -> str:
    return ", ".join(f"{name} {number}" for name, number in (facts.get("versions") or {}).items())


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
    """A setting: the looks of its methods, their values for the x axis, and lines by what they show.

    Most lines of a method share their x values: `at` says which of `across` are a line's own.
    """
    looks = {label: look(label) for label in results.labels(setting.name)}
    across: dict[str, list[dict[str, list[float]]]] = {label: [] for label in looks}
    views = {}
    for y in drawable(setting):
        shown = curves(results, setting, y)
        lines: dict[str, dict[str, Any]] = {}
        for label, line in shown.lines.items():
            xs = {name: _rounded(line[name], 6) for name in ACROSS}
            if xs not in across[label]:
                across[label].append(xs)
            names = ("mean", "low", "high") if shown.banded else ("mean",)
            lines[label] = {"at": across[label].index(xs)}
            lines[label] |= {name: _rounded(line[name], 4) for name in names}
        if lines:
            views[y] = {
                "name": shown.name, "log": shown.logarithmic, "limits": shown.limits, "banded": shown.banded,
                "note": "; ".join(shown.notes), "references": shown.references, "lines": lines,
            }  # fmt: skip
    methods = {label: {"colour": one.colour, "dash": one.line} for label, one in looks.items()}
    return {"name": setting.name, "methods": methods, "across": across, "views": views}


def _rounded(values: pd.Series, digits: int) -> list[float]:
    """With as many digits as a chart can show."""
    rounded = (float(f"{value:.{digits}g}") for value in values)
    return [int(value) if value == int(value) else value for value in rounded]


# --- on localhost --------------------------------------------------------------------------------------


class Watched:
    """The folder of a study, and its page; it is rendered once for all tabs."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._lock = threading.Lock()  # matplotlib's settings are the process's
        self._rendered = ("", "")
        self._drawn: dict[str, bytes] = {}  # figures that are drawn once, by the name of their file
        self.took = 0.0  # seconds, the last time it was rendered

    def stamp(self) -> str:
        """A text that changes when the study has something new."""
        stats = []
        for name in ("study.yaml", "history.csv", "summary.csv"):
            with contextlib.suppress(OSError):  # it may just be replaced
                stats.append((self.out / name).stat())
        return "-".join(f"{stat.st_mtime_ns:x}.{stat.st_size:x}" for stat in stats) or "none"

    def page(self) -> str:
        return page(str(self.out), self.main(), served=True)

    def main(self) -> str:
        """The page without its script, which stays when the page is renewed."""
        with self._lock:
            stamp = self.stamp()
            if self._rendered[0] != stamp:
                began = time.monotonic()
                self._rendered = stamp, self._render(stamp)
                self.took = time.monotonic() - began
            return self._rendered[1]

    def _render(self, stamp: str) -> str:
        try:
            results, pictures = Results.read(self.out), Pictures()
            for figure in figures(results):
                picture = self._drawn.get(figure.name)
                steady = figure.kind in STEADY
                if picture is None and (steady or (results.finished and figure.kind != CURVES)):
                    with contextlib.suppress(InputError):  # not measured, or not kept
                        picture = to_bytes(figure.draw(), "svg")
                if picture is not None:
                    pictures.setdefault(figure.place, []).append(
                        (figure.kind, figure.words, picture)
                    )
                    self._drawn |= {figure.name: picture} if steady else {}
            return content(Findings(results), pictures, stamp=stamp)
        except Exception as error:  # such as no results yet, which the next row changes
            return f'<main data-stamp="{stamp}"><p>{html.escape(str(error))}</p></main>'


class PageServer(ThreadingHTTPServer):
    """Serves a page on this machine, at an address with a token that its other users cannot guess."""

    daemon_threads = True

    def __init__(self, port: int, watched: Watched) -> None:
        self.watched, self.token = watched, secrets.token_urlsafe(16)
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}/{self.token}/"


class Handler(BaseHTTPRequestHandler):
    """Answers GET TOKEN/, TOKEN/main and TOKEN/events, and nothing else."""

    server: PageServer
    timeout = IDLE

    def do_GET(self) -> None:
        watched, (token, _, name) = self.server.watched, self.path[1:].partition("/")
        host = self.headers.get("Host", "")
        if (host.rpartition(":")[0] or host).lower() not in HERE:
            self.send_error(403, "only localhost is answered")  # another name that leads here
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(403, "only the address that was printed is answered")
        elif name == "":
            self._answer("text/html; charset=utf-8", watched.page())
        elif name == "main":
            self._answer("text/html; charset=utf-8", watched.main())
        elif name == "events":
            self._send_events(watched)
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str | None = None) -> None:
        self.send_response(200)
        headers = {
            "Content-Type": kind, "Content-Security-Policy": f"{policy()}; {SERVED_POLICY}",
            "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
        }  # fmt: skip
        body = (text or "").encode()
        if text is not None:
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _send_events(self, watched: Watched) -> None:
        """Server-sent events: the stamp, now and whenever it changes."""
        self._answer("text/event-stream")
        sent, beat = "", time.monotonic()
        with contextlib.suppress(OSError):
            while True:
                # training is to have its share of the machine
                time.sleep(max(LOOK, REST * watched.took))
                stamp = watched.stamp()
                if stamp != sent:
                    self.wfile.write(f"data: {stamp}\n\n".encode())
                    sent = stamp
                elif time.monotonic() - beat > BEAT:
                    self.wfile.write(b": still here\n\n")  # fails where the tab is closed
                    beat = time.monotonic()
                self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(out: Path, port: int, ready: Callable[[PageServer], None] = lambda server: None) -> None:
    """Serve the page of a study until stopped; `ready` gets the server before its first request."""
    if not (out / "study.yaml").exists():
        raise InputError("out", "holds no study: there is no study.yaml", str(out))
    try:
        server = PageServer(port, Watched(out))
    except OSError as error:
        fix = "choose another, or 0 for one that is free"
        raise InputError(option("port"), f"cannot be used ({error.strerror})", port, fix) from None
    except OverflowError:
        raise InputError(option("port"), "must be from 0 to 65535", port) from None
    with server:
        ready(server)
        server.serve_forever()
