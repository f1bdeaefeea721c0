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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fedskip.config import RECORD
from fedskip.config.study import short_names
from fedskip.config.tree import flatten
from fedskip.errors import InputError, option
from fedskip.files import refuse_link, write_bytes, write_text
from fedskip.records.folder import Facts
from fedskip.report.figures import ACROSS, curves, drawable, look, new_axes, to_bytes
from fedskip.report.findings import Findings
from fedskip.report.results import Results, SettingInfo, named
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
    from jinja2 import Template
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

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
    "FedSkip-k is FedAvg that averages models only every k-th round. In between, each model travels on to another "
    "client. Merge: such an average. Slot: one of the travelling models. Visit: one client trains one model."
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
            pictures.setdefault(figure.place, []).append(Picture.of(figure, picture))
    main = content(findings or Findings(results), pictures, remarks)
    write_text(to / "report.html", page(results.name, main))


class Figure(NamedTuple):
    """A figure to draw, if what it shows was measured."""

    results: Results
    place: str  # its heading on the page
    name: str  # of its file
    kind: str  # the function of `Figures`
    words: str  # what it shows
    how: Mapping[str, str]  # arguments of that function

    def draw(self) -> Axes:
        axes: Axes = getattr(self.results.plot, self.kind)(**self.how, axes=new_axes(None))
        return axes


def figures(results: Results) -> list[Figure]:
    """All figures of a study."""
    drawn: list[tuple[str, str, str, str, dict[str, str]]] = []
    for setting in results.shown:
        place, words = setting.name, setting.metric.words
        for name, (kind, how, what) in FIGURES.items():
            if name != "clients" or (setting.out / "clients.csv").exists():
                what = what.format(metric=words)
                drawn.append((place, f"{place}.{name}", kind, what, {"setting": place} | how))
        for metric in setting.metrics[1:] if not setting.by else ():
            name, what = f"{place}.{metric.column}", f"{metric.words} over rounds"
            drawn.append((place, name, CURVES, what, {"setting": place, "y": metric.column}))
    for sweep in sweeps(results):
        for key, short in short_names(sweep.keys).items():
            place, name = f"{sweep.name}: swept values", f"{sweep.name}.sweep-{short}"
            drawn.append((place, name, "sweep", key, {"setting": sweep.name, "parameter": key}))
    periods = {label for label in results.labels() if label.startswith("FedSkip-")}
    if len(periods) > 1:
        words = "a score over the rounds from merge to merge"
        how = {"parameter": "period", "score": "mean_tail"}
        drawn.append(("periods", "sweep", "sweep", words, how))
    return [Figure(results, *one) for one in drawn]


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
    results, numbers = findings.results, charts(findings.results)
    marks = [] if results.finished else ["Not finished: these are the numbers so far."]
    marks += [f"{one.name}, {remark}." for one in results.settings for remark in one.remarks]
    titles = {one.name: one.title for one in results.shown}
    charted = [*titles] if numbers else []
    places = [
        (place, titles.get(place, place), place in charted, pictures.get(place, ()))
        for place in dict.fromkeys([*charted, *pictures])
    ]
    keys = (
        {key: value for key, value in setting.keys.items() if key != RECORD}
        for setting in results.settings
    )
    names = [setting.name for setting in results.settings]
    return template().render(
        results=results, findings=findings, stamp=stamp, marks=marks, glossary=GLOSSARY,
        verdict=[*findings.sentences(), *findings.warnings, *remarks], setup=setup(results),
        places=places, diverged=diverged_runs(results), help=DIVERGED_HELP, timing=timing(results),
        keys=side_by_side(names, map(flatten, keys)), provenance=provenance(results), numbers=numbers,
    )  # fmt: skip


@cache
def template() -> Template:
    """The content of a page, with places for what it shows."""
    from jinja2 import Template

    text = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    made: Template = Template(text, autoescape=True)
    return made


class Picture(NamedTuple):
    """A figure as the page shows it."""

    words: str
    source: str  # a data URL
    still: bool  # only where scripts are off

    @classmethod
    def of(cls, figure: Figure, svg: bytes) -> Self:
        """An SVG with a decimal for each number, and no metadata."""
        text = re.sub(rb"<metadata>.*?</metadata>", b"", svg, flags=re.DOTALL)
        text = re.sub(rb"(?<![\w.#])-?\d+\.\d{2,}", lambda found: b"%.1f" % float(found[0]), text)
        text = re.sub(rb' transform="rotate\(-0 [^"]*"', b"", text)
        text = re.sub(rb"\s*\n\s*", b"\n", text).replace(b"\nL ", b"L")
        source = f"data:image/svg+xml;base64,{base64.b64encode(text).decode()}"
        return cls(f"{figure.place}: {figure.words}", source, figure.kind == CURVES)


Pictures = dict[str, list[Picture]]  # by their heading


# --- its sections --------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """Facts by name, with a column for each setting."""

    names: Sequence[str]  # of the settings
    rows: Sequence[tuple[str, Sequence[str]]]


def side_by_side(names: Sequence[str], facts: Iterable[Mapping[str, Any]]) -> Columns:
    """The facts of settings; a dash where one has no such fact."""
    all_facts = list(facts)
    keys = dict.fromkeys(key for one in all_facts for key in one)
    return Columns(names, [(key, [str(one.get(key, NONE)) for one in all_facts]) for key in keys])


def setup(results: Results) -> Columns:
    """The settings at a glance; every key stands at the end of the page."""
    facts = []
    for setting in results.shown:
        keys, local = setting.keys, setting.keys.get("local", {})
        division: Facts = next(iter(setting.divisions.values()), {})
        clients = division.get("clients", keys.get("clients"))
        parameters = setting.noted.get("parameters")
        seeds = sorted(results.runs(setting.name)["seed"].unique())
        facts.append({
            "methods": ", ".join(setting.methods),
            "data": named(keys.get("data")),
            "training samples": f"{division['train']:,}" if "train" in division else NONE,
            "partition": named(keys.get("partition")),
            "clients": f"{clients}, {keys.get('cohort')} of them in a round",
            "model": named(keys.get("model")) + (f", {parameters:,} numbers" if parameters else ""),
            "client update": f"{count(local.get('epochs'), 'epoch')} of SGD in batches of {local.get('batch')}, "
            f"learning rate {local.get('lr')}, momentum {local.get('momentum')}, weight decay {local.get('weight_decay')}",
            "rounds": f"{setting.rounds:,}",
            "metrics": f"{listed([one.words for one in setting.metrics])}, on {test_samples([setting])}",
            "seeds": ", ".join(map(str, seeds)),
        })  # fmt: skip
    names = [setting.name for setting in results.shown]
    return side_by_side(names if len(names) > 1 else [], facts)


def timing(results: Results) -> list[tuple[str, Sequence[str]]]:
    """How long each setting took, how fast it went, and on what."""
    rows: list[tuple[str, Sequence[str]]] = []
    for study in results.studies or (results,):
        for setting in study.settings:
            runs, history = study.runs(setting.name), study.rows(setting.name)
            seconds = float(history["seconds"].max()) if len(history) else None
            rounds = int(history["round"].max()) if len(history) else 0
            visits = int(runs["rounds"].sum()) * int(setting.keys.get("cohort") or 0)
            machine = setting.noted.get("machine") or {}
            facts = [machine.get(name) for name in ("device_name", "engine", "precision")]
            where = ", ".join(str(fact) for fact in facts if fact) or "an unknown machine"
            speed = f"{visits / seconds:,.0f} visits a second" if seconds else NONE
            folder = f" ({study.out.resolve().name})" if results.studies else ""
            cells = (count(len(runs), "run"), f"{rounds:,} rounds", clock(seconds), speed, where)
            rows.append((f"{setting.name}{folder}", cells))
    return rows


def provenance(results: Results) -> list[dict[str, Any]]:
    """Of every study: its folder, versions, hash, the command that repeats it, and study.yaml."""
    sources = []
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
        lines.append(
            "To repeat it, save study.yaml below and run, elsewhere: fedskip run study.yaml"
        )
        text = (study.out / "study.yaml").read_text(encoding="utf-8")
        sources.append({"lines": lines, "text": text})
    return sources


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
        self._drawn: dict[
            str, Picture
        ] = {}  # figures that are drawn once, by the name of their file
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
                picture, steady = self._drawn.get(figure.name), figure.kind in STEADY
                if picture is None and (steady or (results.finished and figure.kind != CURVES)):
                    with contextlib.suppress(InputError):  # not measured, or not kept
                        picture = Picture.of(figure, to_bytes(figure.draw(), "svg"))
                if picture is not None:
                    pictures.setdefault(figure.place, []).append(picture)
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
